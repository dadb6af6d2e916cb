"""The engines' own synchronisers: they average as ours do. Horovod's is in comm/test_hvd.py, inside its job."""

import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from tests.comm.processes import Ranks
from tests.exchange.lanes import Net, Plain, check_gradients, images, loss_of, plain_gradients
from wirebench import schedulers
from wirebench.comm.engine import Engine
from wirebench.errors import UserError
from wirebench.exchange import builtin
from wirebench.exchange.builtin import DdpSync, builtin_sync
from wirebench.gradient.schedule import LayerCost
from wirebench.planner.ddp_caps import caps_of_elements

SIZE = 2
CAPS = "bucket_cap_mb_list"


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    ranks = Ranks(SIZE)
    yield ranks
    ranks.close()


def synchroniser(
    model: nn.Module, bucket_cap_mb: float = 0.0, unused: tuple[str, ...] = (), bucket_caps_mb: Sequence[float] = ()
) -> DdpSync:
    engine = cast(Engine, SimpleNamespace(name="torch", device=torch.device("cpu")))
    optimizer = torch.optim.SGD(model.parameters())
    caps: dict[str, Any] = {"bucket_cap_mb": bucket_cap_mb, "bucket_caps_mb": bucket_caps_mb}
    made = builtin_sync(engine, model, optimizer, **caps, accumulation=1, unused=unused)
    assert isinstance(made, DdpSync)
    assert made.optimizer is optimizer
    return made


def averages(bucket_cap_mb: float, parts: int) -> None:
    """In every rank: two steps of DDP, each in `parts` micro-batches."""
    model = Plain()
    sync, rank = synchroniser(model, bucket_cap_mb), dist.get_rank()
    for step in range(2):
        sync.begin(step, 0)
        assert all(parameter.grad is None for parameter in model.parameters())
        for number, few in enumerate(images(10 * step + rank, 8).chunk(parts)):
            if number == parts - 1:
                sync.enable_sync()
            (loss_of(sync.module, few) / parts).backward()
        sync.finish()
        with sync.stepping():
            check_gradients(model, plain_gradients([images(10 * step + each, 8) for each in range(SIZE)]))
    sync.close()


@pytest.mark.parametrize(("bucket_cap_mb", "parts"), [(0.0, 1), (1e-4, 1), (0.0, 4)])
def test_ddp_averages(two, bucket_cap_mb, parts):
    two.call(averages, bucket_cap_mb, parts)


