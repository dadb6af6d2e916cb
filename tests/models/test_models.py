"""Every model: its published size, its options, the images it takes, and that it trains."""

import pytest
import torch
import torchvision
from torch import nn
from torch.optim import SGD

from tests import own
from wirebench import models
from wirebench.errors import UserError
from wirebench.training.loss import cross_entropy

CIFAR, IMAGENET = (3, 32, 32), (3, 224, 224)

# name, options, image shape, parameters with 10 and with 1000 classes
COUNTS = [
    ("resnet_cifar", {}, CIFAR, 269_722, 334_072),
    ("resnet_cifar", {"depth": 8}, (3, 16, 16), 75_290, 139_640),
    ("resnet_cifar", {"depth": 8, "width": 8}, (3, 16, 16), 19_218, 51_888),
    ("resnet_cifar", {"depth": 110}, CIFAR, 1_727_962, 1_792_312),
    ("resnet101_cifar", {}, CIFAR, 42_512_970, 44_541_480),
    ("vgg_cifar", {"depth": 11}, CIFAR, 9_231_114, 9_738_984),
    ("vgg_cifar", {"depth": 19}, CIFAR, 20_040_522, 20_548_392),
    ("lenet", {}, (1, 8, 8), 21_386, 105_536),
    ("lenet", {}, CIFAR, 136_886, 221_036),
    ("toy", {}, (1, 8, 8), 410, 33_080),
    ("toy", {"hidden": 2, "unused": True}, (1, 8, 8), 113, 9_023),
    ("googlenet", {"aux_heads": False}, IMAGENET, 5_610_154, 6_624_904),
]


def _meta(name, image_shape, num_classes=10, **options):
    """The model without its numbers: shapes only, built in milliseconds."""
    with torch.device("meta"):
        return models.build(name, num_classes, image_shape, **options)


def _batch(image_shape, images=4, num_classes=10):
    generator = torch.Generator().manual_seed(7)
    labels = torch.randint(num_classes, (images,), generator=generator)
    return torch.randn(images, *image_shape, generator=generator), labels


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "options", "image_shape", "with_10", "with_1000"), COUNTS)
def test_parameter_counts(name, options, image_shape, with_10, with_1000):
    for num_classes, expected in ((10, with_10), (1000, with_1000)):
        model = _meta(name, image_shape, num_classes, **options)
        assert sum(p.numel() for p in model.parameters()) == expected


TORCHVISION = ("alexnet", "vgg16", "resnet18", "resnet50", "resnet101", "resnet152", "googlenet")


def test_every_model_is_counted():
    elsewhere = {"replay", "gpt"}  # a trace's; test_gpt.py
    assert {row[0] for row in COUNTS} | set(TORCHVISION) == set(models.available()) - elsewhere


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TORCHVISION)
def test_imagenet_models_are_torchvision_s(name):
    """A state dictionary of torchvision's builder fits, so its published weights and ours are interchangeable."""
    more = {"init_weights": True} if name == "googlenet" else {}
    with torch.device("meta"):
        theirs = getattr(torchvision.models, name)(weights=None, **more)
    ours = _meta(name, IMAGENET, 1000)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in theirs.state_dict().items()}


SMALL = [
    ("resnet_cifar", {}, (3, 8, 8)),
    ("resnet_cifar", {}, (2, 9, 7)),
    ("vgg_cifar", {"depth": 11}, CIFAR),
    ("lenet", {}, (1, 8, 8)),
    ("lenet", {}, (2, 4, 5)),
    ("toy", {}, (1, 8, 8)),
    ("toy", {"hidden": 1}, (2, 2, 5)),
    ("googlenet", {}, (3, 15, 15)),
]
LARGE = [
    ("resnet_cifar", {"depth": 110}, (3, 8, 8)),
    ("resnet101_cifar", {}, (1, 8, 8)),
    ("vgg_cifar", {}, (1, 33, 64)),
    ("vgg_cifar", {"depth": 19}, CIFAR),
]
LEARNS = [
    row for row in SMALL if (row[0], row[2]) in {("toy", (1, 8, 8)), ("lenet", (1, 8, 8)), ("resnet_cifar", (3, 8, 8))}
]
if own.plugin("model"):
    (_name,) = own.names("model", ())
    SMALL, LARGE = [(_name, own.options("model"), CIFAR)], []
    LEARNS = SMALL


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "options", "image_shape"), LARGE or SMALL)
def test_the_layers_fit_each_other(name, options, image_shape):
    """Without numbers, so for large models too: every parameter takes part, and every image has its logits."""
    model = _meta(name, image_shape, **options)
    images, labels = (each.to("meta") for each in _batch(image_shape))
    cross_entropy(model(images), labels).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.eval()(images).shape == (4, 10)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "options", "image_shape"), SMALL)
