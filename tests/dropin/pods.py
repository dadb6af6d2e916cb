"""What `test_synchronise.py` runs on each of four ranks: two replicas of a model that FSDP2 shards over two ranks."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import wirebench
from tests.dropin.cases import run, says
from wirebench import compressors, schedulers
from wirebench.dropin.fsdp import Replicas
from wirebench.dropin.fsdp_units import local

STEPS, RATE, BATCH = 8, 0.05, 8
RANK = 0
MESH: Any = None
Make = Callable[[Any], torch.optim.Optimizer]


class Layer(nn.Module):
    """A linear layer whose bias comes first: DDP gets its gradient first, and so has it first in its bucket."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.weight = nn.Parameter(nn.Linear(inputs, outputs).weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class Net(nn.Module):
    """Blocks and a head of the model's own; sizes that two ranks do not share evenly, and one row for both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.blocks = nn.ModuleList([Layer(12, 41), Layer(41, 23), Layer(23, 40)])
        self.scale = Layer(40, 1)
        self.head = nn.Parameter(0.1 * torch.randn(5, 40))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.relu(block(x))
        return nn.functional.linear(x, self.head) * torch.sigmoid(self.scale(x))


def batch(step: int, part: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(10_000 * RANK + 10 * step + part)
    inputs = torch.randn(BATCH, 12, generator=rng)
    return inputs, inputs[:, :5].argmax(1)


def loss_of(model: nn.Module, step: int, part: int = 0) -> Tensor:
    inputs, labels = batch(step, part)
    return nn.functional.cross_entropy(model(inputs), labels)


def sharded(model: nn.Module | None = None, mesh: DeviceMesh | None = None, **options: Any) -> Any:
    """The model with each layer and the whole wrapped."""
    model = model or Net()
    for module in [each for each in model.modules() if isinstance(each, Layer)]:
        fully_shard(module, mesh=mesh or MESH["shard"], **options)
    return fully_shard(model, mesh=mesh or MESH["shard"], **options)


def pods(name: str = "none", **options: Any) -> tuple[Any, Replicas]:
    """options: the compressor's, and those of the wrapper, `compress_replicas` and `sharded`"""
    model = options.pop("model", None)
    kept = {key: options.pop(key) for key in ("scaler", "timeout_seconds", "scheduler") if key in options}
    policy = {key: options.pop(key) for key in ("mp_policy",) if key in options}
    wrapped = sharded(model, **policy)
    return wrapped, wirebench.compress_replicas(wrapped, compressors.build(name, **options), MESH["replicate"], **kept)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, RATE, momentum=0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 0.003)


def train(model: Any, make: Make, steps: int = STEPS, parts: int = 1, clip: bool = False) -> None:
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(parts):
            last = part == parts - 1
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(last)
            else:
                model.require_backward_grad_sync = last
            (loss_of(model, step, part) / parts).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()


def whole(model: nn.Module) -> dict[str, Tensor]:
    return {name: full(each.detach()) for name, each in model.named_parameters()}


