"""What compressors would ask for, held against what a real exchange of the same bucket hands over."""

import functools
from collections.abc import Sequence

import pytest
import torch

from tests.helpers import LocalEngine, cut, lay_out
from wirebench import compressors
from wirebench.costmodel import played_exchange
from wirebench.costmodel.played_exchange import GRADIENT_DEVIATION, PARAMETER_DEVIATION, RequestSize
from wirebench.costmodel.request_sizes import SEARCHED, SMALL, Sizes
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.requests import Gather, Merge, Reduce, Route, Sum

SEVERAL = [(32, 16, 3, 3), (32,), (32,), (64, 32, 3, 3), (10, 128), (10,)]
SHAPES = {"several": SEVERAL, "beyond what is tried": [(500, 140), (500,)]}
EXACT = {"none", "fp16", "bf16", "powersgd", "acp_sgd", "onebit", "dion"}
CHANCE = {"dgc": 0.1, "iwp": 0.1, "gs_sgd": 0.1}
"""What these choose is a matter of chance: of a sample, of coordinates beyond a threshold, of cells that agree."""

Shapes = Sequence[tuple[int, ...]]


def make_of(name: str, **options):
    density = {"density": 0.01} if "density" in compressors.PLUGINS.options(name) else {}
    return functools.partial(compressors.build, name, **{**density, **options})


def exchanged(make, shapes: Shapes, size: int, scale: float = 1.0) -> list[tuple[str, float, float]]:
    """(kind, mean over ranks, most) of the bytes of every request of one real exchange of a bucket of noise."""
    layers, engine, exchanges = lay_out(shapes), LocalEngine(size), []
    numel = layers[-1].stop
    param = PARAMETER_DEVIATION * torch.randn(numel, generator=torch.Generator().manual_seed(99))
    for rank in range(size):
        noise = torch.randn(numel, generator=torch.Generator().manual_seed(rank))
        [bucket] = cut(scale * GRADIENT_DEVIATION * noise, layers, [range(len(layers))], param)
        method = make()
        exchanges.append(method.exchange(bucket, ExchangeContext(rank, size, method.usual_step)))
    engine.answer_all(exchanges)
    rounds = zip(*(server.take_log() for server in engine.servers), strict=True)
    return [
        (first.kind, sum(s.payload_bytes for s in served) / size, max(s.payload_bytes for s in served))
        for served in rounds
        for first in served[:1]
    ]


def check(asked: list[RequestSize], real: list[tuple[str, float, float]], off: float, few: float = 24.0) -> None:
    """The same kinds, and bytes that differ by no more than `off`, or by a few entries."""
    assert [each.kind.__name__ for each in asked] == [kind for kind, _, _ in real]
    for each, (kind, mean, most) in zip(asked, real, strict=True):
        assert each.num_bytes == pytest.approx(mean, rel=off, abs=few if off else 0.0), kind
        if kind == "Gather" and most > 2 * mean:  # some ranks have a say, the others nothing
            # Those who speak for several layers are not always the same.
            assert each.most_bytes >= (1 - off) * most - few, kind


@pytest.mark.sampled(8)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", compressors.available())
def test_sizes_are_those_of_a_real_exchange(name: str, shapes: Shapes):
    make = make_of(name)
    off = 0.0 if name in EXACT else CHANCE.get(name, 0.02)
    check(Sizes(make, 4).of(lay_out(shapes)), exchanged(make, shapes, 4), off)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("name", ["none", "topk", "gs_sgd", "clt_k", "iwp", "oktopk", "powersgd", "terngrad"])
def test_in_worlds_of_any_size(name: str, size: int):
    check(
        Sizes(make_of(name), size).of(lay_out(SEVERAL)), exchanged(make_of(name), SEVERAL, size), CHANCE.get(name, 0.02)
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [5, 7, 8, 9, 16, 33])
def test_a_vote_is_gathered_in_a_small_world_and_summed_in_a_large_one(size: int):
    for make in (make_of("lion_sign"), make_of("signsgd", form="vote", feedback=False)):
        for shapes in (SEVERAL, [(64, 32)]):
            check(Sizes(make, size).of(lay_out(shapes)), exchanged(make, shapes, size), 0.02)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("size", range(3, 18))
@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_regions_are_found_in_worlds_of_any_size(size: int, density: float):
    """What ranks that are not played would send is made up, and says nothing of their regions."""
    kinds = [each.kind for each in Sizes(make_of("oktopk", density=density), size).of(lay_out(SEVERAL))]
    assert {Route, Gather} <= {*kinds}


def test_regions_in_worlds_that_are_not_played():
    check(Sizes(make_of("oktopk"), 24).of(lay_out(SEVERAL)), exchanged(make_of("oktopk"), SEVERAL, 24), 0.1)


