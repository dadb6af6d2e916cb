"""Kernels of chosen entries equal their twins; on the CPU in Triton's interpreter."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import DEVICES, answer_all, both, lay_out
from wirebench import compressors
from wirebench.compressors import kernels
from wirebench.compressors.common.feedback import Feedback
from wirebench.compressors.common.wrappers import DenseBelow
from wirebench.compressors.sparse import thresholds
from wirebench.compressors.sparse.base import average_of, taken
from wirebench.compressors.sparse.encoding import SparseCode, Values
from wirebench.compressors.sparse.places import values_at, write_average
from wirebench.compressors.sparse.regions import regions, split
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.error_memory import RESIDUAL, VELOCITY
from wirebench.gradient.flat import Bucket

pytest.importorskip("triton", reason="needs Triton: pip install triton")
from tests.compressors.kernels.at_once import at_once
from wirebench.compressors.kernels import entries, region_messages, selection, together
from wirebench.compressors.kernels import momentum as momentum_module

pytestmark = pytest.mark.sampled(12)

devices = pytest.mark.parametrize("device", DEVICES)
KINDS: tuple[Values, ...] = ("fp32", "fp16", "bf16")
HARD = [0.0, -0.0, 1e-41, -3e-8, 65519.0, -1e30, math.inf, -math.inf, math.nan, 1.0009765, 6.1e-5, 1 / 3]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Vectors reach over several programs, and programs over several tiles."""
    for module in (entries, selection, region_messages):
        monkeypatch.setattr(module, "TILE", 32)
        monkeypatch.setattr(module, "PROGRAMS", 4)
    monkeypatch.setattr(entries, "SPAN", 32)
    monkeypatch.setattr(entries, "LANES", 4)


def alike(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(other.cpu(), one, rtol=0, atol=0, equal_nan=True)


def pair(monkeypatch, device: str, call):
    """What the twin gives on the CPU, and the kernel on the device."""
    places = iter(("cpu", device))
    return both(monkeypatch, lambda: call(next(places)))


def assert_alike(monkeypatch, device: str, call) -> None:
    for one, other in zip(*pair(monkeypatch, device, call), strict=True):
        alike(one, other)


def vector(numel: int, seed: int) -> Tensor:
    x = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    x[: len(HARD)] = torch.tensor(HARD)[:numel]
    return x


def places(numel: int, count: int, seed: int) -> Tensor:
    return torch.randperm(numel, generator=torch.Generator().manual_seed(seed))[:count].sort().values


@devices
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("numel", "count"), [(1, 1), (12, 12), (12, 0), (150, 37)])
def test_what_is_taken_and_what_stays_are_the_twins(kind, numel, count, device, monkeypatch):
    def call(device: str) -> tuple[Tensor, ...]:
        feedback = Feedback(momentum=0.5)
        layers = lay_out([(numel,)])
        bucket = Bucket(0, torch.zeros(numel, device=device), torch.empty(0), layers)
        feedback.slice(bucket).copy_(vector(numel, 1))
        feedback.slice(bucket, VELOCITY).copy_(vector(numel, 2))
        message, values = taken(feedback, bucket, places(numel, count, 3).to(device), SparseCode(kind))
        number = message[4 * count :].view(SparseCode(kind).dtype).float()
        return message[: 4 * count], number, values, *(feedback.slice(bucket, name) for name in (RESIDUAL, VELOCITY))

    assert_alike(monkeypatch, device, call)


@devices
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("numel", "counts"), [(1, [1]), (1, [0, 1]), (100, [0, 0, 0]), (100, [30, 30, 30]), (100, [100, 3, 0, 41])]
)
def test_averages_of_messages_are_the_twins(kind, numel, counts, device, monkeypatch):
    """Of one length, in a row and apart, and of several lengths."""
    code = SparseCode(kind)
    made = [code.encode(places(numel, n, n + i), vector(numel, i)[:n], numel) for i, n in enumerate(counts)]

    def call(device: str) -> list[Tensor]:
        held = torch.cat(made).to(device).split([each.numel() for each in made])
        return [average_of(torch.ones(numel, device=device), [*m], code, 3) for m in (held, [h.clone() for h in held])]

    assert_alike(monkeypatch, device, call)


