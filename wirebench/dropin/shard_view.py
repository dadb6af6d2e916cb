"""A model of DTensors as `synchronise` sees it: this rank's shards as plain parameters, which share their memory."""

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from wirebench.comm.attach import Group
from wirebench.dropin.backward_end import BackwardEnd
from wirebench.dropin.usage import AGAIN, CHANGED, EARLY, ModelWatch, holds
from wirebench.errors import UserError
from wirebench.gradient.conformance import name_of
from wirebench.gradient.contract import Method
from wirebench.utils.hooks import WeakHook

SHARD = "mesh: shard"
"""The key of a shard's place, among facts that ranks share and in states."""


class ShardView:
    """The shards of a sharded model, by the model's own names, and what brings gradients there and averages back.

    real   the model that trains
    model  a module without a forward pass: the shards as parameters, and the buffers of the real one
    news   a gradient has come since the last `take`
    """

    def __init__(self, real: nn.Module) -> None:
        self.real, self.model, self.news = real, nn.Module(), False
        self._end, self._norms = BackwardEnd(self._backward_ends), torch.empty(0)
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        for name, parameter in real.named_parameters():
            shard = nn.Parameter(local(parameter), requires_grad=parameter.requires_grad)
            _place(self.model, name).register_parameter(name.rpartition(".")[2], shard)
            if parameter.requires_grad:
                self._pairs.append((parameter, shard))
        for name, buffer in real.named_buffers():
            _place(self.model, name).register_buffer(name.rpartition(".")[2], buffer)
        self._shard_of = {id(parameter): shard for parameter, shard in self._pairs}
        self._optimizers: dict[int, ShardOptimizer] = {}
        self._may_step = False
        self._detach: list[Callable[[], None]] = []

    def attach(self) -> None:
        """Hook the model's gradients and its optimizers' steps; not before `synchronise` refuses nothing any more."""
        hooks = [p.register_post_accumulate_grad_hook(WeakHook(self._comes)) for p, _ in self._pairs]
        watch = register_optimizer_step_pre_hook(WeakHook(self._refuse_early))
        self._detach = [*(hook.remove for hook in hooks), watch.remove]

    def optimizer(self, real: Optimizer) -> "ShardOptimizer":
        """The loop's optimizer as one of the shards."""
        if id(real) not in self._optimizers:
            self._optimizers[id(real)] = ShardOptimizer(real, self._shard_of)
        return self._optimizers[id(real)]

    def parameters(self) -> Collection[int]:
        """The `id` of each parameter of the model that learns."""
        return self._shard_of.keys()

    def holds(self, real: Optimizer) -> bool:
        """Whether the optimizer holds a parameter of the model."""
        return holds(real, self._shard_of.keys())

    def refuse_changed(self) -> None:
        """UserError where the loop has changed gradients since their backward pass: averages would have other ones."""
        # Not by versions: those of DTensors stay where torch changes several at once, as clipping does.
        if self.news and not torch.allclose(self._norms, self._norms_now(), rtol=0, atol=0, equal_nan=True):
            raise UserError(CHANGED)

    def take(self) -> None:
        """Bring the gradients of the model to the shards, as a backward pass would."""
        came = [(shard, local(p.grad)) for p, shard in self._pairs if p.grad is not None]
        for _, shard in self._pairs:
            shard.grad = None
        self.news, self._may_step = False, True
        if came:
            torch.autograd.backward([shard for shard, _ in came], [gradient for _, gradient in came])

    def give(self) -> None:
        """Give the averages to the model; a parameter that no rank has used has no gradient."""
        for parameter, shard in self._pairs:
            if shard.grad is None:
                parameter.grad = None
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            local(parameter.grad).copy_(shard.grad)

    def close(self) -> None:
        """Detach from the model and its optimizers."""
        for detach in self._detach:
            detach()

    def _comes(self, _: Tensor) -> None:
        self.news, self._may_step = True, False
        self._end.seen()

    def _backward_ends(self) -> None:
        self._norms = self._norms_now()

    def _norms_now(self) -> Tensor:
        came = [local(parameter.grad) for parameter, _ in self._pairs if parameter.grad is not None]
        return torch.stack(torch._foreach_norm(came)) if came else torch.empty(0)

    def _refuse_early(self, optimizer: Optimizer, *_: Any) -> None:
        if self.news and not self._may_step and self.holds(optimizer):
            raise UserError(EARLY)


class ShardWatch(ModelWatch):
    """Watches the model that trains, whose shards the view has: they stay in their memory."""

    place = staticmethod(lambda parameter: local(parameter).data_ptr())

    def _compare(self) -> None:
        reshard(self._model)
        super()._compare()

    def _refuse_moved(self) -> None:
        super()._refuse_moved()
        raise UserError(f"model: its shards were moved to other memory after synchronise had begun; {AGAIN}")


