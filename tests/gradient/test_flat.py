"""The flat gradient: views in backward order, strides kept, buckets without copies; and that order itself."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import lay_out
from wirebench import models
from wirebench.errors import UserError
from wirebench.gradient.flat import ALIGNED_BYTES, BackwardOrder, Bucket, FlatGradient, Layer, _step_of, backward_order
from wirebench.training.loss import cross_entropy


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


ORDER = ["2.weight", "2.bias", "0.weight", "0.bias"]


def image_loss(classes: int, shape: tuple[int, int, int]) -> Callable[[nn.Module], Tensor]:
    return lambda model: cross_entropy(model(torch.zeros(2, *shape)), torch.zeros(2, dtype=torch.int64))


def test_layers_follow_each_other_in_the_given_order():
    flat = FlatGradient(mlp(), ORDER)
    assert flat.layers == (
        Layer("2.weight", 0, 6, 2, rows=2),
        Layer("2.bias", 6, 8, 1, rows=2),
        Layer("0.weight", 8, 20, 2, rows=3),
        Layer("0.bias", 20, 23, 1, rows=3),
    )
    assert [layer.numel for layer in flat.layers] == [6, 2, 12, 3]
    assert flat.grad.shape == (23,)


def test_parameters_keep_their_storages_and_are_gathered_and_set():
    model, twin = mlp(), mlp()
    places = [parameter.data_ptr() for parameter in model.parameters()]
    flat = FlatGradient(model, ORDER)
    weights = flat.gather_weights()
    assert weights.tolist() == [value for name in ORDER for value in twin.get_parameter(name).flatten().tolist()]
    flat.set_weights(weights + 1)
    assert torch.equal(flat.gather_weights(), weights + 1)
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    some = flat.gather_weights(torch.zeros(23), slice(1, 2))
    assert torch.equal(some[6:8], weights[6:8] + 1) and not some[:6].any() and not some[8:].any()


def test_changes_by_a_loop_are_told_from_those_of_exchanges():
    flat = FlatGradient(mlp(), ORDER)
    before = flat.views[0]._version
    flat.bucket(0, range(4)).grad.mul_(2)
    assert flat.views[0]._version == before
    flat.views[2].mul_(2)
    assert flat.views[0]._version > before


def test_views_are_the_layers_gradients():
    flat = FlatGradient(mlp(), ORDER)
    flat.grad.copy_(torch.arange(23))
    for layer, view, parameter in zip(flat.layers, flat.views, flat.parameters, strict=True):
        assert view.shape == parameter.shape
        assert view.reshape(-1).tolist() == list(range(layer.start, layer.stop))


@pytest.mark.parametrize(
    ("make", "layout"), [(nn.Conv2d, torch.channels_last), (nn.Conv3d, torch.channels_last_3d)], ids=["2d", "3d"]
)
def test_channels_last_is_kept_inside_the_slice(make, layout):
    model = make(3, 4, 3).to(memory_format=layout)
    strides, numel = model.weight.stride(), model.weight.numel()
    flat = FlatGradient(model, ["bias", "weight"])
    assert model.weight.stride() == flat.views[1].stride() == strides
    assert not model.weight.is_contiguous()
    weights = flat.gather_weights()
    assert torch.equal(weights[4:].reshape(4, -1, 3), model.weight.movedim(1, -1).reshape(4, -1, 3)), "rows stay rows"
    flat.views[1].copy_(torch.arange(numel).reshape(model.weight.shape))
    assert flat.grad[:4].tolist() == [0.0] * 4, "the bias's gradient is not touched"
    assert sorted(flat.grad[4:].tolist()) == list(range(numel)), "and the weight's slice is filled"


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(3, 2), lambda: nn.Conv2d(2, 3, 1), lambda: nn.Conv3d(2, 2, 2), lambda: nn.LayerNorm(4)]
)
@pytest.mark.parametrize("memory_format", [torch.preserve_format, torch.channels_last])
def test_gradients_have_their_parameters_strides(make, memory_format):
    model = make()
    if memory_format == torch.channels_last and any(p.dim() == 4 for p in model.parameters()):
        model = model.to(memory_format=memory_format)
    flat = FlatGradient(model, [name for name, _ in model.named_parameters()])
    assert [view.stride() for view in flat.views] == [parameter.stride() for parameter in flat.parameters]


def test_parameters_that_do_not_train_stay_out():
    model = mlp()
    frozen = model.get_parameter("0.weight").requires_grad_(False)
    before = frozen.data_ptr()
    flat = FlatGradient(model, ["2.weight", "2.bias", "0.bias"])
    assert flat.grad.numel() == 11
    assert frozen.data_ptr() == before


@pytest.mark.parametrize("order", [ORDER[:3], [*ORDER, "3.bias"], [*ORDER[:3], "2.bias"]])
def test_the_order_names_every_parameter_once(order):
    with pytest.raises(AssertionError, match="every trainable parameter once"):
        FlatGradient(mlp(), order)


def half_on_meta() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, device="meta"))


def with_sparse_gradient() -> nn.Module:
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2))
    model(torch.arange(3)).sum().backward()
    return model


def complex_bias() -> nn.Module:
    model = nn.Linear(4, 2)
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    return model


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.ReLU(), "it has no trainable parameter"),
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).double()),
            r"must be of one dtype, but it has float32 \(0.weight\), float64 \(1.weight\)",
        ),
        (complex_bias, "phase must be of real numbers, not of complex64"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "0.weight has no shape yet"),
        (half_on_meta, r"of one device, but it has cpu \(0.weight\), meta \(1.weight\)"),
        (with_sparse_gradient, "the gradient of 0.weight is sparse"),
    ],
)
def test_a_model_without_a_flat_gradient_is_refused_by_the_name_of_a_parameter(make, said):
    model = make()
    with pytest.raises(UserError, match=f"^model: .*{said}[^\n]*$"):
        FlatGradient(model, [name for name, p in model.named_parameters() if p.requires_grad])


def test_a_trial_pass_shows_gradients_that_are_sparse():
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2))
    with pytest.raises(UserError, match=r"the gradient of 0\.weight is sparse"):
        backward_order(model, lambda probe: probe(torch.arange(3)).sum())


@pytest.mark.parametrize(("dtype", "elements"), [(torch.float32, 4), (torch.bfloat16, 8)])
def test_on_a_gpu_layers_start_on_boundaries(dtype: torch.dtype, elements: int) -> None:
    there: Any = SimpleNamespace(is_cuda=True, element_size=lambda: dtype.itemsize)
    assert _step_of([there]) == elements == ALIGNED_BYTES / dtype.itemsize
    assert _step_of([nn.Parameter(torch.ones(1, dtype=dtype))]) == 1


def test_layers_without_elements_are_laid_out_and_take_no_room():
    model = nn.Linear(4, 2)
    model.nothing, model.scale = nn.Parameter(torch.empty(0, 4)), nn.Parameter(torch.tensor(2.0))
    flat = FlatGradient(model, ["nothing", "weight", "scale", "bias"])
    assert [(layer.start, layer.stop, layer.rows) for layer in flat.layers] == [
        (0, 0, 1),
        (0, 8, 2),
        (8, 9, 1),
        (9, 11, 2),
    ]
    assert model.nothing.shape == flat.views[0].shape == (0, 4) and model.scale.item() == 2
    assert flat.bucket(0, range(1)).grad.numel() == 0


def test_a_bucket_is_a_slice():
    flat = FlatGradient(mlp(), ORDER)
    bucket = flat.bucket(5, range(1, 3))
    assert (bucket.index, bucket.start, bucket.stop) == (5, 6, 20)
    assert [layer.name for layer in bucket.layers] == ["2.bias", "0.weight"]
    assert bucket.model == flat.layers
    assert bucket.model_numel == 23
    bucket.grad.fill_(1)
    assert flat.grad.nonzero().flatten().tolist() == list(range(6, 20))
    assert bucket.param.numel() == 0
    assert torch.equal(flat.with_weights(bucket).param, flat.gather_weights()[6:20])


def test_the_digest_tells_layouts_apart():
    first = FlatGradient(mlp(), ORDER).digest()
    assert first == FlatGradient(mlp(), ORDER).digest()
    assert first != FlatGradient(mlp(), ORDER[::-1]).digest()
    assert first != FlatGradient(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3)), ORDER).digest()


class Crossed(nn.Module):
    """Registers its layers in another order than it uses them in, and one that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(2, 2, bias=False)
        self.never = nn.Linear(2, 2)
        self.shared = nn.Linear(2, 2, bias=False)
        self.frozen = nn.Linear(2, 2, bias=False).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.frozen(self.shared(self.shared(x).relu())))


