"""Loops as people write them, on every rank beside DistributedDataParallel; `test_synchronise.py` runs them.

Arguments: names of loops. Rank 0 prints a line a loop: its name and the largest difference of any parameter.
A loop gets a side, ours or DDP's, whose `update` is all that differs between the two.
"""

import copy
import functools
import io
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import wirebench
from wirebench import compressors, schedulers
from wirebench.comm.launch import end_process

STEPS, RATE = 6, 0.1
RANK = 0


class Net(nn.Module):
    """Layers that a loop can call one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh())
        self.head = nn.Linear(30, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Ours:
    """`synchronise` by one of its schedules."""

    def __init__(self, model: nn.Module, schedule: str) -> None:
        self.model = self.module = model
        self.sync = wirebench.synchronise(model, compressors.build("none"), schedulers.build(schedule))

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        self.sync.step(optimizer)

    def no_sync(self) -> AbstractContextManager[None]:
        return self.sync.no_sync()

    def close(self) -> None:
        self.sync.close()


class Ddp:
    """DistributedDataParallel."""

    def __init__(self, model: nn.Module, schedule: str) -> None:
        self.model = model
        self.module: Any = DistributedDataParallel(model)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def no_sync(self) -> AbstractContextManager[None]:
        return self.module.no_sync()

    def close(self) -> None:
        pass


Side = Ours | Ddp
Make = Callable[[nn.Module], Side]


def network(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def batch(step: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1000 * RANK + step)
    x = torch.randn(8, 12, generator=rng)
    return x, x[:, :4].argmax(1)


def loss_of(module: Callable[[Tensor], Tensor], step: int) -> Tensor:
    x, y = batch(step)
    return nn.functional.cross_entropy(module(x), y)


def sgd(model: nn.Module, rate: float = RATE) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), rate, momentum=0.9)


def train(
    side: Side,
    between: Callable[[int], object] = lambda step: None,
    within: Callable[[int], object] = lambda step: None,
    forward: Callable[[Tensor], Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[nn.Module]:
    """within: between the forward and the backward pass; between: between the backward pass and the update."""
    optimizer = optimizer or sgd(side.model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(side.module if forward is None else forward, step)
        within(step)
        loss.backward()
        between(step)
        side.update(optimizer)
    return [side.model]


def clip(make: Make) -> list[nn.Module]:
    side = make(network())
    return train(side, lambda _: nn.utils.clip_grad_norm_(side.model.parameters(), 0.05))


def assigned_after_backward(make: Make) -> list[nn.Module]:
    side = make(network())

    def double(_: int) -> None:
        for parameter in side.model.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad * 2

    return train(side, double)


def evaluation_in_mid_step(make: Make) -> list[nn.Module]:
    side = make(network())

    def evaluate(step: int) -> None:
        side.model.eval()
        with torch.no_grad():
            loss_of(side.model, step)
        side.model.train()
        if isinstance(side, Ours):
            with side.sync.evaluation_view():
                loss_of(side.model, step)
            side.sync.report()

    return train(side, within=evaluate, between=lambda step: evaluate(step) if step % 2 else None)


def state_in_mid_step(make: Make) -> list[nn.Module]:
    side = make(network())
    return train(side, within=lambda step: side.sync.state_dict() if isinstance(side, Ours) and step else None)


def parts_of_the_model(make: Make) -> list[nn.Module]:
    """The loop calls the body and the head, and `forward` in every other step."""
    model = network()
    side = make(model)
    turns = iter(range(STEPS))
    if isinstance(side, Ddp):
        return train(side)
    return train(side, forward=lambda x: model.forward(x) if next(turns) % 2 else model.head(model.body(x)))


def accumulation(make: Make) -> list[nn.Module]:
    side = make(network())
    optimizer = sgd(side.model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with side.no_sync():
            with side.no_sync():  # as a helper inside a loop may open it again
                loss_of(side.module, step).backward()
            loss_of(side.module, step + 100).backward()
        loss_of(side.module, step + 200).backward()
        side.update(optimizer)
    return [side.model]


def two_backward_passes(make: Make) -> list[nn.Module]:
    """Each averages, as under DDP: the second one what the first has left in `.grad`, and its own."""
    side = make(network())
    optimizer = sgd(side.model)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=bool(step % 2))
        loss_of(side.module, step).backward()
        loss_of(side.module, step + 100).backward()
        side.update(optimizer)
    return [side.model]


def a_step_thrown_away(make: Make) -> list[nn.Module]:
    side = make(network())
    optimizer = sgd(side.model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(side.module, step).backward()
        if step % 2:
            side.update(optimizer)
    return [side.model]


def sam(make: Make) -> list[nn.Module]:
    """Sharpness-aware minimisation: the gradient at the place that the averaged gradient points to."""
    side = make(network())
    optimizer = sgd(side.model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(side.module, step).backward()
        with torch.no_grad():
            moves = [0.05 * p.grad / p.grad.norm() for p in side.model.parameters() if p.grad is not None]
            torch._foreach_add_(list(side.model.parameters()), moves)
        optimizer.zero_grad()
        loss_of(side.module, step).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(side.model.parameters()), moves)
        side.update(optimizer)
    return [side.model]


def gan(make: Make) -> list[nn.Module]:
    """Two models, two optimizers; what the generator's loss brings the critic is thrown away."""
    torch.manual_seed(0)
    maker = make(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 12)))
    torch.manual_seed(1)
    critic = make(nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1)))
    makes, judges = sgd(maker.model, 0.05), sgd(critic.model, 0.05)
    for step in range(STEPS):
        real = batch(step)[0]
        judges.zero_grad()
        fake = maker.model(real[:, :6]).detach()
        both = critic.module(torch.cat([real, fake]))
        nn.functional.softplus(both * torch.tensor([[-1.0]] * 8 + [[1.0]] * 8)).mean().backward()
        critic.update(judges)
        makes.zero_grad()
        with critic.no_sync():
            nn.functional.softplus(-critic.module(maker.module(real[:, :6]))).mean().backward()
        maker.update(makes)
    maker.close()
    critic.close()
    return [maker.model, critic.model]


