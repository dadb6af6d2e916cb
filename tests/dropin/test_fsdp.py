"""Replicas of a model under FSDP2, to the bit as through DDP's hook; what is asked of torch's own objects."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.forked import finish
from wirebench import compressors
from wirebench.dropin import fsdp_units
from wirebench.errors import UserError

AVERAGING = [
    name
    for name in compressors.available()
    if not (compressors.build(name).makes_update or compressors.build(name).whole_model)
]


@pytest.mark.parametrize(
    "names",
    [sorted({"none", *AVERAGING[::3]}), pytest.param(AVERAGING, marks=pytest.mark.slow)],
    ids=["a third", "all"],
)
def test_every_compressor_is_that_of_ddps_hook_to_the_bit(names: list[str], tmp_path: Path) -> None:
    ended = finish("torch", 2, names, tmp_path, script="tests/dropin/beside_hook.py")
    told = {words[0]: words[1:] for words in map(str.split, ended.out.splitlines()) if words and words[0] in names}
    assert told.keys() == set(names)
    for name, (messages, worst, through_ddp, between_replicas) in told.items():
        assert (messages, float(worst)) == ("3", 0), name
        assert through_ddp == between_replicas, name


def test_another_torch_is_named_where_it_lacks_an_attribute() -> None:
    with pytest.raises(UserError, match=r"FSDP2: FSDPParamGroup has no fsdp_params in torch"):
        fsdp_units._of(type("FSDPParamGroup", (), {})(), "fsdp_params")


def test_a_module_of_an_older_torch_has_one_group_or_none() -> None:
    for group in ("a group", None):
        module: Any = SimpleNamespace(_get_fsdp_state=lambda: SimpleNamespace(_fsdp_param_group=group))  # noqa: B023
        assert fsdp_units._group_of("", module) == group
    several: Any = SimpleNamespace(_get_fsdp_state=lambda: SimpleNamespace(_fsdp_param_groups=["one", "other"]))
    with pytest.raises(UserError, match="has 2 groups of parameters"):
        fsdp_units._group_of("experts", several)
