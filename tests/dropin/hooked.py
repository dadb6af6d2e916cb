"""What `test_comm_hook.py` runs on every rank: loops of DistributedDataParallel with a hook, in several ways.

Each function below is a case; rank 0 prints its name when it holds on all ranks.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import compressors
import wirebench
from tests.dropin.misuse import says
from tests.dropin.own_loop import RATE, network
from wirebench.comm.launch import end_process
from wirebench.dropin.comm_hook import CommHook
from wirebench.dropin.hook_job import HookJob
from wirebench.exchange.driver import Steps
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket

STEPS, OVERFLOWS, CAP_MB, DENSE_STEPS = 24, 9, 0.005, 2


class Hooked:
    """A model under DDP, in two buckets, with its hook; the layer that overflows is in the last one."""

    def __init__(self, name: str, scaler: torch.amp.GradScaler | None = None, **options: Any) -> None:
        self.model = network()
        self.compressor = compressors.build(name, **options)
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=CAP_MB)
        self.hook: CommHook = wirebench.comm_hook(self.compressor, scaler=scaler, warmup_steps=DENSE_STEPS)
        self.ddp.register_comm_hook(None, self.hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), RATE)

    def backward(self, step: int, scale: Callable[[Tensor], Tensor] = lambda loss: loss) -> None:
        rng = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
        inputs = torch.randn(16, 12, generator=rng)
        self.optimizer.zero_grad()
        scale(nn.functional.cross_entropy(self.ddp(inputs), inputs[:, :4].argmax(1))).backward()

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


CASES: list[Callable[[], None]] = [
    an_overflow_on_one_rank_leaves_all_residuals_as_they_were,
    a_scaler_that_nobody_told_of_is_refused,
    bytes_of_dense_steps_are_in_no_report,
    a_restart_goes_on_after_two_dense_steps,
]

if __name__ == "__main__":
    dist.init_process_group("gloo")
    for case in CASES:
        case()
        if dist.get_rank() == 0:
            print(case.__name__, flush=True)
    end_process(0)