def ema_and_copies(make: Make) -> list[nn.Module]:
    """An average of the weights, copies, pickles: of a model in the middle of its training."""
    side = make(network())
    average = AveragedModel(side.model)

    def look(step: int) -> None:
        average.update_parameters(side.model)
        if step % 3 == 0:
            buffer = io.BytesIO()
            torch.save(side.model, buffer)
            buffer.seek(0)
            for each in (
                copy.deepcopy(side.model),
                pickle.loads(pickle.dumps(side.model)),
                torch.load(buffer, weights_only=False),
            ):
                loss_of(each, step).backward()  # no part of the job
                assert difference([each], [side.model]) == 0

    return [*train(side, look), average.module]


def zero(make: Make) -> list[nn.Module]:
    side = make(network())
    optimizer = ZeroRedundancyOptimizer(
        side.model.parameters(), torch.optim.SGD, parameters_as_bucket_view=True, lr=RATE, momentum=0.9
    )
    return train(side, optimizer=optimizer)


def compiled(make: Make) -> list[nn.Module]:
    side = make(network())
    torch._dynamo.reset()
    return train(side, forward=torch.compile(side.module, backend="eager", fullgraph=isinstance(side, Ours)))


def safetensors(make: Make) -> list[nn.Module]:
    from safetensors.torch import load_file, save_model

    side = make(network())
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/model.safetensors"
        models = train(side, lambda step: save_model(side.model, file))
        assert len(load_file(file)) == 6
        torch.save(side.model.get_submodule("head").state_dict(), file)
        assert Path(file).stat().st_size < 4000
    return models


def accelerate(make: Make) -> list[nn.Module]:
    """Its launcher's variables are torchrun's; it wraps nothing where the model is not prepared."""
    from accelerate import Accelerator
    from safetensors.torch import load_file

    side = make(network())
    accelerator = Accelerator(cpu=True)
    with tempfile.TemporaryDirectory() as folder:
        models = train(side, lambda step: accelerator.clip_grad_norm_(side.model.parameters(), 0.05))
        accelerator.save_model(side.model, folder)
        if RANK == 0:
            assert len(load_file(f"{folder}/model.safetensors")) == 6
    return models


