"""One flat gradient in backward order: layers, buckets, and the views that tie them to a model.

The `.grad` of a model's parameters become views of one flat vector, ordered as the backward pass produces gradients. A
bucket is a slice of it, so merging layers into messages copies nothing. Parameters keep their own storages, so a model
is saved, copied, compiled and moved as any other; who needs weights as a vector gathers them.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from wirebench.errors import UserError

FLOAT_BYTES = 4
"""Of an element of a gradient and of most messages: fp32."""
ALIGNED_BYTES = 16
"""On which boundaries parameters lie where it matters; see `_step_of`."""


class Layer(NamedTuple):
    """One parameter tensor: its name, its slice [start, stop) of the flat gradient, its number of dimensions.

    rows  size of its first dimension: the slice is a matrix with this number of rows, in every memory format
    """

    name: str
    start: int
    stop: int
    ndim: int
    rows: int = 1

    @property
    def numel(self) -> int:
        """Elements of the layer."""
        return self.stop - self.start


@dataclass(eq=False)
class Bucket:
    """A slice of the flat gradient that is exchanged as one.

    index   position in launch order, from 0
    grad    view of the flat gradient, from the first layer to the last; 0 in gaps between layers
    param   the weights, gathered, same shape; empty for a compressor that does not read them
    layers  the layers it covers; their start and stop count from the beginning of the flat gradient
    model   all layers of the model, in the same coordinates (default: the bucket is the whole model)
    wire_dtype  bfloat16 where the model's gradient is, of which `grad` is an fp32 copy; None: `grad` is the model's own

    There are gaps before layers that start on boundaries of memory, and where other layers are sent dense. What a
    compressor returns there is set to 0, or not read.
    """

    index: int
    grad: Tensor
    param: Tensor
    layers: tuple[Layer, ...]
    model: tuple[Layer, ...] = ()
    wire_dtype: torch.dtype | None = None

    def __setattr__(self, name: str, value: object) -> None:
        # `bucket.grad += x` assigns the tensor that it has added to, which is no change.
        if self.__dict__.get(name, value) is not value:
            how = f"write into it, as bucket.{name}.copy_(values) or bucket.{name}.add_(values) do"
            raise AttributeError(f"bucket.{name}: cannot be replaced; {how}")
        super().__setattr__(name, value)

    def narrow(self, values: Tensor) -> Tensor:
        """Values of the gradient as they travel: no wider than the model's own gradient."""
        return values if self.wire_dtype is None else values.to(self.wire_dtype)

    def arriving(self, values: Tensor) -> Tensor:
        """fp32 `values` as they arrive, fp32: the same tensor where nothing is rounded."""
        return values if self.wire_dtype is None else values.to(self.wire_dtype).to(values.dtype)

    @property
    def start(self) -> int:
        """First element's place in the flat gradient."""
        return self.layers[0].start

    @property
    def stop(self) -> int:
        """One past the last element's place in the flat gradient."""
        return self.layers[-1].stop

    @property
    def numel(self) -> int:
        """Elements of its layers; elements of `grad` in gaps do not count."""
        return sum(layer.numel for layer in self.layers)

    @property
    def model_numel(self) -> int:
        """Elements of the whole flat gradient: the length of any state that is kept per element."""
        return (self.model or self.layers)[-1].stop


Form = tuple[torch.Size, tuple[int, ...]]
"""Shape and strides of a layer."""