@devices
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sound", [True, False])
@pytest.mark.parametrize(("numel", "count"), [(1, 1), (70, 0), (150, 37)])
def test_sums_at_known_places_are_the_twins(numel, count, sound, kind, device, monkeypatch):
    """A vector that is not finite poisons all its values, and a sum that is not finite all of the average."""
    index = places(numel, count, 5)

    def call(device: str) -> list[Tensor]:
        x = vector(numel, 4).nan_to_num_(0.5, 3e4, -3e4).clamp_(-3e4, 3e4) if sound else vector(numel, 4)
        x, residual, at = x.to(device), vector(numel, 6).to(device), index.to(device)
        values = values_at(x, at, SparseCode(kind), residual)
        grad = torch.ones(numel, device=device)
        return [values.float(), residual, write_average(grad, at, values.clone(), 3)]

    assert_alike(monkeypatch, device, call)


@devices
@pytest.mark.parametrize("clip", [0.0, 2.0])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.7, False), (0.7, True), (0.0, False)])
def test_momentum_is_the_twins(momentum, nesterov, clip, device, monkeypatch):
    """One gradient is longer than the limit, one is shorter, and one is not finite."""
    monkeypatch.setattr(momentum_module, "TILE", 16)

    def call(device: str) -> list[Tensor]:
        feedback = Feedback(momentum, nesterov, clip)
        for seed, factor in ((0, 0.01), (1, 3.0), (2, 1.0)):
            grad = vector(70, seed) if seed == 2 else vector(82, seed)[12:] * factor
            bucket = Bucket(0, grad.to(device), torch.empty(0), lay_out([(5,), (65,)]))
            feedback.accumulate(bucket, ExchangeContext(0, 4))
        return [feedback.slice(bucket, name) for name in feedback.names]

    with at_once(monkeypatch, 3) if device == "cpu" else nullcontext():
        twin, mine = pair(monkeypatch, device, call)
    for one, other in zip(twin, mine, strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-6, atol=1e-6, equal_nan=True)


@devices
@pytest.mark.parametrize(
    ("name", "options"),
    [("dgc", {"nesterov": True, "density": 0.1}), ("dgc", {"density": 0.1}), ("signsgd", {}), ("none", {})],
    ids=str,
)
@pytest.mark.parametrize("shapes", [[(5,), (8, 6), (3,), (2,), (4, 9), (1,)], [(7,), (2,)]], ids=str)
def test_layers_that_go_dense_are_the_twins(name, options, shapes, device, monkeypatch):
    """With the momentum of the method inside, two ranks, three steps; also where all layers are dense."""
    monkeypatch.setattr(momentum_module, "TILE", 4)
    layers = lay_out(shapes)

    def call(device: str) -> list[Tensor]:
        methods, found = [DenseBelow(compressors.build(name, **options), 20) for _ in range(2)], []
        for step in range(3):
            grads = [vector(layers[-1].stop + 12, 2 * step + rank)[12:].to(device) for rank in range(2)]
            ranks = [Bucket(0, grad, torch.empty(0), layers) for grad in grads]
            worlds = [ExchangeContext(rank, 2, step) for rank in range(2)]
            found += answer_all([m.exchange(b, w) for m, b, w in zip(methods, ranks, worlds, strict=True)])
        return found + [state for method in methods for _, state in sorted(method.state_dict().items())]

    twin, mine = pair(monkeypatch, device, call)
    for one, other in zip(twin, mine, strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-6, atol=1e-6)


@devices
@pytest.mark.parametrize("threshold", [0.0, 1.0, 1e-42, math.inf, math.nan])
@pytest.mark.parametrize("numel", [1, 12, 213])
def test_places_above_a_threshold_are_the_twins(numel, threshold, device, monkeypatch):
    twin, mine = pair(monkeypatch, device, lambda device: thresholds.above(vector(numel, numel).to(device), threshold))
    alike(twin, mine)


@devices
def test_zeros_fill_up_what_is_chosen(device, monkeypatch):
    """So that a message's length is known before."""
    x = torch.zeros(200, device=device)
    x[[7, 90]] = torch.tensor([math.nan, 1e-42], device=device)
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    for rule in ("exact", "sampled"):
        assert thresholds.choose(x, 5, rule, ExchangeContext(0, 1)).tolist() == [0, 1, 2, 7, 90]
    assert thresholds.choose(x, 300, "exact", ExchangeContext(0, 1)).tolist() == list(range(200))