def gradients_of_autograd(make: Make) -> list[nn.Module]:
    """`torch.autograd.grad`, and `.grad` set by hand; DDP has no such loop, and so its side has `backward`."""
    side = make(network())
    if isinstance(side, Ddp):
        return train(side)
    optimizer, parameters = sgd(side.model), list(side.model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for parameter, grad in zip(
            parameters, torch.autograd.grad(loss_of(side.module, step), parameters), strict=True
        ):
            if parameter.grad is None:
                parameter.grad = grad
            else:
                parameter.grad.copy_(grad)
        side.update(optimizer)
    return [side.model]


def buffers(make: Make) -> list[nn.Module]:
    """Statistics of normalisation are each rank's own until they are broadcast."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    side = make(model)
    models = train(side)
    if isinstance(side, Ours):
        side.sync.broadcast_buffers()
    else:
        for each in model.buffers():
            dist.broadcast(each, 0)
    assert spread(list(model.buffers())) == 0
    return models


def logging_on_one_rank(make: Make) -> list[nn.Module]:
    """A forward pass in training mode, before and after a backward pass, and after the update, of one rank alone."""

    def look(step: int, side: Side) -> None:
        if step % 2 == RANK:
            loss_of(side.model, step + 50)

    side = make(network())
    optimizer = sgd(side.model)
    for step in range(STEPS):
        look(step, side)
        optimizer.zero_grad()
        loss_of(side.module, step).backward()
        look(step, side)
        look(step, side)
        side.update(optimizer)
        look(step, side)
    return [side.model]


def values_put_elsewhere(make: Make) -> list[nn.Module]:
    """The values of `.grad`, by its `.data`."""
    side = make(network())

    def between(step: int) -> None:
        for parameter in side.model.parameters():
            assert parameter.grad is not None
            parameter.grad.data = 0.5 * parameter.grad.data

    return train(side, between)


def converted(make: Make) -> list[nn.Module]:
    """`module.to` puts values elsewhere too. DDP goes wrong then (PyTorch 2.15); here its model stays as it is."""
    models = []
    for convert in (lambda model: model.to(memory_format=torch.channels_last), lambda model: model.double().float()):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 4, 2, padding=1), nn.Flatten(), nn.Linear(36, 4))
        side = make(model)
        optimizer = sgd(side.model)
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=bool(step % 2))
            loss_of(side.module, step).backward()
            side.update(optimizer)
            if isinstance(side, Ours):
                convert(side.model)
        models.append(side.model)
    return models


def a_frozen_critic(make: Make) -> list[nn.Module]:
    """While the generator learns from it. DDP's forward pass of a model without a gradient is its module's."""
    torch.manual_seed(0)
    maker, critic = make(nn.Linear(6, 12)), make(nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1)))
    makes, judges = sgd(maker.model, 0.05), sgd(critic.model, 0.05)
    for step in range(STEPS):
        real = batch(step)[0]
        critic.model.requires_grad_(True)
        judges.zero_grad()
        fake = maker.model(real[:, :6]).detach()
        (critic.module(fake).mean() - critic.module(real).tanh().mean()).backward()
        critic.update(judges)
        critic.model.requires_grad_(False)
        makes.zero_grad()
        (-critic.model(maker.module(real[:, :6]))).mean().backward()
        maker.update(makes)
    critic.model.requires_grad_(True)
    return [maker.model, critic.model]


class Wider(Net):
    """With a layer that has no elements, and takes part in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.none = nn.Linear(30, 0)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return self.head(hidden) + self.none(hidden).sum()


def parameters_without_elements(make: Make) -> list[nn.Module]:
    torch.manual_seed(0)
    return train(make(Wider()))


def bfloat16(make: Make) -> list[nn.Module]:
    """All of the model: gradients are added up in that dtype, as by DDP."""
    side = make(network().bfloat16())
    return train(side, forward=lambda x: side.module(x.bfloat16()).float())


class Recomputed(Net):
    """Checkpointing of either kind, in two segments: a reentrant one has passes within the backward pass."""

    reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        for part in (self.body[:2], self.body[2:]):
            x = checkpoint(part, x.requires_grad_(), use_reentrant=self.reentrant)
        return self.head(x)


def _clipped(parameters: list[nn.Parameter], step: int) -> None:
    nn.utils.clip_grad_norm_(parameters, 0.1)


def recomputed(make: Make) -> list[nn.Module]:
    models = []
    for Recomputed.reentrant in (False, True):
        torch.manual_seed(0)
        side = make(Recomputed())
        parameters = list(side.model.parameters())
        models += train(side, functools.partial(_clipped, parameters))
    return models


LOOPS: dict[str, Callable[[Make], list[nn.Module]]] = {
    loop.__name__: loop
    for loop in (
        clip, assigned_after_backward, evaluation_in_mid_step, state_in_mid_step,
        parts_of_the_model, accumulation, two_backward_passes, a_step_thrown_away, sam, gan, ema_and_copies, zero,
        compiled, safetensors, accelerate, gradients_of_autograd, buffers,
        parameters_without_elements, bfloat16, recomputed,
        logging_on_one_rank, values_put_elsewhere, converted, a_frozen_critic,
    )
}  # fmt: skip


def difference(mine: list[nn.Module], theirs: list[nn.Module]) -> float:
    return max(
        float((p - q).detach().abs().max()) if p.numel() else 0.0
        for one, other in zip(mine, theirs, strict=True)
        for p, q in zip(one.parameters(), other.parameters(), strict=True)
    )


def spread(tensors: list[Tensor]) -> float:
    """The largest difference between this rank's values and rank 0's."""
    mine = torch.cat([each.detach().double().flatten() for each in tensors])
    first = mine.clone()
    dist.broadcast(first, 0)
    return float((mine - first).abs().max())


def main(schedules: list[str], names: list[str]) -> None:
    for name in names or LOOPS:
        theirs = LOOPS[name](lambda model: Ddp(model, ""))
        worst = 0.0
        for schedule in schedules:
            sides: list[Ours] = []

            def ours(model: nn.Module, schedule: str = schedule, sides: list[Ours] = sides) -> Ours:
                sides.append(Ours(model, schedule))
                return sides[-1]

            mine = LOOPS[name](ours)
            for side in sides:
                side.close()
                assert not side.model._forward_pre_hooks and not side.model._forward_hooks
            assert spread([p for model in mine for p in model.parameters()]) == 0, (name, schedule)
            worst = max(worst, difference(mine, theirs))
        if RANK == 0:
            print(f"{name} {worst:.3e}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("ACCELERATE_USE_CPU", "1")
    dist.init_process_group("gloo")
    RANK = dist.get_rank()
    main(sys.argv[1].split(","), sys.argv[2:])
    end_process(0)