class ShardOptimizer(Optimizer):
    """An optimizer that says it holds the shards; its step and its state are the loop's own optimizer's."""

    def __init__(self, real: Optimizer, shard_of: dict[int, nn.Parameter]) -> None:
        self.real = real
        groups = [
            {**group, "params": [shard_of[id(p)] for p in group["params"] if id(p) in shard_of]}
            for group in real.param_groups
        ]
        super().__init__(groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the model."""
        self.real.step()

    def state_dict(self) -> dict[str, Any]:
        """The loop's optimizer's."""
        return self.real.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Restore it."""
        self.real.load_state_dict(state)


def view_of(model: nn.Module, group: Group) -> ShardView | None:
    """The view of a model under FSDP2; None for a model whose parameters are whole.

    group  the ranks that have the same shard. UserError without it, and for a model that is sharded over several
           dimensions: PyTorch sums over one of them itself
    """
    reshard(model)
    sharded = False
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            continue
        if parameter.device_mesh.ndim > 1:
            raise UserError(
                f"model: {name} is sharded over a mesh of {parameter.device_mesh.ndim} dimensions, and FSDP sums over "
                'the one of replicas itself; shard over the other one: fully_shard(module, mesh=mesh["shard"]). Beside '
                "tensor parallelism take compress_replicas"
            )
        if group is None:
            raise UserError(
                f"model: {name} is sharded (a DTensor); pass the ranks that have the same shard of other replicas: "
                'process_group=mesh["replicate"].get_group()'
            )
        sharded = True
    if not sharded:
        return None
    whole = next((name for name, p in model.named_parameters() if p.requires_grad and not isinstance(p, DTensor)), None)
    if whole is not None and fsdp_modules(model):
        refuse_outside(model, whole)
    if isinstance(group, dist.ProcessGroup):
        refuse_shard_group(model, group, 'process_group: pass mesh["replicate"].get_group()')
    return ShardView(model)


def refuse_outside(model: nn.Module, name: str, remedy: str = "") -> NoReturn:
    """UserError for a parameter that learns and that FSDP does not reduce.

    remedy  another one than to let FSDP have it, where it is in a module of FSDP's
    """
    outside = model.get_parameter(name)
    if any(outside is each for module in fsdp_modules(model) for each in module.parameters()):
        raise UserError(
            f"model: {name} was in ignored_params of fully_shard, or came after that call, so that each rank would "
            f"learn its own; leave it out of ignored_params{remedy}"
        )
    raise UserError(
        f"model: {name} is in no module of fully_shard, so that each rank would learn its own; call "
        "fully_shard(model), too"
    )


def refuse_clip(maker: str, compressor: Method, model: nn.Module) -> None:
    """UserError for a compressor that clips the whole gradient, where a rank has a shard of it."""
    shared = any(isinstance(each, DTensor) and each.device_mesh.size() > 1 for each in model.parameters())
    if shared and getattr(compressor.memory, "clip", False):
        raise UserError(
            f"{maker}: clip of {name_of(compressor)!r} limits the norm of the whole gradient, and a rank has its shard "
            "alone; build it with clip=0, and clip the averages before the optimizer's step"
        )


def refuse_shard_group(model: nn.Module, group: dist.ProcessGroup, remedy: str) -> None:
    """UserError for a group that shares the model, where replicas of a shard are asked for.

    Ranks of one shard each are all in the group alone, so that nothing would be averaged and nothing differ.
    """
    ranks = dist.get_process_group_ranks(group)
    meshes = {each.device_mesh for each in model.parameters() if isinstance(each, DTensor)}
    shared = [dist.get_process_group_ranks(each) for mesh in meshes for each in mesh.get_all_groups()]
    # Of pods whose mesh has a dimension of one rank, that dimension's groups say nothing.
    shared = [each for each in shared if len(each) > 1] or shared
    if dist.get_world_size() > 1 and ranks in shared:
        raise UserError(f"{remedy}; in this one are the ranks that share the model, {', '.join(map(str, ranks))}")


def reshard(model: nn.Module) -> None:
    """Let FSDP2 register its shards again: after an evaluation a model still has the parameters that were gathered."""
    for module in fsdp_modules(model):
        module.reshard()


def fsdp_modules(model: nn.Module) -> list[Any]:
    """The modules that fully_shard was called for."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # a whole model does not need to import it
    return [] if fsdp is None else [each for each in model.modules() if isinstance(each, fsdp.FSDPModule)]


def place_of(model: nn.Module) -> dict[str, Any]:
    """Which shard of the model this rank has: a fact that the ranks share that average it."""
    meshes = {each.device_mesh for each in model.parameters() if isinstance(each, DTensor)}
    # A list or a tuple, by torch's version, which a state may outlive.
    return {SHARD: sorted(f"{list(mesh.get_coordinate() or ())} of {list(mesh.shape)}" for mesh in meshes)}


def refuse_other_shard(where: str, state: Mapping[str, Any], place: Mapping[str, Any]) -> None:
    """UserError for the state of another shard, whose layers may be as long; a state without a place is an older one.

    place  as `place_of` makes it
    """
    saved, here = state.get(SHARD, place[SHARD]), place[SHARD]
    if saved != here:
        raise UserError(
            f"{where}: the state is of shard {', '.join(saved)}, and this rank has shard {', '.join(here)}; load what "
            "a rank with this shard has saved"
        )


def local(tensor: Any) -> Tensor:
    """This rank's part of a DTensor, in the same memory; a plain tensor itself."""
    with torch.no_grad():
        whole: Tensor = tensor.detach()
        return whole.to_local() if isinstance(whole, DTensor) else whole


def _place(root: nn.Module, name: str) -> nn.Module:
    """The module that holds this name, made where it is missing."""
    for part in name.split(".")[:-1]:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    return root