class FlatGradient:
    """The flat gradient of one model, in the given order of its parameters.

    `order` lists every trainable parameter's name in backward order (see `backward_order`). `views[i]` is the view of
    `grad` for `layers[i]`, with the parameter's own strides: a channels_last weight has a channels_last gradient.
    Raises UserError for parameters of several dtypes.
    """

    def __init__(self, model: nn.Module, order: Sequence[str]) -> None:
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        assert sorted(named) == sorted(order), "order must name every trainable parameter once"
        self.parameters = [named[name] for name in order]
        check_alike(named)
        self.layers = _lay_out(order, self.parameters)
        self._forms = [_form(parameter) for parameter in self.parameters]
        like = self.parameters[0]
        self._given = torch.zeros(self.layers[-1].stop, dtype=like.dtype, device=like.device)
        # What exchanges write does not count as a change by the loop: `.data` has a version counter of its own.
        self.grad = self._given.data
        self.gaps = [slice(a.stop, b.start) for a, b in pairwise(self.layers) if a.stop < b.start]
        self.views = self.views_of(self._given)
        self._addresses = [view.data_ptr() for view in self.views]
        self._weights: Tensor | None = None

    @property
    def numel(self) -> int:
        """Elements of its layers; elements of `grad` in gaps do not count."""
        return sum(layer.numel for layer in self.layers)

    def holds(self, position: int, grad: Tensor) -> bool:
        """Whether a parameter's gradient is the view of its layer.

        It is not where the view's values were put elsewhere, as `grad.data = ...` and `module.to` do.
        """
        return grad is self.views[position] and grad.data_ptr() == self._addresses[position]

    def view(self, position: int) -> Tensor:
        """The view of a layer, a new one where the values of the one before were put elsewhere."""
        if self.views[position].data_ptr() != self._addresses[position]:
            self.views[position] = _view(self._given, self.layers[position], self._forms[position])
        return self.views[position]

    def views_of(self, vector: Tensor, layers: slice = slice(None)) -> list[Tensor]:
        """The slices of these layers in a vector as long as `grad`, each shaped as its parameter."""
        chosen = zip(self.layers[layers], self._forms[layers], strict=True)
        return [_view(vector, *each) for each in chosen]

    @torch.no_grad()
    def gather_weights(self, into: Tensor | None = None, layers: slice = slice(None)) -> Tensor:
        """The weights of these layers in a vector as long as `grad`, a new one by default; other places stay."""
        vector = torch.zeros_like(self.grad) if into is None else into
        copy_each(self.views_of(vector, layers), self.parameters[layers])
        return vector

    @torch.no_grad()
    def set_weights(self, vector: Tensor) -> None:
        """Give the parameters the values of a vector as long as `grad`.

        By `.data`, which autograd does not see: an evaluation in mid-step gives them back before the backward pass.
        """
        copy_each([parameter.data for parameter in self.parameters], self.views_of(vector))

    def bucket(self, index: int, layers: range) -> Bucket:
        """The bucket of the contiguous layers `layers` (positions in backward order), without weights."""
        chosen = self.layers[layers.start : layers.stop]
        piece = slice(chosen[0].start, chosen[-1].stop)
        return Bucket(index, self.grad[piece], self.grad.new_empty(0), chosen, self.layers)

    def with_weights(self, bucket: Bucket) -> Bucket:
        """The bucket with the current weights. They lie in memory that the next call for this bucket reuses."""
        if self._weights is None:
            self._weights = torch.zeros_like(self.grad)
        first = self.layers.index(bucket.layers[0])
        self.gather_weights(self._weights, slice(first, first + len(bucket.layers)))
        return replace(bucket, param=self._weights[bucket.start : bucket.stop])

    def digest(self) -> str:
        """Hash of names and sizes in order: equal on all ranks, and in a checkpoint and the run that resumes it."""
        text = "\n".join(f"{layer.name} {layer.start} {layer.stop}" for layer in self.layers)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class BackwardOrder(NamedTuple):
    """Names of all trainable parameters in backward order, and of those among them that took no part in the loss."""

    names: list[str]
    unused: list[str]


