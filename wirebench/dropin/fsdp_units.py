"""FSDP2's modules as our buckets: the layers of each reduce-scattered shard, with their places in one flat gradient.

PyTorch passes an all-reduce hook one flat tensor without names or sizes. What is in it only private attributes of FSDP
tell; all of them are read in this file, and torch 2.11 to 2.15 have them.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.fsdp import FSDPModule

from wirebench.dropin.shard_view import local, refuse_outside, reshard
from wirebench.errors import UserError
from wirebench.gradient.flat import Layer, check_alike

Hook = Callable[[Tensor], None]
OURS = ("gradient_divide_factor", "force_sum_reduction_for_comms", "reduce_scatter_unused_params")
"""Settings of FSDP that `Unit.hook` changes; the last one came after torch 2.11."""


class Unit:
    """A module whose parameters FSDP reduces together: one bucket.

    name     the module's in the model; "" is the model itself
    layers   this rank's shards of the parameters that learn, in the order in which they lie in the hook's tensor
    numel    elements of the hook's tensor: the shards and their padding
    start    place of its first element in the flat gradient of all units
    shards   ranks that share the model: the ranks of `group`
    replicated  FSDP itself sums over replicas
    divisor  what FSDP divides a sum over shards by
    The hook gets sums over shards that are not divided: PyTorch's Gloo summed in some versions where it should average
    (pytorch #162338), and a forced sum is divided after the hook only.
    """

    def __init__(self, name: str, module: FSDPModule, group: Any, names: dict[int, str], start: int) -> None:
        self.name, self.module, self.start = name, module, start
        self._group = group
        self._learning = [each for each in _of(group, "fsdp_params") if each.sharded_param.requires_grad]
        layers, stop = [], start
        for each in self._learning:
            if id(each.sharded_param) not in names:
                raise UserError(f"model: {name or 'its own part'} is gathered now; call it between steps")
            size = _of(each, "sharded_size")
            rows = max(size[0], 1) if size else 1
            layers.append(Layer(names[id(each.sharded_param)], stop, stop + size.numel(), len(size), rows))
            stop += _of(each, "padded_sharded_param_size").numel()
        self.layers, self.numel = tuple(layers), stop - start
        info = _of(group, "mesh_info")
        self.shards: int = _of(info, "shard_mesh_size")
        self.replicated = getattr(info, "replicate_mesh_dim", None) is not None
        self.group: dist.ProcessGroup = _of(info, "shard_process_group")
        self.device: torch.device = _of(group, "device")
        self._before = {name: getattr(group, name) for name in OURS if hasattr(group, name)}
        factor: float | None = _of(group, "gradient_divide_factor")
        self.divisor = float(self.shards) if factor is None else factor

    @property
    def label(self) -> str:
        """The module as messages name it."""
        return self.name or "the model's own part"

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of `layers`, which are DTensors."""
        return [each.sharded_param for each in self._learning]

    @property
    def span(self) -> slice:
        """The part of the hook's tensor from the first layer to the last: without the last one's padding."""
        return slice(0, self.layers[-1].stop - self.start)

    @property
    def gets_gradients(self) -> bool:
        """Whether the pass that runs gives its parameters gradients, which one of `torch.autograd.grad` need not.

        It is asked of the call, not of the data, so that ranks answer alike.
        """
        gathered = [getattr(each, "_unsharded_param", None) for each in self._learning]
        nodes = (get_gradient_edge(each).node for each in gathered if each is not None and each.requires_grad)
        return any(map(torch._C._will_engine_execute_node, nodes))

    def refuse_hooks(self) -> None:
        """UserError where others hook the gradients, or want them before they are averages."""
        if _of(self._group, "_all_reduce_hook") not in (None, refuse_closed):
            raise UserError(f"compress_replicas: {self.label} has an all-reduce hook already; one is enough")
        self._refuse_readers()

    def _refuse_readers(self) -> None:
        if any(getattr(each, "_post_accumulate_grad_hooks", None) for each in self.parameters):
            raise UserError(
                f"compress_replicas: {self.label} has hooks that read gradients during the backward pass, before they "
                "are averaged; step the optimizer after backward()"
            )

    def hook(self, call: Hook) -> None:
        """Let FSDP call this with each reduce-scattered shard, whose sum is not divided."""
        self.module.set_all_reduce_hook(call)
        self.module.set_force_sum_reduction_for_comms(True)
        self.module.set_gradient_divide_factor(1.0)
        if hasattr(self.module, "set_reduce_scatter_unused_params"):
            self.module.set_reduce_scatter_unused_params(True)

    def unhook(self) -> None:
        """Refuse a later backward pass, whose gradients nothing averages over replicas; all else is as before."""
        self._group._all_reduce_hook = refuse_closed
        for name, value in self._before.items():
            setattr(self._group, name, value)

    @property
    def summed_by(self) -> Any:
        """The reduce-scatter by which FSDP sums this module's gradients."""
        return _of(self._group, "_reduce_scatter_comm")

    def sum_by(self, comm: Any) -> None:
        """Let FSDP sum this module's gradients by another reduce-scatter."""
        self.module.set_custom_reduce_scatter(comm)

    def refuse_changes(self, given: Tensor) -> None:
        """UserError where the hook's tensor is not the sum of all layers' gradients, or others read it already."""
        self._refuse_readers()
        if self._group.gradient_divide_factor != 1.0 or not self._group.force_sum_reduction_for_comms:
            raise UserError(
                f"compress_replicas: {self.label} has another divide factor than before; set it before "
                "compress_replicas is called"
            )
        if not getattr(self._group, "all_reduce_grads", True):
            raise UserError(
                "compress_replicas: set_requires_all_reduce(False) is for a 2-D mesh; to accumulate gradients call "
                "model.set_requires_gradient_sync(False)"
            )
        if given.numel() != self.numel:
            raise UserError(
                f"compress_replicas: of {self.label} {given.numel()} gradients came, and {self.numel} were expected: a "
                "parameter had none, or was frozen or unfrozen; residuals are kept by place, so each parameter has to "
                "take part in every step"
            )
        self.refuse_order()

    def refuse_order(self) -> None:
        """UserError where FSDP packs gradients of other parameters than `layers`, or in another order."""
        every = _of(self._group, "fsdp_params")
        # torch 2.15 packs them by the dtypes of their gradients, which are known after the first forward pass.
        order = getattr(self._group, "_reduce_scatter_param_indices", None) or range(len(every))
        if [every[place] for place in order if every[place].sharded_param.requires_grad] != self._learning:
            raise UserError(
                f"compress_replicas: {self.label} has other gradients, or in another order, than at first. Where "
                "parameters were frozen or unfrozen, close() it and call compress_replicas again; give all of them one "
                "grad_dtype"
            )

    def weights(self) -> Tensor:
        """The shards of the weights, with the layout of `layers`."""
        flat = torch.zeros(self.layers[-1].stop - self.start, dtype=self.parameters[0].dtype, device=self.device)
        for layer, parameter in zip(self.layers, self.parameters, strict=True):
            flat[layer.start - self.start : layer.stop - self.start] = local(parameter).reshape(-1)
        return flat

    def add(self, average: Tensor) -> None:
        """Add these averages, laid out as `layers`, to the gradients."""
        for layer, parameter in zip(self.layers, self.parameters, strict=True):
            if parameter.grad is None:  # no sample of this rank's has passed the module
                parameter.grad = torch.zeros_like(parameter)
            gradient = local(parameter.grad)
            piece = average[layer.start - self.start : layer.stop - self.start]
            gradient.add_(piece.view(gradient.shape).to(gradient.device))


def units_of(model: nn.Module) -> list[Unit]:
    """The units of a model under FSDP2 that learn, in the reverse of the order in which the model has them.

    UserError where it is not sharded, or a parameter that learns is in no unit.
    """
    _refuse_unsharded(model)
    reshard(model)
    units = [unit for unit in _all_units(model) if unit.layers]
    held = {id(parameter) for unit in units for parameter in unit.parameters}
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    check_alike(learning)
    outside = next((name for name, parameter in learning.items() if id(parameter) not in held), None)
    if outside is not None:
        refuse_outside(model, outside, ", or freeze it during this call and average its gradients yourself")
    return units


def frozen_units(model: nn.Module) -> list[Unit]:
    """The units of which no parameter learns."""
    return [unit for unit in _all_units(model) if not unit.layers]


def _all_units(model: nn.Module) -> list[Unit]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    units: list[Unit] = []
    seen: list[Any] = []
    for name, module in list(model.named_modules())[::-1]:
        if not isinstance(module, FSDPModule):
            continue
        group = _group_of(name, module)
        if group is None or any(group is each for each in seen):  # fully_shard([a, b]) makes one group of two modules
            continue
        seen.append(group)
        units.append(Unit(name, module, group, names, units[-1].start + units[-1].numel if units else 0))
    return units


def refuse_unfrozen(label: str, _: Tensor) -> None:
    """The hook of a module in which nothing has learned so far."""
    raise UserError(
        f"compress_replicas: {label} was unfrozen after compress_replicas was called; close() it, and call it again "
        "with the changed model"
    )


def refuse_closed(_: Tensor) -> None:
    """The hook of a module whose exchange between replicas is closed."""
    raise UserError("compress_replicas: it is closed, and FSDP still calls it; call compress_replicas again to go on")


def end_closed(model: nn.Module) -> None:
    """Let a model train whose `compress_replicas` is closed; UserError where one averages its gradients still."""
    for name, module in model.named_modules():
        for group in _groups_of(module) if isinstance(module, FSDPModule) else ():
            if _of(group, "_all_reduce_hook") not in (None, refuse_closed):
                raise UserError(
                    f"model: {name or 'its own part'} has an all-reduce hook, which averages its gradients already; "
                    "close() its compress_replicas first"
                )
            group._all_reduce_hook = None


def backward_runs(units: Sequence[Unit]) -> bool:
    """Whether FSDP has still to end a backward pass: the one that ended was nested in it, as of checkpointing."""
    contexts = [getattr(_state_of(unit.module), "_state_ctx", None) for unit in units]
    return any(getattr(context, "post_backward_final_callback_queued", False) for context in contexts)


def _refuse_unsharded(model: nn.Module) -> None:
    fsdp = sys.modules["torch.distributed.fsdp"]
    if any(isinstance(each, fsdp.FullyShardedDataParallel) for each in model.modules()):
        raise UserError(
            "model: FullyShardedDataParallel has no hook for hybrid sharding; take FSDP2: "
            'fully_shard(module, mesh=mesh["shard"])'
        )
    if not any(isinstance(each, FSDPModule) for each in model.modules()):
        raise UserError(
            'model: no module of it is sharded; call fully_shard(module, mesh=mesh["shard"]) first, '
            "or take wirebench.synchronise for a model that is whole on each rank"
        )


def _groups_of(module: FSDPModule) -> Sequence[Any]:
    state: Any = _state_of(module)
    groups: Sequence[Any] | None = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before torch 2.15
        single = _of(state, "_fsdp_param_group")
        groups = [] if single is None else [single]
    return groups


def _group_of(name: str, module: FSDPModule) -> Any:
    """What FSDP reduces of this module; None where it has no parameters of its own."""
    groups = _groups_of(module)
    if len(groups) > 1:
        raise UserError(
            f"model: {name or 'its own part'} has {len(groups)} groups of parameters, since shard_placement_fn gives "
            "them several meshes, and FSDP takes a hook for one; shard it over one mesh"
        )
    if groups and getattr(getattr(groups[0], "mesh_info", None), "shard_mesh_dim", 0) is None:
        raise UserError(
            f"model: {name or 'its own part'} is wrapped by replicate(), which sums over all ranks itself; take "
            'fully_shard(module, mesh=mesh["shard"]), with one rank in that dimension for whole parameters'
        )
    return groups[0] if groups else None


def _state_of(module: FSDPModule) -> Any:
    return _of(module, "_get_fsdp_state")()


def _of(thing: Any, name: str) -> Any:
    try:
        return getattr(thing, name)
    except AttributeError:
        kind = type(thing).__name__
        raise UserError(
            f"FSDP2: {kind} has no {name} in torch {torch.__version__}; torch 2.11 to 2.15 have it"
        ) from None
