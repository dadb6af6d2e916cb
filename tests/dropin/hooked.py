"""What `test_synchronise.py` runs on every rank: loops of DistributedDataParallel with a hook, in several ways."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import wirebench
from tests.dropin.cases import run, says
from tests.dropin.grouped import alike as on_all_ranks
from tests.dropin.own_loop import RATE, loss_of, network, start
from wirebench import compressors, schedulers
from wirebench.dropin.comm_hook import CommHook
from wirebench.dropin.hook_job import HookJob
from wirebench.errors import UserError
from wirebench.exchange.advance import Steps
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket

STEPS, OVERFLOWS, CAP_MB, DENSE_STEPS = 24, 9, 0.005, 2


class Hooked:
    """A model under DDP, in two buckets, with its hook; the layer that overflows is in the last one."""

    def __init__(
        self, name: str, scaler: torch.amp.GradScaler | None = None, static_graph: bool = False, **options: Any
    ) -> None:
        self.model = network()
        self.compressor = compressors.build(name, **options)
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=CAP_MB, static_graph=static_graph)
        self.hook: CommHook = wirebench.comm_hook(self.compressor, scaler=scaler, warmup_steps=DENSE_STEPS)
        self.ddp.register_comm_hook(None, self.hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), RATE)

    def backward(self, step: int, scale: Callable[[Tensor], Tensor] = lambda loss: loss) -> None:
        self.optimizer.zero_grad()
        scale(loss_of(self.ddp, step)).backward()

    def memory(self) -> list[Tensor]:
        return [tensor.clone() for tensor in self.compressor.state_dict().values()]

    def parameters(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def alike(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def an_overflow_on_one_rank_leaves_all_residuals_as_they_were() -> None:
    """And steps of several scales end where those without a scale do, less the one that is skipped."""
    for name in ("topk", "dgc"):
        plain = Hooked(name, density=0.05)
        for step in range(STEPS):
            if step != OVERFLOWS:
                plain.backward(step)
                plain.optimizer.step()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
        scaled = Hooked(name, density=0.05, scaler=scaler)
        scales = {scaler.get_scale()}
        for step in range(STEPS):
            if step == OVERFLOWS:
                overflow(scaled, step, scaler)
            else:
                scaled.backward(step, scaler.scale)
            scaler.step(scaled.optimizer)
            scaler.update()
            scales.add(scaler.get_scale())
        assert len(scales) >= 3, scales
        assert scaled.hook.report()["messages"] == 2
        assert alike(scaled.parameters(), plain.parameters()), name
        assert alike(scaled.memory(), plain.memory()) and scaled.memory(), name
        plain.hook.close()
        scaled.hook.close()


def overflow(job: Hooked, step: int, scaler: torch.amp.GradScaler) -> None:
    """A backward pass that overflows on one rank, in one layer."""
    before = job.memory()
    first = job.model.get_parameter("0.weight")
    spoilt = first.register_hook(lambda grad: grad * torch.inf) if dist.get_rank() == 1 else None
    job.backward(step, scaler.scale)
    if spoilt is not None:
        spoilt.remove()
    assert alike(job.memory(), before)
    gradients = [parameter.grad for parameter in job.model.parameters()]
    assert all(grad is not None and not grad.isfinite().any() for grad in gradients)


def a_scaler_that_nobody_told_of_is_refused() -> None:
    for name, fused in (("topk", False), ("topk", True), ("none", False)):
        job, scaler = Hooked(name), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(job.model.parameters(), RATE, fused=fused)
        job.backward(0, scaler.scale)
        if name == "none":
            scaler.step(optimizer)
        else:
            says("a GradScaler that it does not know", lambda: scaler.step(optimizer))  # noqa: B023
        job.hook.close()


def bytes_of_dense_steps_are_in_no_report() -> None:
    """The exchange's thread may still serve the last dense bucket when DDP has called the hook for all of them."""
    mean = HookJob._mean

    def late(job: HookJob, buffer: Tensor) -> Steps:
        time.sleep(0.05)
        return (yield from mean(job, buffer))

    HookJob._mean = late  # type: ignore[method-assign, assignment]
    job = Hooked("topk", density=0.05)
    for step in range(DENSE_STEPS + 3):
        job.backward(step)
        job.optimizer.step()
    HookJob._mean = mean  # type: ignore[method-assign]
    report = job.hook.report()
    assert report["steps"] == 2
    assert report["bytes_per_step"]["wire"] == sum(request["bytes"] for request in report["requests"]), report
    job.hook.close()


