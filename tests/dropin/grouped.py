"""What `test_synchronise.py` runs on each of three ranks: exchanges over the process groups [0, 2], [1] and [1, 2]."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import wirebench
from tests.dropin.cases import run, says
from tests.dropin.own_loop import RATE, loss_of, network, start
from wirebench import compressors, schedulers
from wirebench.errors import PeerLost

STEPS, CAP_MB = 5, 0.005
RANK = 0
APART: Any = None
"""The group of [0, 2] or that of [1], whichever this rank is in."""
PAIR: Any = None
"""The group of [1, 2]; on rank 0 what torch has for those outside."""


def steps(model: nn.Module, count: int = STEPS, finish: Callable[[Any], None] = lambda o: o.step()) -> Tensor:
    """The parameters after so many steps of SGD on this rank's own batches."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(count):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        finish(optimizer)
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def of_ddp(group: Any, count: int = STEPS) -> Tensor:
    return steps(DistributedDataParallel(network(), process_group=group), count)


@contextmanager
def hooked(
    group: Any, compressor: str = "none", collective: str = "", state: Any = None, **options: Any
) -> Iterator[nn.Module]:
    ddp = DistributedDataParallel(network(), process_group=group, bucket_cap_mb=CAP_MB)
    hook = wirebench.comm_hook(compressors.build(compressor), collective, **options)
    ddp.register_comm_hook(state, hook)
    yield ddp
    hook.close()


def synchronised(group: Any, compressor: str, collective: str = "", schedule: str = "wfbp", **options: Any) -> Tensor:
    model = network()
    build = compressors.build(compressor, **options), schedulers.build(schedule), collective
    sync = wirebench.synchronise(model, *build, process_group=group)
    values = steps(model, finish=sync.step)
    sync.close()
    return values


def alike(values: Tensor, group: Any) -> bool:
    """Whether all ranks of the group have these values."""
    every = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, values, group)
    return all(torch.equal(each, values) for each in every)


def a_hook_averages_over_its_models_group() -> None:
    """Found by the model, or given as the state, or as an argument; groups of other ranks do the same meanwhile."""
    plain = of_ddp(APART)
    for state, options in ((None, {}), (APART, {}), (None, {"process_group": APART})):
        with hooked(APART, state=state, **options) as model:
            assert torch.allclose(steps(model), plain, atol=1e-6)
    with hooked(APART, state=APART, process_group=dist.group.WORLD) as model:
        says("has another as its state", lambda: steps(model))


def a_hook_that_finds_no_model_asks_for_the_group() -> None:
    with hooked(APART) as model:
        gc.freeze()  # what is frozen is no longer found
        says("pass it: comm_hook(process_group=)", lambda: steps(model, 1))
        gc.unfreeze()
    with hooked(APART, process_group=APART) as model:
        gc.freeze()
        given = steps(model)
        gc.unfreeze()
    assert torch.allclose(given, of_ddp(APART), atol=1e-6)


def two_models_of_a_process_have_two_groups() -> None:
    """[1, 2] and all ranks: a model that rank 0 has not, and whose ranks within the group are not those of the job."""
    wide, narrow = of_ddp(None), of_ddp(PAIR) if RANK else None
    with hooked(None) as whole:
        if not RANK:
            return check(steps(whole), wide)
        with hooked(PAIR) as pair:
            check(steps(pair), narrow)
            check(steps(whole), wide)


def check(values: Tensor, expected: Tensor | None) -> None:
    assert expected is not None and torch.allclose(values, expected, atol=1e-6)


def every_kind_of_request_stays_within_a_group() -> None:
    """Sums by plans and by the engine; gathered, merged and routed messages; pairs of ranks [1, 2] and a rank alone."""
    groups = [APART] if RANK == 0 else [APART, PAIR]
    for group in groups:
        plain = of_ddp(group)
        for collective in ("ring", "tree", "halving_doubling", "native", ""):
            assert torch.allclose(synchronised(group, "none", collective), plain, atol=1e-6), collective
    for group in groups:
        for name in ("topk", "gtopk", "oktopk", "gs_sgd", "sketched_sgd", "int8", "powersgd"):
            momentum: Any = {"momentum": 0.0} if compressors.build(name).owns_momentum else {}
            assert alike(synchronised(group, name, schedule="sync_easgd", **momentum), group), name
        with hooked(group, "topk", "ring") as model:
            assert alike(steps(model), group)


def groups_of_the_users_own_are_made_as_before() -> None:
    """Ours are made by some ranks only, and leave torch's count of groups alone."""
    ones = torch.ones(1)
    group: Any = dist.new_group()
    dist.all_reduce(ones, group=group)
    assert ones.item() == 3


def only_ranks_of_a_group_take_part() -> None:
    build = compressors.build("none"), schedulers.build("wfbp")
    if not RANK:
        says("rank 0 is not in it", lambda: wirebench.synchronise(network(), *build, process_group=PAIR))
    wrong: Any = 3
    says("must be a torch.distributed.Proc", lambda: wirebench.synchronise(network(), *build, process_group=wrong))


def ranks_of_a_group_are_named_by_their_numbers_in_the_job() -> None:
    if RANK:
        parts = compressors.build("topk", density=0.01 * RANK), schedulers.build("wfbp")
        words = "compressor.density is 0.01 on rank 1 but 0.02 on rank 2"
        says(words, lambda: wirebench.synchronise(network(), *parts, process_group=PAIR))


def a_rank_of_a_group_that_dies_is_named() -> None:
    """The last case: rank 2 is gone then."""
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(3)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    with hooked(APART, "topk", timeout_seconds=20.0) as model:
        steps(model)
        if RANK == 2:
            os._exit(0)
        if RANK == 1:
            return
        for _ in range(2):  # the second time, too
            try:
                steps(model, 1)
            except PeerLost as error:
                assert f"lost rank 2 (pid {pids[2].item()} on " in str(error), error
            else:
                raise AssertionError("nobody missed rank 2")


if __name__ == "__main__":
    RANK = start()
    both = [dist.new_group([0, 2]), dist.new_group([1])]
    APART, PAIR = both[RANK == 1], dist.new_group([1, 2])
    run(RANK)