def test_the_order_does_not_come_from_registration_and_leaves_no_hook():
    model = Crossed()
    assert backward_order(model, lambda m: m(torch.ones(1, 2)).sum()) == BackwardOrder(
        ["last.weight", "shared.weight", "never.bias", "never.weight"], ["never.weight", "never.bias"]
    )
    assert not model.last.weight._post_accumulate_grad_hooks


def test_a_models_auxiliary_heads_take_their_place():
    shape = (3, 32, 32)
    torch.manual_seed(0)
    model = models.build("googlenet", 5, shape)
    names, unused = backward_order(model, image_loss(5, shape))
    assert unused == []
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    place = {name: position for position, name in enumerate(names)}
    # Each head branches off between two blocks, so it is done before the block that feeds it.
    assert place["aux2.conv.conv.weight"] < place["inception4d.branch1.conv.weight"]
    assert place["aux1.conv.conv.weight"] < place["inception4a.branch1.conv.weight"]
    assert place["fc.weight"] < place["inception5b.branch1.conv.weight"] < place["conv1.conv.weight"]


def test_a_bucket_is_written_into_and_not_replaced():
    layers = tuple(lay_out([(4,)]))
    bucket = Bucket(0, torch.ones(4), torch.empty(0), layers)
    flat = bucket.grad
    bucket.grad += 1  # in place
    assert bucket.grad is flat
    assert flat.tolist() == [2.0] * 4
    with pytest.raises(AttributeError, match=r"^bucket\.grad: cannot be replaced; write into it"):
        bucket.grad = bucket.grad + 1
