"""data/request_sizes.json.gz is what compressors ask for, and has all that README's example needs."""

import functools
import json
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from tests.cli.verbs import ROOT, verb
from wirebench import compressors
from wirebench.costmodel import request_sizes
from wirebench.costmodel.request_sizes import Known, Sizes
from wirebench.gradient.contract import Method
from wirebench.gradient.flat import Layer
from wirebench.planner import compositions, known_sizes
from wirebench.planner.known_sizes import ANY, PATH, WORLDS
from wirebench.utils import user_files

TABLE = known_sizes.table(PATH)
TWO = ("fp16", "terngrad")
"""One that asks for the same in all worlds, and one that does in none of them."""
OTHER_WORLDS = (7, 12, 100)
"""For what is said to be the same in any world."""


def sizes_of(label: str, size: int) -> Sizes:
    name, _, density = label.partition(" density=")
    return Sizes(make_of(name, float(density) if density else None), size)


def make_of(name: str, density: float | None = None) -> Callable[[], Method]:
    return functools.partial(compressors.build, name, **compositions.density_of(name, density))


def check(label: str, worlds: str, played: Collection[int] = WORLDS, every: int = 1) -> None:
    """Every so many-th entry is what is played now among `played` ranks."""
    named = (*OTHER_WORLDS, WORLDS[-1]) if worlds == ANY else {*map(int, worlds.split())} & {*played}
    sizes = [sizes_of(label, size) for size in named]
    known = known_sizes.read(TABLE[label][worlds])
    for place, (asked, requests) in enumerate(known.items()):
        if place % every == 0:
            for each in sizes:
                found = each.played(*asked)
                assert [request.kind for request in found] == [request.kind for request in requests], (each.size, asked)
                for one, other in zip(found, requests, strict=True):
                    # What is sampled or beyond a threshold is not the same by every processor's arithmetic.
                    assert one[1:] == pytest.approx(other[1:], rel=0.02, abs=8), (label, each.size, asked)


@pytest.mark.parametrize("label", TABLE)
def test_a_part_is_as_it_is_played(label: str):
    for worlds in TABLE[label]:
        check(label, worlds, (4, 32), every=12 if worlds == ANY else 7)


@pytest.mark.slow
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.weekly)])
@pytest.mark.parametrize("label", TABLE)
def test_all_is_as_it_is_played(label: str, every: int):
    """Among all numbers of ranks; in make test-all a third of the entries."""
    for worlds in TABLE[label]:
        check(label, worlds, every=every)


def test_every_compressor_is_there_as_it_is_by_itself():
    labels = {known_sizes.label(name, compositions.own_density(name)) for name in compressors.available()}
    assert labels <= TABLE.keys()


@pytest.mark.parametrize("size", [pytest.param(4, marks=pytest.mark.slow), 32])
def test_readmes_example_plays_nothing(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    example = next(line for line in readme if line.startswith("wirebench advise --model ")).split()[2:]
    compositions._kept_sizes.cache_clear()
    monkeypatch.setattr(request_sizes, "play", lambda *_: pytest.fail("it is in data/request_sizes.json.gz"))
    example[example.index("--workers") + 1] = str(size)
    assert verb("advise")([*example, "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert {row["compressor"] for row in found["rows"]} >= {"topk", "dion", "oktopk", "gs_sgd"}


def test_what_is_not_there_is_played():
    layer = Layer("", 0, 60 * 70, 2, 60)
    for name, density in (("powersgd", None), ("topk", 0.37), ("terngrad", None)):
        known, fresh = compositions._sizes(name, density, 5, 0), Sizes(make_of(name, density), 5)
        assert known.of([layer]) == fresh.of([layer]) and known.of_sample() == fresh.of_sample(), name


def test_what_is_written_is_read(tmp_path: Path):
    layers = [Layer("", 0, 4096, 2, 64), Layer("", 0, 64, 1, 64)]
    played: dict[tuple[str, float | None], dict[int, Known]]
    played = {(name, None): known_sizes.played(make_of(name), layers) for name in TWO}
    path = tmp_path / "sizes.json.gz"
    user_files.write(path, known_sizes.written(played))
    content = known_sizes.table(path)
    assert [{*" ".join(content[name]).split()} for name in TWO] == [{ANY}, {*map(str, WORLDS)}]
    for name in TWO:
        before = known_sizes.of(name, None, path)
        assert all(before(size) == played[name, None][size] for size in WORLDS)
    assert known_sizes.of("topk", None, path)(4) == {}


def test_a_world_that_is_refused_is_left_out():
    found = known_sizes.played(make_of("int8"), [Layer("", 0, 64, 1, 64)])
    assert max(found) < 128 and set(found) < {*WORLDS}