@devices
@pytest.mark.paired
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("indices", ["int32", "bitmap", "delta"])
@pytest.mark.parametrize(("numel", "bounds"), [(1, []), (150, [0, 64, 64]), (150, [150]), (700, [40, 41, 333])])
def test_messages_of_regions_are_the_twins(numel, bounds, kind, indices, device, monkeypatch):
    """What is above a threshold, by regions, some of which are empty; and what rounding cuts off."""
    code, parts = SparseCode(kind, indices), regions(bounds, numel)
    limits = [thresholds.limit_of(each) for each in (0.0, 0.5, 1.0, 2.0, 1e20, math.inf)]
    x = vector(numel, 8)
    for many in (limits, limits[2:3]):
        found = region_messages.Above(x.to(device), [0, *bounds, numel], many)
        for number, limit in enumerate(many):
            arrived = torch.zeros(1, dtype=torch.int32, device=device)
            index = torch.nonzero((x.view(torch.int32) & 0x7FFFFFFF) > limit).squeeze(1)
            exact = x.index_select(0, index)
            arriving = code.rounded(exact)
            rest = torch.zeros(numel, device=device)
            with at_once(monkeypatch, 3) if device == "cpu" and indices == "delta" else nullcontext():
                mine, values, messages = found.messages(number, code.dtype, indices, rest, arrived)
            alike(index, mine)
            alike(arriving, values)
            alike((exact - arriving).nan_to_num_(0.0, 0.0, 0.0), rest[mine])
            assert not rest.cpu().index_fill_(0, index, 0.0).any()
            for one, other, part in zip(split(index, arriving, parts, code), messages, parts, strict=True):
                size = part.stop - part.start
                head = other.numel() - one.numel() + len(code.encode_indices(code.decode(one, size)[0], size))
                alike(one[:head], other.cpu()[:head])
                for a, b in zip(code.decode(one, size), code.decode(other.cpu(), size), strict=True):
                    alike(a, b)


@devices
@pytest.mark.parametrize(
    "name",
    [
        *("topk", "gtopk", "dgc", "clt_k", "randomk", "threshold", "oktopk"),
        *(
            pytest.param(f"{name}, {indices}", marks=pytest.mark.slow)
            for name in ("gtopk", "oktopk")
            for indices in ("bitmap", "delta")
        ),
    ],
)
def test_exchanges_give_what_they_give_in_pytorch(name, device, monkeypatch):
    """Three ranks, three steps, with a gap between two layers; in the last one a rank has a NaN. Programs of a launch
    run at once where they meet.

    That rank leads in this step; it does not in one more of a method with a leader.
    """
    steps = 4 if name == "clt_k" else 3
    sizes = (selection, "TILE", 256), (selection, "PROGRAMS", 1), (entries, "SPAN", 128), (together, "TILE", 64)
    for module, size, number in sizes:
        monkeypatch.setattr(module, size, number)
    monkeypatch.setattr(entries, "LANES", 16)
    options: dict[str, Any] = {"threshold": 1.5} if name == "threshold" else {"density": 0.05}
    name, _, indices = name.partition(", ")
    if name == "oktopk":
        options |= {"values": "bf16", "indices": indices or "int32", "reevaluate_every": 2}
    if name == "gtopk":
        options |= {"values": "fp16" if indices else "fp32", "indices": indices or "int32", "conserve": bool(indices)}
    layers = (*lay_out([(1,), (5,), (67,), (12, 10)]),)
    layers += (layers[-1]._replace(start=layers[-1].stop + 7, stop=layers[-1].stop + 47, rows=1),)

    def call(device: str) -> list[Tensor]:
        methods = [compressors.build(name, dense_below=0, **options) for _ in range(3)]
        results = []
        for step in range(steps):
            generator = torch.Generator().manual_seed(step)
            buckets = []
            for rank in range(3):
                grad = torch.randn(layers[-1].stop, generator=generator) / (1 + step)
                grad[layers[-2].stop : layers[-1].start] = 0
                if rank == 2 <= step:
                    grad[11] = math.nan
                buckets.append(Bucket(0, grad.to(device), torch.empty(0), layers))
            worlds = [ExchangeContext(rank, 3, step) for rank in range(3)]
            exchanges = [m.exchange(b, w) for m, b, w in zip(methods, buckets, worlds, strict=True)]
            results += [each.clone() for each in answer_all(exchanges)]
        return [*results, *(m.memory.state_dict()[RESIDUAL] for m in methods)]

    with at_once(monkeypatch, 3) if device == "cpu" and name in ("gtopk", "oktopk") else nullcontext():
        twin, mine = pair(monkeypatch, device, call)
    for number, (one, other) in enumerate(zip(twin, mine, strict=True)):
        if 2 <= number // 3 < steps:  # With a NaN, what else is chosen is not said.
            assert not one.isfinite().all() and not other.isfinite().all()
            continue
        # What `dgc` adds to its momentum may be rounded once or twice.
        torch.testing.assert_close(other.cpu(), one, rtol=1e-6, atol=1e-6, equal_nan=True)
