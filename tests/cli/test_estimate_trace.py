"""wirebench trace estimate: the shipped traces come out again, and a hand-counted model costs what it should."""

import sys

import pytest
import torch
from torch import nn

from tests.cli.verbs import verb
from tests.distributed.launch import PLUGINS
from wirebench.errors import UserError
from wirebench.models import build
from wirebench.simulation.roofline import PRECISIONS, of_hardware
from wirebench.simulation.trace import SHIPPED, load
from wirebench.traces.estimate import GPUS, Gpu, estimate, model_options, shipped
from wirebench.traces.inputs import images
from wirebench.utils.package import TOP

main = verb("trace", "estimate")

UNIT = Gpu("one of each per second", "unit", 1e-12, 1e-9, "made up", efficiency=1.0)
ONLY_FLOPS, ONLY_BYTES = UNIT._replace(memory_gbs=1e30), UNIT._replace(peak_tflops=1e30)


def test_names_of_hardware_mean_a_gpu():
    """As traces and the driver have them."""
    assert of_hardware("NVIDIA A100-SXM4-40GB") is GPUS["a100"] and of_hardware("NVIDIA A100 80GB PCIe") is None
    assert of_hardware("NVIDIA A100-SXM4-80GB") is GPUS["a100_80gb"]
    assert of_hardware("NVIDIA Tesla K80") is of_hardware("Tesla K80 (assumed)") is GPUS["k80"]
    assert all(of_hardware(gpu.label) is gpu for gpu in GPUS.values())
    assert of_hardware("NVIDIA RTX A1000") is None and of_hardware("NVIDIA GH200 480GB") is None
    assert of_hardware("NVIDIA H100 80GB HBM3") is GPUS["h100"] and of_hardware("Tesla T4") is GPUS["t4"]
    assert of_hardware("NVIDIA H100 PCIe") is None and of_hardware("NVIDIA A10G") is None, "they have other rates"
    assert of_hardware("NVIDIA GeForce RTX 4090 Laptop GPU") is None and of_hardware("NVIDIA L40") is None
    assert of_hardware("AMD Instinct MI300X OAM") is GPUS["mi300x"] and of_hardware("AMD EPYC, 1 threads") is None


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
ODD = '''
import torch
from torch import nn
from estimated.mine import Mine


class Reads(Mine):
    """Reads a number to be built."""

    def __init__(self, num_classes, image_shape):
        assert torch.arange(3).sum().item() == 3
        super().__init__(num_classes, image_shape)


class Copies(Mine):
    """Has a layer that is copied."""

    def __init__(self, num_classes, image_shape):
        super().__init__(num_classes, image_shape)
        layer = nn.TransformerEncoderLayer(5, 1, 8, dropout=0.0, batch_first=True)
        self.middle = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, images):
        return self.second(self.middle(self.first(images.flatten(1))[:, None])[:, 0])


class Frozen(Mine):
    """Learns its second layer only."""

    def __init__(self, num_classes, image_shape):
        super().__init__(num_classes, image_shape)
        self.first.requires_grad_(False)


class Normalises(Mine):
    def __init__(self, num_classes, image_shape):
        super().__init__(num_classes, image_shape)
        self.first = nn.Sequential(self.first, nn.BatchNorm1d(5))


class LearnsNothing(Mine):
    def __init__(self, num_classes, image_shape):
        super().__init__(num_classes, image_shape)
        self.requires_grad_(False)


class Lazy(Mine):
    def __init__(self, num_classes, image_shape):
        super().__init__(num_classes, image_shape)
        self.first = nn.LazyLinear(5)


class Decides(Mine):
    def forward(self, images):
        hidden = self.first(images.flatten(1))
        return self.second(-hidden if hidden.sum() > 0 else hidden)


class Breaks(nn.Module):
    def __init__(self, num_classes, image_shape):
        raise KeyError("nothing")
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "estimated").mkdir()
    (tmp_path / "estimated" / "mine.py").write_text(MINE)
    (tmp_path / "estimated" / "odd.py").write_text(ODD)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "estimated.mine"
    for name in ("estimated.mine", "estimated.odd", "estimated"):
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


ESTIMATED = [
    pytest.param(path.stem, marks=[] if path.stem == "resnet50_v100" else pytest.mark.slow)
    for path in sorted(SHIPPED.glob("*.json"))
    if load(path).source.startswith("wirebench trace estimate")
]


@pytest.mark.parametrize("name", ESTIMATED)
def test_a_shipped_estimate_is_what_would_be_made(name):
    """Of the version of PyTorch that made it, to the digit; for another it is no stand-in."""
    known = load(SHIPPED / f"{name}.json")
    described, pixels, classes = known.model.split(", ")
    model, *words = described.split(" ")
    gpu = next(each for each in GPUS.values() if each.label == known.hardware)
    given = images(known.batch_size, int(pixels.rpartition("x")[2]), int(classes.split()[0]))
    asked = model, model_options(words), gpu, given, name
    same = torch.__version__.partition("+")[0] == known.torch
    assert shipped(*asked) == (known if same else None)
    if same:
        assert estimate(*asked) == known
    assert shipped(*asked[:3], images(known.batch_size + 1, given.shape[-1], given.num_classes), name) is None
    assert shipped(model, {"depth": 8}, gpu, given, name) is None
    assert shipped(*asked[:2], gpu._replace(memory_gbs=1.0), given, name) is None
    assert shipped(*asked, "tf32") is None


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
    trace = estimate(mine, {}, ONLY_FLOPS, images(4, 3, 7), "mine")
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
    cost = estimate(mine, {}, ONLY_BYTES, images(4, 3, 7), "mine")
    monkeypatch.setattr(torch.Tensor, "relu", lambda tensor: tensor)
    without = estimate(mine, {}, ONLY_BYTES, images(4, 3, 7), "mine")
    grown = {
        new.name.partition(".")[0]
        for new, old in zip(cost.layers, without.layers, strict=True)
        if new.forward_seconds > old.forward_seconds or new.backward_seconds > old.backward_seconds
    }
    assert grown == {"first"}
    assert cost.forward_seconds - without.forward_seconds == 2 * 4 * 4 * 5  # read and written, 4 images, 5 floats


@pytest.mark.parametrize("name", GPUS)
def test_rates_of_every_gpu_stand_in_a_sane_ratio(name):
    """A dense rate taken for one of sparse matrices, or a bandwidth in other units, would be out of these."""
    gpu = GPUS[name]
    assert gpu.source and 5 < 1e3 * gpu.peak_tflops / gpu.memory_gbs < 120, "operations for every byte"
    assert (gpu.tf32_tflops is None) == (gpu.bf16_tflops is None)
    if gpu.tf32_tflops and gpu.bf16_tflops:
        assert gpu.bf16_tflops / gpu.tf32_tflops == pytest.approx(2, rel=0.02), "half of the bits, twice the rate"
        least = 0.99 if "GeForce" in gpu.label else 1.9  # cards for games multiply with sums in fp32 half as fast
        assert least < gpu.tf32_tflops / gpu.peak_tflops < 16
    assert [gpu.peak(each) for each in PRECISIONS[:3]] == [gpu.peak_tflops, gpu.tf32_tflops, gpu.bf16_tflops]
    assert gpu.peak("fp16") == (gpu.bf16_tflops or gpu.fp16_tflops) and not (gpu.bf16_tflops and gpu.fp16_tflops)
    assert gpu.nvlink_gbs is None or 64 < gpu.nvlink_gbs < gpu.memory_gbs, "faster than PCIe, slower than memory"


def test_the_docs_have_the_rates_and_their_sources():
    table = (TOP / "docs" / "traces.md").read_text(encoding="utf-8")
    for name, gpu in GPUS.items():
        rates = [f"{rate:g}" if rate else "" for rate in (*map(gpu.peak, PRECISIONS), gpu.memory_gbs)]
        row = " | ".join([f"`{name}`", gpu.label, *rates, gpu.source])
        assert f"| {row} |".replace("|  |", "| |").replace("|  |", "| |") in table


@pytest.mark.slow
def test_tensor_cores_make_an_estimate_shorter(tmp_path):
    """tf32 changes the rate of products alone; bf16 moves fewer bytes as well, but parameters stay whole."""
    traces = {}
    for precision in PRECISIONS:
        path = tmp_path / f"{precision}.json"
        words = ["--model", "resnet18", "--gpu", "h100", "--batch", "8", "--precision", precision]
        assert main([*words, "--out", str(path)]) == 0
        traces[precision] = load(path)
    seconds = {name: trace.forward_seconds + trace.backward_seconds for name, trace in traces.items()}
    assert seconds["bf16"] < seconds["tf32"] < seconds["fp32"]
    fp32, bf16 = GPUS["h100"].peak("fp32"), GPUS["h100"].peak("bf16")
    assert fp32 and bf16 and seconds["fp32"] / seconds["bf16"] < bf16 / fp32
    assert len({trace.numel for trace in traces.values()}) == 1
    said = {"fp32": "(0.5 x 67 TFLOPS)", "tf32": "(0.5 x 494.5 TFLOPS)", "bf16": "bf16 by autocast;"}
    said["fp16"] = "fp16 by autocast;"
    assert all(said[each] in traces[each].source for each in PRECISIONS)
    assert seconds["fp16"] == pytest.approx(seconds["bf16"], rel=0.02), "as many bits, and the same rate"
    only_bytes = ONLY_BYTES._replace(tf32_tflops=1e30, bf16_tflops=1e30)
    moved = [estimate("toy", {}, only_bytes, images(8, 8, 10), "toy", each).forward_seconds for each in PRECISIONS]
    assert moved[0] == moved[1]


def test_a_model_of_tokens_has_samples(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(PLUGINS))
    words = ["--model", "mine.letters.Successor", "--gpu", "h100", "--batch", "64"]
    data = ["--data", "mine.letters.Counting"]
    path = tmp_path / "tokens.json"
    assert main([*words, *data, "--precision", "bf16", "--out", str(path)]) == 0
    made = load(path)
    assert (made.unit, made.batch_size, made.model) == (
        "samples", 64, "mine.letters.Successor, mine.letters.Counting, 11 classes, 384 tokens a step",
    )  # fmt: skip
    assert {layer.name for layer in made.layers} == {"embedding.weight", "head.weight", "head.bias"}
    for more, problem in (
        ([], "--image-size: 'mine.letters.Successor' takes no"),
        (["--data", "digits"], "--data: 'mine"),
    ):
        assert main([*words, *more]) == 2
        assert capsys.readouterr().err.startswith(f"wirebench trace estimate: {problem}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("LearnsNothing", "'estimated.odd.LearnsNothing' has no parameter that learns"),
        ("Lazy", "first.weight has no shape yet"),
        ("Decides", "'estimated.odd.Decides' reads a number in its forward pass"),
        ("Breaks", "'estimated.odd.Breaks' cannot be built: KeyError: 'nothing'"),
    ],
)
def test_a_model_that_cannot_be_estimated_is_named_with_the_cause(name, words, mine, capsys):
    assert main(["--model", f"estimated.odd.{name}", "--gpu", "k80", "--batch", "2", "--image-size", "8"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"wirebench trace estimate: --model: {words}") and told.count("\n") == 1


@pytest.mark.parametrize(("kind", "layers"), [("Reads", 3), ("Copies", 15), ("Frozen", 1), ("Normalises", 5)])
def test_models_that_need_numbers_to_be_built_or_do_not_learn_whole(mine, kind, layers):
    whole = estimate(mine, {}, UNIT, images(4, 3, 7), "mine")
    trace = estimate(f"estimated.odd.{kind}", {}, UNIT, images(4, 3, 7), "mine")
    assert len(trace.layers) == layers
    if kind == "Reads":
        assert trace.layers == whole.layers
    assert (trace.forward_seconds > 0) and (trace.backward_seconds > 0)


def test_a_batch_that_cannot_be_normalised_is_one_line(mine):
    with pytest.raises(UserError, match=r"^--batch: 'estimated.odd.Normalises' normalises .* needs more than 1$"):
        estimate("estimated.odd.Normalises", {}, UNIT, images(1, 3, 7), "mine")


def test_parameters_without_a_gradient_are_left_out():
    trace = estimate("toy", {"unused": True}, GPUS["k80"], images(2, 8, 10), "toy")
    assert "unused" not in {layer.name for layer in trace.layers}
    assert isinstance(build("toy", 10, (3, 8, 8), unused=True).unused, nn.Parameter)