def averages_in_buckets(caps: Sequence[float]) -> tuple[list[list[int]], str]:
    """In every rank: the bytes of DDP's buckets, step by step, and as DDP's log has them. All averages are right."""
    model, rank = Plain(), dist.get_rank()
    sync = synchroniser(model, bucket_caps_mb=caps)
    steps: list[list[int]] = []

    def seen(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        steps[-1].append(bucket.buffer().nbytes)
        return allreduce_hook(dist.distributed_c10d._get_default_group(), bucket)

    sync.module.register_comm_hook(None, seen)
    for step in range(4):
        steps.append([])
        sync.begin(step, 0)
        sync.enable_sync()
        loss_of(sync.module, images(10 * step + rank)).backward()
        sync.finish()
        check_gradients(model, plain_gradients([images(10 * step + each) for each in range(SIZE)]))
    sync.close()
    return steps, sync.module._get_ddp_logging_data()["rebuilt_bucket_sizes"]


@pytest.mark.skipif(CAPS not in builtin._NAMES, reason=f"torch before 2.15 has no {CAPS}")
@pytest.mark.parametrize("cut", [[1] * 6, [4, 2], [3, 1, 2], [6]])
def test_ddp_has_the_planners_buckets_from_its_second_step_on(two, cut):
    layers = [parameter.numel() for parameter in reversed(list(Plain().parameters()))]  # as their gradients come
    ends = list(itertools.accumulate(cut))
    elements = [sum(layers[end - count : end]) for count, end in zip(cut, ends, strict=True)]
    caps = caps_of_elements(elements)
    wanted = [4 * each for each in elements]
    for (first, *later), logged in two.call(averages_in_buckets, caps):
        assert later == [wanted] * 3
        assert sum(first) == sum(wanted)
        assert logged == ", ".join(map(str, wanted))
    scheduler = schedulers.build("native", bucket_caps_mb=caps)
    assert [group.stop for group in scheduler.partition([LayerCost("", each) for each in layers], float)] == ends


def refuses_what_ddp_does_not_do() -> None:
    """In every rank: with a model some of whose parameters take no part, and in an older torch."""
    with pytest.raises(UserError, match=r"^scheduler\.bucket_caps_mb: needs a model all of whose parameters take part"):
        synchroniser(Net(), unused=("odd",), bucket_caps_mb=[1.0])
    with patch.object(builtin, "_NAMES", {}):
        with pytest.raises(UserError, match=rf"^scheduler\.bucket_caps_mb: DDP takes {CAPS} from torch 2\.15 on, and"):
            synchroniser(Plain(), bucket_caps_mb=[1.0])
        synchroniser(Plain()).close()


def test_caps_that_ddp_does_not_take_are_one_line(two):
    two.call(refuses_what_ddp_does_not_do)


@pytest.mark.parametrize(
    ("name", "caps", "said"),
    [
        ("horovod", [1.0], r"^scheduler\.bucket_caps_mb: needs engine\.name=torch, .*; the engine is horovod$"),
        ("local", [1.0], r"^scheduler\.bucket_caps_mb: needs engine\.name=torch, .*; the engine is local$"),
        ("local", [], r"^scheduler\.name: 'builtin' needs an engine with a synchroniser of its own"),
    ],
)
def test_engines_without_caps_or_a_synchroniser_are_refused(name, caps, said):
    engine, model = cast(Engine, SimpleNamespace(name=name)), Plain()
    options = {"bucket_cap_mb": 0.0, "bucket_caps_mb": caps, "accumulation": 1, "unused": ()}
    with pytest.raises(UserError, match=said):
        builtin_sync(engine, model, torch.optim.SGD(model.parameters()), **options)


def only_the_last_micro_batch_is_sent() -> None:
    """In every rank: before `arm` a gradient stays this rank's own."""
    model = Plain()
    sync, rank = synchroniser(model), dist.get_rank()
    sync.begin(0, 0)
    loss_of(sync.module, images(rank)).backward()
    check_gradients(model, plain_gradients([images(rank)]))


def test_ddp_waits_for_the_last_micro_batch(two):
    two.call(only_the_last_micro_batch_is_sent)


def runs_with_an_unused_parameter() -> None:
    """In every rank: a parameter that takes no part stops nothing."""
    model = Net()
    sync, rank = synchroniser(model, unused=("odd",)), dist.get_rank()
    for step in range(2):
        sync.begin(step, 0)
        sync.enable_sync()
        loss_of(sync.module, images(rank)).backward()
        sync.finish()
        model.odd.grad = torch.zeros(2)  # DDP leaves it None
        check_gradients(model, plain_gradients([images(each) for each in range(SIZE)]))


def test_ddp_takes_models_with_unused_parameters(two):
    two.call(runs_with_an_unused_parameter)


def traffic_by_formula() -> None:
    """In every rank: the log is one dense sum."""
    model = Plain()
    ((served,),) = synchroniser(model).take_logs()
    dense = sum(parameter.nbytes for parameter in model.parameters())
    assert (served.kind, served.plan) == ("Sum", "DistributedDataParallel")
    assert (served.payload_bytes, served.value_bytes, served.wire_bytes) == (dense, dense, dense)


def test_ddps_traffic_is_the_dense_rings(two):
    # 2 (P - 1) / P of the gradient, which is all of it for two ranks.
    two.call(traffic_by_formula)