def test_what_each_layer_adds_is_counted_by_layers():
    by_layer = Sizes(make_of("terngrad"), 4)
    assert [by_layer.of(lay_out([(40, 40)] * count))[0].num_bytes for count in (1, 2, 7)] == [4, 8, 28]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(set(compressors.available()) - CHANCE.keys()))
def test_the_smallest_buckets(name: str):
    sizes = Sizes(make_of(name), 3)
    for numel in (*range(1, 10), 64, 1000):
        asked = sizes.of(lay_out([(numel, 1)]))
        assert [each.kind.__name__ for each in asked] == [
            kind for kind, _, _ in exchanged(make_of(name), [(numel, 1)], 3)
        ]
        assert all(0 <= each.num_bytes <= each.most_bytes for each in asked)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", sorted(set(compressors.available()) - CHANCE.keys()))
def test_more_elements_never_ask_for_less(name: str):
    sizes = Sizes(make_of(name), 4)
    total = [sum(a.num_bytes for a in sizes.of(lay_out([(2**power, 16)]))) for power in range(6, 19)]
    assert total == sorted(total)


def test_one_rank_brings_indices_and_the_others_nothing():
    make = make_of("gs_sgd", broadcast="indices")
    reduce, indices, values = Sizes(make, 4).of(lay_out([(64, 128)]))
    assert [reduce.kind, indices.kind, values.kind] == [Reduce, Gather, Sum]
    assert indices.num_bytes == indices.most_bytes / 4
    check([reduce, indices, values], exchanged(make, [(64, 128)], 4), CHANCE["gs_sgd"])


@pytest.mark.slow
def test_voters_are_found_in_a_large_world():
    for size in (1000, 100 * SEARCHED):
        gather, total = Sizes(make_of("iwp"), size).of(lay_out([(SMALL, 16)]))
        assert (gather.kind, total.kind) == (Gather, Sum)
        assert gather.most_bytes == pytest.approx(SMALL * 16 / 8, rel=0.01)
        assert gather.num_bytes == pytest.approx(1 + 2 / size * gather.most_bytes, rel=0.02)


def test_a_large_world_is_asked_as_a_small_one_where_the_method_does_not_care():
    for name, kinds in {"topk": [Gather], "gtopk": [Merge], "oktopk": [Sum, Route, Gather, Gather]}.items():
        large = Sizes(make_of(name), 4096).of(lay_out(SEVERAL))
        assert [each.kind for each in large] == kinds
        small = Sizes(make_of(name), 8).of(lay_out(SEVERAL))
        if name != "oktopk":
            assert [each.num_bytes for each in large] == pytest.approx([each.num_bytes for each in small])
        else:  # regions shrink as ranks grow in number, their bounds are more
            grown = [b.num_bytes / a.num_bytes for a, b in zip(small, large, strict=True)]
            assert grown == pytest.approx([512, 1, 1 / 512, 1 / 512], rel=0.05)


@pytest.mark.slow
def test_which_methods_depend_on_shapes_and_on_values():
    found = {name: Sizes(make_of(name), 4) for name in compressors.available()}
    assert {name for name, sizes in found.items() if sizes.by_shape} == {
        "powersgd",
        "acp_sgd",
        "onebit",
        "dion",
        "demo",
    }
    assert {name for name, sizes in found.items() if sizes.by_value} == {"iwp", "threshold"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["powersgd", "acp_sgd", "onebit", "dion", "demo"])
def test_shapes_tell_the_same_without_data(name: str, monkeypatch: pytest.MonkeyPatch):
    layers = lay_out([(512, 300), (300,), (64, 32, 3, 3)])
    real = Sizes(make_of(name), 4).of(layers)
    monkeypatch.setattr(played_exchange, "REAL", 0)
    assert Sizes(make_of(name), 4).of(layers) == real


def test_vectors_go_dense_where_the_paper_sends_them_so():
    layers = lay_out([(64, 128), (64,), (128, 64), (4, 4)])
    make = make_of("topk", dense_below=100)
    real = exchanged(make, [(64, 128), (64,), (128, 64), (4, 4)], 4)
    asked = Sizes(make_of("topk"), 4, dense_below=100).of(layers)
    assert asked[0] == RequestSize(Sum, 4 * (64 + 16), 4 * (64 + 16))
    check(asked, real, 0.02)
    assert [each.kind for each in Sizes(make_of("topk"), 4, dense_below=100).of(layers[1:2])] == [Sum]
    assert [each.kind for each in Sizes(make_of("topk"), 4, dense_below=100).of(layers[:1])] == [Gather]
