"""The contract test finds what is broken, and tells the author of a compressor what to use."""

from collections.abc import Callable

import pytest

from tests.compressors import test_contract as contract
from wirebench.errors import UserError

FAULTS: dict[str, tuple[Callable[..., None], str]] = {
    "deaf": (contract.test_what_is_not_finite_reaches_all_ranks_at_once, "add an alarm"),
    "forgets": (contract.test_ties_lose_nothing, "self.memory.slice(bucket)"),
    "fraction": (contract.test_ties_lose_nothing, "divide the sum by world.size once"),
    "rank": (contract.test_ties_lose_nothing, "world.shared_rng"),
    "noise": (contract.test_ties_lose_nothing, "keeps = 'exactly'"),
    "shape": (contract.test_ties_lose_nothing, "must return the average, of shape"),
    "unsaved": (contract.test_a_restored_run_goes_on_bit_for_bit, "self.own, which state_dict"),
    "torch": (contract.test_the_same_draws_give_the_same_result, "world.shared_rng(key)"),
    "bytes": (contract.test_bytes_are_estimated_without_data, "more elements are not fewer bytes"),
    "values": (contract.test_the_server_counts_no_more_values_than_were_handed_over, "values=ELEMENTS"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_says_what_to_add(fault: str) -> None:
    test, words = FAULTS[fault]
    where = (25, float("nan")) if fault == "deaf" else ()
    test(("tests.compressors.broken", {"fault": "none", "density": 0.1}), *where)
    with pytest.raises((AssertionError, UserError)) as failed:
        test(("tests.compressors.broken", {"fault": fault, "density": 0.1}), *where)
    assert words in str(failed.value)