def test_forward_and_backward(name, options, image_shape):
    torch.manual_seed(0)
    model = models.build(name, 10, image_shape, **options)
    images, labels = _batch(image_shape)
    loss = cross_entropy(model(images), labels)
    loss.backward()
    assert 0.5 < loss.item() < 20  # chance is 2.3 and, with two auxiliary heads, 3.7
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
    model.eval()
    with torch.no_grad():
        assert model(images).shape == (4, 10)
        assert torch.allclose(model(images[:1]), model(images)[:1], atol=1e-4)  # an image does not see its batch


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "options", "image_shape"), LEARNS)
def test_learns_a_batch(name, options, image_shape):
    torch.manual_seed(0)
    model = models.build(name, 10, image_shape, **options)
    images, labels = _batch(image_shape, images=8)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", ["resnet_cifar", "vgg_cifar", "lenet", "toy"])
def test_the_global_seed_decides_the_weights(name):
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(next(models.build(name, 10, CIFAR).parameters()).detach())
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_kaiming_deviation():
    torch.manual_seed(0)
    model = models.build("vgg_cifar", 10, CIFAR)
    widest = max((m for m in model.modules() if isinstance(m, nn.Conv2d)), key=lambda m: m.weight.numel())
    assert widest.weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert widest.bias is not None and not widest.bias.any()


def test_shortcut_is_strided_slice_and_zero_channels():
    block = models.build("resnet_cifar", 10, CIFAR).get_submodule("stages.1.0")  # 16 -> 32 channels, stride 2
    nn.init.zeros_(block.get_parameter("norm2.weight"))  # leaves the shortcut alone
    x = torch.rand(2, 16, 7, 8)
    out = block(x)
    assert torch.equal(out[:, :16], x[:, :, ::2, ::2])
    assert out.shape == (2, 32, 4, 4) and not out[:, 16:].any()


def test_toy_s_unused_parameter_gets_no_gradient():
    model = models.build("toy", 10, (1, 8, 8), unused=True)
    images, labels = _batch((1, 8, 8))
    cross_entropy(model(images), labels).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None]
    assert without == ["unused"]
    assert "unused" not in dict(models.build("toy", 10, (1, 8, 8)).named_parameters())


def test_googlenet_returns_its_auxiliary_logits_only_in_training():
    images, _ = _batch((3, 32, 32), images=2)
    logits, auxiliary = _meta("googlenet", CIFAR)(images.to("meta"))
    assert logits.shape == (2, 10) and [head.shape for head in auxiliary] == [(2, 10), (2, 10)]
    assert _meta("googlenet", CIFAR).eval()(images.to("meta")).shape == (2, 10)
    assert _meta("googlenet", CIFAR, aux_heads=False)(images.to("meta")).shape == (2, 10)


@pytest.mark.parametrize(("name", "least"), [("alexnet", 63), ("vgg16", 32), ("vgg_cifar", 32), ("googlenet", 15)])
def test_the_smallest_image_that_fits(name, least):
    model = _meta(name, (3, least, least))
    images = torch.zeros(2, 3, least, least, device="meta")
    assert model.eval()(images).shape == (2, 10)
    with pytest.raises((RuntimeError, ValueError)):  # the check refuses nothing that would have worked
        model(images[:, :, 1:, 1:])
    with pytest.raises(UserError, match=rf"{name} takes .* at least {least}x{least} pixels.*3x{least - 1}x{least}"):
        _meta(name, (3, least - 1, least))