def a_restart_goes_on_after_two_dense_steps() -> None:
    """With the compressor's state and its count of steps, by which `acp_sgd` sends its sides in turn."""
    first = Hooked("acp_sgd")
    for step in range(DENSE_STEPS + 3):
        first.backward(step)
        first.optimizer.step()
    state, memory = first.hook.state_dict(), first.memory()
    first.hook.close()
    again = Hooked("acp_sgd")
    steps: list[int] = []
    exchange = again.compressor.exchange

    def noting(bucket: Bucket, world: ExchangeContext) -> Exchange:
        steps.append(world.step)
        return exchange(bucket, world)

    again.compressor.exchange = noting  # type: ignore[method-assign]
    again.hook.load_state_dict(state)
    for step in range(DENSE_STEPS):
        again.backward(step)
        assert again.hook.state_dict()["steps"] == 3 and (step + 1 == DENSE_STEPS or not again.memory())
        assert alike(list(again.hook.state_dict()["compressor"].values()), memory) and memory
    for step in range(2):
        again.backward(step)
    assert steps == [3, 3, 4, 4], "of two buckets each"
    assert again.hook.state_dict()["steps"] == 5
    again.hook.close()


class Branching(nn.Module):
    """A layer that takes part in later steps, and there on one rank after the other; or in no step."""

    def __init__(self, uses: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.last, self.other = nn.Linear(12, 40), nn.Linear(40, 4), nn.Linear(40, 40)
        self.uses, self.step = uses, 0

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        if self.uses and self.step >= 2 and self.step % 2 == dist.get_rank():
            hidden = self.other(hidden)
        return self.last(hidden)


def of_kind(hook: CommHook | None, uses: bool, joins: bool, accumulates: bool, **options: Any) -> Tensor:
    """The parameters after some steps under a DDP that is made with these options."""
    model = Branching(uses)
    if not options.keys() & {"find_unused_parameters", "static_graph"}:
        del model.other
    ddp = DistributedDataParallel(model, **options)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    with ddp.join() if joins else nullcontext():
        for model.step in range(6 - 2 * dist.get_rank() * joins):
            optimizer.zero_grad()
            for part in range(1 + accumulates):
                with ddp.no_sync() if part < accumulates else nullcontext():
                    loss_of(ddp, 10 * model.step + part).backward()
            optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def every_kind_of_ddp_averages_as_without_a_hook() -> None:
    """And with a compressor all ranks have the same weights: they begin to compress in the same step."""
    kinds: tuple[tuple[dict[str, Any], int], ...] = (
        ({"static_graph": True, "gradient_as_bucket_view": True}, 3),
        ({"find_unused_parameters": True}, 3),
        ({"bucket_cap_mb_list": [1]}, 2),
        ({}, 2),
    )
    for options, dense in kinds:
        several = {} if "bucket_cap_mb_list" in options else {"bucket_cap_mb": 0.002}
        if several or "bucket_cap_mb_list" in signature(DistributedDataParallel).parameters:
            uses = "find_unused_parameters" in options
            for joins, accumulates in ((True, False), (False, "static_graph" not in options)):
                words = {"uses": uses, "joins": joins, "accumulates": accumulates, **options, **several}
                hook = wirebench.comm_hook(compressors.build("none"))
                assert torch.allclose(of_kind(hook, **words), of_kind(None, **words), atol=1e-6), words
                hook.close()
            topk = wirebench.comm_hook(compressors.build("topk", density=0.05))
            values = of_kind(topk, uses, joins=True, accumulates=False, **options, **several)
            assert topk._job is not None and topk._job._buckets.dense_steps == dense, options
            assert topk.compressor.state_dict()
            topk.close()
            assert on_all_ranks(values, None), options


def a_static_graph_is_resumed_after_three_dense_steps() -> None:
    states: list[dict[str, Any]] = []
    for count in (5, 3):
        job = Hooked("acp_sgd", static_graph=True)
        if states:
            job.hook.load_state_dict(states[-1])
        for step in range(count):
            job.backward(step)
            says("no step is compressed yet", job.hook.report) if step < 2 else job.hook.report()
        states.append(job.hook.state_dict())
        job.hook.close()
    assert [state["steps"] for state in states] == [2, 2]
    assert alike(list(states[0]["compressor"].values()), list(states[1]["compressor"].values()))


def errors_keep_their_types_and_come_again() -> None:
    """In the backward pass whose exchange has failed, and in all later ones: DDP itself ends each in order."""
    for static in (False, True):
        for dense in (1, 4):
            job = Hooked("topk", static_graph=static)
            for step in range(dense):
                job.backward(step)
            job.compressor.exchange = lambda bucket, world: None  # type: ignore
            job.hook._job._mean = lambda buffer: spoilt()  # type: ignore
            for step in range(2):
                words = "must be a generator" if dense == 4 else "a mean of ours"
                says(words, lambda: job.backward(step))  # noqa: B023
            job.hook.close()
            for step in range(2):
                says("comm_hook: it is closed", lambda: job.backward(step))  # noqa: B023
            job.hook.close()


def a_dtype_that_the_compressor_does_not_take_is_refused_at_once() -> None:
    """Not when the dense steps are over."""
    ddp = DistributedDataParallel(network().double())
    ddp.register_comm_hook(None, wirebench.comm_hook(compressors.build("topk")))
    says("not of float64", lambda: ddp(torch.ones(2, 12).double()).sum().backward())


def spoilt() -> Steps:
    yield from ()
    raise UserError("a mean of ours")


def join_that_divides_by_those_with_inputs_is_refused() -> None:
    job = Hooked("none")
    with job.ddp.join(divide_by_initial_world_size=False):
        says("divide_by_initial_world_size=True", lambda: job.backward(0))
    job.hook.close()


def a_hook_serves_one_model() -> None:
    job, other = Hooked("none"), DistributedDataParallel(network())
    other.register_comm_hook(None, job.hook)
    job.backward(0)
    says("two models have this hook", lambda: other(torch.ones(2, 12)).sum().backward())
    job.hook.close()


def what_differs_between_ranks_is_named_on_all_of_them() -> None:
    mine = dist.get_rank()
    scaler = torch.amp.GradScaler("cpu", enabled=bool(mine))
    differ: dict[str, dict[str, Any]] = {
        "compressor.density is 0.01 on rank 0 but 0.02 on": {"density": (1 + mine) / 100},
        "compressor.warmup is": {"density": 0.01, "warmup": [0.25] * mine},
        "compressor is 'topk' on rank 0 but 'randomk'": {"name": ["topk", "randomk"][mine]},
        "scaler is 'none' on rank 0 but 'enabled'": {"scaler": scaler},
        "scaler.scale is 2.0 on rank 0 but 4.0": {"scaler": torch.amp.GradScaler("cpu", init_scale=2.0 * (1 + mine))},
        "seed is 0": {"seed": mine},
        "collective is": {"collective": ["ring", "tree"][mine]},
        "warmup_steps is": {"warmup_steps": mine},
    }
    for words, options in differ.items():
        parts = {key: options.pop(key) for key in ("density", "warmup") if key in options}
        compressor = compressors.build(options.pop("name", "topk"), **parts)
        ddp = DistributedDataParallel(network())
        ddp.register_comm_hook(None, wirebench.comm_hook(compressor, **options))
        says(words, lambda: ddp(torch.ones(2, 12)).sum().backward())  # noqa: B023
        fused = compressor, schedulers.build("fused")
        says(words, lambda: wirebench.synchronise(network(), *fused, **options))  # noqa: B023
    jobs = Hooked("topk"), Hooked("topk")
    for step in range(3):
        jobs[0].backward(step)
    if mine:
        jobs[1].hook.load_state_dict(jobs[0].hook.state_dict())
    jobs[0].hook.close()
    says("state.epoch is None on rank 0 but 0 on rank 1", lambda: jobs[1].backward(0))


def models_that_differ_between_ranks_are_named() -> None:
    def renamed(model: Any) -> nn.Module:
        return nn.Sequential(OrderedDict(zip("abcde", model, strict=True)))

    def turned(model: Any) -> nn.Module:
        named = dict(model.named_children())
        return nn.Sequential(OrderedDict((name, named[name]) for name in "20134"))

    changes: dict[str, Callable[[Any], object]] = {
        "model's number of parameters is 6 on rank 0 but 8": lambda model: model.append(nn.Linear(4, 4)),
        "model.0.bias is 'parameter 1, [40], float32, cpu, learns' on rank 0 but None": renamed,
        "model.0.bias is 'parameter 1, [40], float32, cpu, learns' on rank 0 but 'parameter 3": turned,
        "model.0.bias is 'parameter 1, [40], float32, cpu, learns' on rank 0 but 'parameter 1, [40], float32, cpu'":
            lambda model: model[0].bias.requires_grad_(False),
        "float32, cpu, learns' on rank 0 but 'parameter 1, [40], float64": lambda model: model.double(),
        "model's number of buffers is 0 on rank 0 but 1": lambda model: model.register_buffer("mean", torch.ones(2)),
        "model.2.bias is 'parameter 3, [40]": lambda model: setattr(model[2], "bias", nn.Parameter(torch.ones(1, 40))),
    }  # fmt: skip
    for words, change in changes.items():
        model: Any = network()
        if dist.get_rank():
            made = change(model)
            model = made if made is not None and change in (renamed, turned) else model
        parts = compressors.build("topk"), schedulers.build("fused")
        says(words, lambda: wirebench.synchronise(model, *parts))  # noqa: B023
    fused = schedulers.build("fused", bucket_cap_mb=1.0 + dist.get_rank())
    words = "scheduler.bucket_cap_mb is 1.0 on rank 0 but 2.0 on rank 1"
    says(words, lambda: wirebench.synchronise(network(), compressors.build("none"), fused))


if __name__ == "__main__":
    run(start())
