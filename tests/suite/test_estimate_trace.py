"""wirebench trace estimate: the shipped traces come out again, and a hand-counted model costs what it should."""

import sys

import pytest
import torch
from torch import nn

from models import build
from suite.traces.estimate import GPUS, Gpu, estimate
from tests.suite.verbs import verb
from wirebench.simulation.roofline import of_hardware
from wirebench.simulation.trace import SHIPPED, load

main = verb("trace", "estimate")

UNIT = Gpu("one of each per second", "unit", 1e-12, 1e-9, "made up", efficiency=1.0)
ONLY_FLOPS, ONLY_BYTES = UNIT._replace(memory_gbs=1e30), UNIT._replace(peak_tflops=1e30)


def test_names_of_hardware_mean_a_gpu():
    """As traces and the driver have them."""
    assert of_hardware("NVIDIA A100-SXM4-40GB") is GPUS["a100"]
    assert of_hardware("NVIDIA Tesla K80") is of_hardware("Tesla K80 (assumed)") is GPUS["k80"]
    assert all(of_hardware(gpu.label) is gpu for gpu in GPUS.values())
    assert of_hardware("NVIDIA RTX A1000") is None and of_hardware("NVIDIA GH200 480GB") is None
    assert of_hardware("NVIDIA L40S") is None and of_hardware("AMD EPYC, 1 threads") is None


MINE = '''
from torch import nn


class Mine(nn.Module):
    """Two linear layers, the second without a bias."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.first = nn.Linear(image_shape[0] * image_shape[1] * image_shape[2], 5)
        self.second = nn.Linear(5, num_classes, bias=False)

    def forward(self, images):
        return self.second(self.first(images.flatten(1)).relu())
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "estimated").mkdir()
    (tmp_path / "estimated" / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "estimated.mine"
    for name in ("estimated.mine", "estimated"):
        sys.modules.pop(name, None)


def test_resnet20_comes_out_as_shipped(tmp_path, capsys):
    shipped = load(SHIPPED / "resnet20_gtx1080ti.json")
    path = tmp_path / "resnet20_gtx1080ti.json"
    command = "--model resnet_cifar --option depth=20 --gpu gtx1080ti --batch 128 --image-size 32 --classes 10"
    assert main([*command.split(), "--out", str(path)]) == 0
    made = load(path)
    assert [(x.name, x.shape) for x in made.layers] == [(x.name, x.shape) for x in shipped.layers]
    for key in ("name", "model", "hardware", "batch_size", "estimate", "source"):
        assert getattr(made, key) == getattr(shipped, key)
    # Other versions of PyTorch may cut a few operations differently.
    assert made.forward_seconds == pytest.approx(shipped.forward_seconds, rel=0.02)
    assert made.backward_seconds == pytest.approx(shipped.backward_seconds, rel=0.02)
    assert (
        "269,722 parameters, forward 2.93 ms, backward 5.24 ms at batch size 128 (estimated" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("name", "model", "options", "classes", "images_per_second"),
    [
        ("vgg16_cifar_gtx1080ti", "vgg_cifar", {"depth": 16}, 10, 2791),
        ("resnet18_gtx1080ti", "resnet18", {}, 1000, 465),
        ("resnet50_gtx1080ti", "resnet50", {}, 1000, 183),
    ],
)
def test_shipped_traces_have_the_parameters_of_their_models(name, model, options, classes, images_per_second):
    trace = load(SHIPPED / f"{name}.json")
    with torch.device("meta"):
        real = build(model, classes, (3, 224, 224), **options)
    assert {x.name: x.shape for x in trace.layers} == {k: tuple(p.shape) for k, p in real.named_parameters()}
    seconds = trace.forward_seconds + trace.backward_seconds
    assert trace.batch_size / seconds == pytest.approx(images_per_second, abs=1)


def test_flops_of_two_linear_layers_by_hand(mine):
    """2 x images x inputs x outputs for each product; the first layer's backward pass has only one."""
    trace = estimate(mine, {}, ONLY_FLOPS, 4, 3, 7, "mine")
    forward = {layer.name: layer.forward_seconds for layer in trace.layers}
    first, second = 2 * 4 * 27 * 5, 2 * 4 * 5 * 7
    assert forward["first.weight"] == pytest.approx(first, rel=1e-3)
    assert forward["second.weight"] == pytest.approx(second, rel=1e-3)
    backward = {layer.name: layer.backward_seconds for layer in trace.layers}
    assert backward["second.weight"] + backward["first.weight"] + backward["first.bias"] == pytest.approx(
        first + 2 * second, rel=1e-3
    )
    assert trace.layers[-1].name == "second.weight"  # its gradient comes first


def test_a_relu_s_bytes_go_to_the_parameters_before_it(mine, monkeypatch):
    """Of the linear layer before it: its forward time grows, and so does the backward time until its gradients."""
    cost = estimate(mine, {}, ONLY_BYTES, 4, 3, 7, "mine")
    monkeypatch.setattr(torch.Tensor, "relu", lambda tensor: tensor)
    without = estimate(mine, {}, ONLY_BYTES, 4, 3, 7, "mine")
    grown = {
        new.name.partition(".")[0]
        for new, old in zip(cost.layers, without.layers, strict=True)
        if new.forward_seconds > old.forward_seconds or new.backward_seconds > old.backward_seconds
    }
    assert grown == {"first"}
    assert cost.forward_seconds - without.forward_seconds == 2 * 4 * 4 * 5  # read and written, 4 images, 5 floats


def test_the_roofline_takes_the_larger_of_two_times():
    gpu = GPUS["v100"]
    assert gpu.seconds(15.7e12, 1) == pytest.approx(2)  # at half of the peak
    assert gpu.seconds(1, 900e9) == pytest.approx(1)


def test_every_gpu_is_ordered_as_its_generations():
    order = [GPUS[name] for name in ("k80", "gtx1080ti", "v100", "a100", "h200")]
    assert [gpu.peak_tflops for gpu in order] == sorted(gpu.peak_tflops for gpu in order)
    assert [gpu.memory_gbs for gpu in order] == sorted(gpu.memory_gbs for gpu in order)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (["--gpu", "gtx1080"], "--gpu: no GPU 'gtx1080'; did you mean 'gtx1080ti'?"),
        (["--batch", "0"], "--batch: needs at least 1, got 0"),
        (["--image-size", "0"], "--image-size: needs at least 1, got 0"),
        (["--classes", "1"], "--classes: needs at least 2, got 1"),
        (["--model", "toyy"], "model.name: no model 'toyy'; did you mean 'toy'?"),
        (["--model", "replay"], "--model: it computes nothing that could be estimated"),
        (["--option", "hidden"], "--option: needs KEY=VALUE"),
        (["--option", "hidden=red"], "model.hidden: needs a whole number, got 'red'"),
        (["--out", "/nowhere/at/all.json"], "/nowhere/at/all.json: No such file"),
    ],
)
def test_mistakes_get_one_line(changed, words, capsys):
    assert main(["--model", "toy", "--gpu", "k80", "--batch", "2", "--image-size", "8", *changed]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"wirebench trace estimate: {words}") and told.count("\n") == 1


def test_parameters_without_a_gradient_are_left_out():
    trace = estimate("toy", {"unused": True}, GPUS["k80"], 2, 8, 10, "toy")
    assert "unused" not in {layer.name for layer in trace.layers}
    assert isinstance(build("toy", 10, (3, 8, 8), unused=True).unused, nn.Parameter)


def test_help_says_what_is_assumed(capsys):
    assert main(["--help"]) == 0
    assert "memory bandwidth" in capsys.readouterr().out