def backward_order(model: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> BackwardOrder:
    """Names of the trainable parameters in the order in which a real backward pass finishes them.

    `loss_of(model)` returns a scalar loss of the model, left as it was found: the caller passes a throw-away copy. A
    parameter that takes no part comes last, in reverse order of registration.
    """
    seen: list[str] = []
    handles = [
        p.register_post_accumulate_grad_hook(lambda _p, name=name: seen.append(name))
        for name, p in model.named_parameters()
        if p.requires_grad
    ]
    loss_of(model).backward()
    for handle in handles:
        handle.remove()
    refuse_sparse(dict(model.named_parameters()))
    rest = [name for name, p in model.named_parameters() if p.requires_grad and name not in set(seen)]
    return BackwardOrder(seen + rest[::-1], rest)


def copy_each(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into the target at its place, with few kernels; both sequences may be empty."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


@torch.no_grad()
def fill(parameters: Sequence[nn.Parameter], flat: Tensor) -> None:
    """Give parameters the values of a flat vector that has them in this order.

    UserError for one that was laid out otherwise.
    """
    layers = _lay_out([str(place) for place in range(len(parameters))], parameters)
    if layers[-1].stop != flat.numel():
        raise UserError(
            f"the saved weights take {flat.numel()} elements, and the model's {layers[-1].stop}: on a GPU layers start "
            f"on {ALIGNED_BYTES}-byte boundaries, on a CPU they do not"
        )
    for layer, parameter in zip(layers, parameters, strict=True):
        parameter.copy_(_view(flat, layer, _form(parameter)))


def check_alike(named: Mapping[str, nn.Parameter]) -> None:
    """UserError, with a parameter's name, for a model that has no flat gradient.

    All trainable parameters are of one real dtype on one device; gradients that are there already are dense.
    """
    if not named:
        raise UserError("model: it has no trainable parameter")
    for name, parameter in named.items():
        if isinstance(parameter, UninitializedParameter):
            raise UserError(f"model: {name} has no shape yet; a lazy module gets one in a first forward pass")
        if not parameter.dtype.is_floating_point:
            raise UserError(f"model: {name} must be of real numbers, not of {_word(parameter.dtype)}; see view_as_real")
    for kind, kinds in (
        ("dtype", {parameter.dtype: name for name, parameter in list(named.items())[::-1]}),
        ("device", {parameter.device: name for name, parameter in list(named.items())[::-1]}),
    ):
        if len(kinds) > 1:
            words = ", ".join(f"{_word(each)} ({name})" for each, name in list(kinds.items())[::-1])
            raise UserError(f"model: its parameters must be of one {kind}, but it has {words}")
    refuse_sparse(named)


def refuse_sparse(named: Mapping[str, nn.Parameter]) -> None:
    """UserError for a parameter whose gradient is a sparse tensor."""
    for name, parameter in named.items():
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise UserError(
                f"model: the gradient of {name} is sparse, and averages are of dense ones; set sparse=False"
            )


def _word(kind: object) -> str:
    return str(kind).removeprefix("torch.")


def _lay_out(order: Sequence[str], parameters: Sequence[nn.Parameter]) -> tuple[Layer, ...]:
    layers, start, step = [], 0, _step_of(parameters)
    for name, parameter in zip(order, parameters, strict=True):
        rows = max(parameter.shape[0], 1) if parameter.dim() else 1
        layers.append(Layer(name, start, start + parameter.numel(), parameter.dim(), rows))
        start += -(-parameter.numel() // step) * step
    return tuple(layers)


def _step_of(parameters: Sequence[nn.Parameter]) -> int:
    """Elements of whose multiples a layer's start is one: 1, so that there are no gaps, but on a GPU. Of channels_last
    images cuDNN's batch normalisation fails there for parameters off 16-byte boundaries.
    """
    return ALIGNED_BYTES // parameters[0].element_size() if parameters[0].is_cuda else 1


def _form(parameter: Tensor) -> Form:
    """The parameter's own shape, and its own strides if it has a memory format, else the strides of contiguous rows."""
    if not parameter.is_contiguous() and not is_channels_last(parameter):
        return parameter.size(), torch.empty_like(parameter, memory_format=torch.contiguous_format).stride()
    return parameter.size(), parameter.stride()


def _view(flat: Tensor, layer: Layer, form: Form) -> Tensor:
    """The slice of `flat` in this form."""
    return torch.as_strided(flat, *form, flat.storage_offset() + layer.start)


def is_channels_last(tensor: Tensor) -> bool:
    """Whether it is dense with channels innermost; along its first dimension it still consists of contiguous rows."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])
