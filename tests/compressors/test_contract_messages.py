"""The contract test tells the author of a compressor what is missing, and not only that something is."""

import pytest

from tests.compressors import test_contract as contract
from wirebench.errors import UserError

NAN = float("nan")
BROKEN = "tests.compressors.broken"


@pytest.mark.parametrize(
    ("fault", "test", "arguments", "said"),
    [
        (
            "deaf",
            contract.test_what_is_not_finite_reaches_all_ranks_at_once,
            (25, NAN),
            r"rank 0 is finite at place 25 where rank 1 was given nan .* add an alarm.* mine/cyclic",
        ),
        ("forgets", contract.test_ties_lose_nothing, (), r"off by up to .* at places .*self\.memory\.slice\(bucket\)"),
        ("fraction", contract.test_ties_lose_nothing, (), r"divide the sum by world\.size once"),
        ("rank", contract.test_ties_lose_nothing, (), r"the ranks' results differ at places \[0.*world\.shared_rng"),
        ("noise", contract.test_ties_lose_nothing, (), r"'exactly': .* off by up to .* at places \[0"),
        ("shape", contract.test_ties_lose_nothing, (), r"must return the average, of shape \(\d+,\), not a"),
        (
            "unsaved",
            contract.test_a_restored_run_goes_on_bit_for_bit,
            (),
            r"self\.shared or self\.own, which state_dict",
        ),
        ("torch", contract.test_the_same_draws_give_the_same_result, (), r"draw from world\.shared_rng\(key\)"),
        ("bytes", contract.test_bytes_are_estimated_without_data, (), r"is \[12, 8, 8\]: more elements are not fewer"),
        (
            "values",
            contract.test_the_server_counts_no_more_values_than_were_handed_over,
            (),
            r"give at least one of them values=ELEMENTS",
        ),
    ],
)
def test_a_failure_says_what_to_add(fault: str, test: object, arguments: tuple[object, ...], said: str) -> None:
    assert callable(test)
    test((BROKEN, {"fault": "none", "density": 0.1}), *arguments)
    with pytest.raises((AssertionError, UserError), match=said):
        test((BROKEN, {"fault": fault, "density": 0.1}), *arguments)