def full(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


def apart(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    return max(float((some[name] - others[name]).abs().max()) for name in some)


def dense_gradients_between_pods_end_with_the_weights_of_ddp() -> None:
    start = whole(Net())
    for make in (sgd, adamw):
        ends = beside_ddp(Net, lambda model: train(model, make, STEPS, parts=2, clip=True))  # noqa: B023
        assert apart(start, ends) > 0.005, "nothing was learned"


def beside_ddp(
    made: Callable[[], nn.Module], learn: Callable[[Any], object], of: Any = None, single_steps: int = 0, **ddp: Any
) -> Any:
    """What a model has in the end under DDP, and, as is checked, between replicas: its weights, or what `of` says.

    single_steps  where it is not 0, so many exchanges begin after their whole pass
    """
    ends = []
    for wrapped in (False, True):
        model, scheduler = made(), schedulers.build("single") if single_steps else None
        trained, replicas = (
            pods(model=model, scheduler=scheduler) if wrapped else (DistributedDataParallel(model, **ddp), None)
        )
        learn(trained)
        ends.append((of or whole)(model))
        if replicas:
            assert single_steps in (0, replicas.steps)
            replicas.close()
    assert apart(*ends) < 1e-6, apart(*ends)
    return ends[0]


def gradients_reduced_in_bf16_are_those_of_a_2d_mesh() -> None:
    """PyTorch's own hybrid sharding, which rounds where ours does."""
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    theirs, (mine, replicas) = sharded(mesh=MESH, mp_policy=policy), pods(mp_policy=policy)
    for module in [each for each in theirs.modules() if isinstance(each, FSDPModule)]:
        module.set_force_sum_reduction_for_comms(True)
    for model in (theirs, mine):
        train(model, sgd, 5)
    assert apart(whole(mine), whole(theirs)) < 1e-6, apart(whole(mine), whole(theirs))
    replicas.close()


def gradients_are_means_whatever_gloo_makes_of_an_average() -> None:
    """PyTorch's Gloo summed where FSDP2 wanted an average (pytorch #162338). In torch 2.15 it divides.

    Ours are means in either case. If the second check fails, that of torch has changed: look at `Unit.hook`.
    """
    expected = Net()
    for rank in range(4):
        rng = torch.Generator().manual_seed(10_000 * rank)
        inputs = torch.randn(BATCH, 12, generator=rng)
        (nn.functional.cross_entropy(expected(inputs), inputs[:, :5].argmax(1)) / 4).backward()
    model, replicas = pods()
    loss_of(model, 0).backward()
    assert apart(gradients(model), gradients(expected)) < 5e-7
    replicas.close()
    native = sharded(mesh=MESH)
    loss_of(native, 0).backward()
    assert apart(gradients(native), gradients(expected)) < 5e-7, "FSDP2 on Gloo does not average"


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: full(parameter.grad) for name, parameter in model.named_parameters()}


def nothing_is_lost_of_any_shard() -> None:
    """What was averaged, and what the residuals of both replicas hold, is the sum of the gradients of all steps."""
    for name, options in (("topk", {"density": 0.02}), ("powersgd", {"rank": 1})):
        model, replicas = pods(name, **options)
        plain, dense = pods()
        sent, total = zeros(model), zeros(model)
        for step in range(3):
            for each, sums in ((model, sent), (plain, total)):
                each.zero_grad()
                loss_of(each, step).backward()
                for parameter, so_far in zip(each.parameters(), sums, strict=True):
                    so_far.add_(local(parameter.grad))
        residual = replicas.compressor.state_dict()["residual"]
        assert residual.any(), name
        dist.all_reduce(residual, group=MESH["replicate"].get_group())
        kept = pieces(replicas, residual / 2)
        for (key, _), one, rest in zip(model.named_parameters(), sent, total, strict=True):
            assert torch.allclose(one + kept[key].view(one.shape), rest, atol=2e-6), (name, key)
        replicas.close()
        dense.close()


def zeros(model: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(local(parameter)) for parameter in model.parameters()]


def pieces(replicas: Replicas, flat: Tensor) -> dict[str, Tensor]:
    """A vector of all shards by layer."""
    return {layer.name: flat[layer.start : layer.stop] for unit in replicas._job.units for layer in unit.layers}


def a_residual_is_as_long_as_a_shard() -> None:
    """4 bytes for each of this rank's elements; padding, a row of each layer at most, is its only addition."""
    for name in ("topk", "powersgd", "onebit"):
        model, replicas = pods(name)
        train(model, sgd, 2)
        residual = replicas.compressor.state_dict()["residual"]
        whole_model = sum(parameter.numel() for parameter in Net().parameters())
        padding = sum(parameter[0].numel() for parameter in Net().parameters())
        assert residual.dtype == torch.float32
        assert whole_model / 2 - padding <= residual.numel() <= whole_model / 2 + padding, residual.numel()
        replicas.close()


def a_restart_goes_on_to_the_bit() -> None:
    for name, options in (("topk", {"density": 0.05}), ("acp_sgd", {})):
        ends = []
        for cut in (0, 3):
            model, replicas = pods(name, **options)
            resumable(model, 0, cut or 5)
            if cut:
                state, weights = copy.deepcopy(replicas.state_dict()), copy.deepcopy(model.state_dict())
                assert state["steps"] == cut and state["compressor"]
                replicas.close()
                model, replicas = pods(name, **options)
                model.load_state_dict(weights)
                replicas.load_state_dict(state)
                resumable(model, cut, 5)
                assert replicas.steps == 5
                says("comes before the first step", lambda: replicas.load_state_dict(state))  # noqa: B023
            ends.append(whole(model))
            replicas.close()
        assert apart(*ends) == 0, name


def resumable(model: nn.Module, begin: int, end: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(begin, end):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def an_overflow_on_one_rank_skips_the_step_on_all_four() -> None:
    """And leaves all residuals: the ranks of the other shard have seen finite values only."""
    runs = []
    for scaled in (False, True):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3) if scaled else None
        model, replicas = pods("topk", density=0.05, scaler=scaler)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        for step in range(6):
            if scaler is None and step == 4:
                continue
            optimizer.zero_grad()
            before = [each.clone() for each in replicas.compressor.state_dict().values()]
            # One row of one layer, which one shard has.
            spoilt = model.blocks[0].register_forward_hook(spoil) if step == 4 and RANK == 1 else None
            loss = loss_of(model, step)
            if scaler is None:
                loss.backward()
                optimizer.step()
                continue
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step == 4:
                after = list(replicas.compressor.state_dict().values())
                assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)) and before
            if spoilt:
                spoilt.remove()
        runs.append(whole(model))
        replicas.close()
    assert apart(*runs) < 1e-6, apart(*runs)


def signs_have_no_scale() -> None:
    """A step is as long as without a scaler, whose scale they do not have."""
    options: dict[str, Any] = {"form": "vote", "feedback": False, "scale": "one"}
    ends = []
    for scaled in (False, True):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        model, replicas = pods("signsgd", scaler=scaler, **options)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler.scale(loss_of(model, 0)).backward()
        scaler.step(optimizer)
        ends.append(whole(model))
        replicas.close()
    assert apart(*ends) < 1e-6, apart(*ends)


def spoil(_: nn.Module, __: object, output: Tensor) -> Tensor:
    """The gradient of the first output overflows."""
    output.register_hook(lambda grad: grad.index_fill(1, torch.tensor([0]), torch.inf))
    return output


def a_scaler_that_nobody_told_of_is_refused() -> None:
    model, replicas = pods("topk")
    scaler, optimizer = torch.amp.GradScaler("cpu"), sgd(model.parameters())
    scaler.scale(loss_of(model, 0)).backward()
    says("a GradScaler that it does not know", lambda: scaler.step(optimizer))
    replicas.close()


def start() -> int:
    """Join the job, two replicas of half its ranks; returns this one."""
    global RANK, MESH
    dist.init_process_group("gloo")
    RANK = dist.get_rank()
    MESH = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    return RANK


if __name__ == "__main__":
    run(start())
