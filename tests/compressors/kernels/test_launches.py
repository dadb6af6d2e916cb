"""A bucket's exchange starts few kernels, however many layers the bucket has, whatever its method's options."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton: pip install triton")

from tests.compressors.kernels.launches import launches, launches_of
from wirebench import compressors
from wirebench.compressors import kernels
from wirebench.compressors.gtopk import _Merger
from wirebench.compressors.kernels import region_messages, segments, selection, thin
from wirebench.compressors.sparse import thresholds
from wirebench.compressors.sparse.encoding import SparseCode

MOST = 12
COUNTS = (16, 49), (6, 24)
"""Layers of the two buckets that are compared: of most methods, and of one in LONG."""
OKTOPK = (16, 48)
"""Its launches depend on values, which alike thresholds meet in these."""
LONG = {"acp_sgd", "chunk_topk", "demo", "dion", "oktopk", "onebit", "powersgd", "signsgd"}
DOCS = (Path(__file__).resolve().parents[3] / "docs/compressors.md").read_text()
NUMBERS: dict[str, list[Any]] = {
    "beta": [0.5], "beta1": [0.5], "beta2": [0.5], "chunk": [4], "clip": [1.0], "clip_factor": [0.0], "columns": [40],
    "columns_per_entry": [5.0], "dense_steps": [9], "density": [0.1], "double_every": [1], "eps": [1e-6],
    "epsilon": [0.0], "freeze_step": [1], "group": [2], "histograms": [("layer1",)], "k": [5], "kappa": [1],
    "levels": [1], "limit": [2.0], "longest": [1, 2], "min_compression_rate": [1.5], "momentum": [0.0], "mu": [0.0],
    "p1": [0.0], "p2": [1], "rank": [1, 17], "rank_fraction": [0.5, 1.0], "ratio": [0.1], "rebalance_every": [3],
    "reevaluate_every": [7], "rho": [0.0, 1.0], "room": [0.5], "rotate": [16], "rows": [1], "schedule": [(0.1, 0.2)],
    "schedule_epochs": [(1,)], "start_step": [9], "threshold": [1.0], "voters": [1],
}  # fmt: skip
"""Values of options that are no choice between words; each differs from the default."""
BASE: dict[str, dict[str, Any]] = {"zero_one_adam": {"kappa": 1, "freeze_step": 1}}
"""Options that let a method do in the third step what it does in most steps of a run."""
WITH: dict[tuple[str, str, Any], dict[str, Any]] = {
    ("chunk_topk", "chunk", 4): {"k": 3},
    ("demo", "chunk", 4): {"k": 3},
    ("gs_sgd", "fill", "random"): {"p2": 1},
    ("sketched_sgd", "fill", "random"): {"p2": 1},
    ("iwp", "beta", 0.5): {"mode": "layerwise"},
    ("iwp", "limit", 2.0): {"mode": "layerwise"},
    ("iwp", "schedule", (0.1, 0.2)): {"mode": "schedule", "schedule_epochs": (1,)},
    ("iwp", "schedule_epochs", (1,)): {"mode": "schedule", "schedule": (0.1, 0.2)},
    ("quantised_sum", "within", None): {"group": 2},
    ("signsgd", "form", "vote"): {"feedback": False},
    ("signsgd", "scale", "one"): {"feedback": False},
    ("zero_one_adam", "longest", 2): {"double_every": 1},
}
"""What else a value needs; or with None each value of an option."""
RANKS = {"group": 4, "within": 4}
"""Ranks that an option is for, where it is for several."""
ESTIMATES = {"gaussian", "sidco"}
"""Choices that take a launch or two more or less, by how many entries they find."""
MORE = {
    "fetch_sgd density=0.1": 17, "fetch_sgd warmup=(0.25,)": 17, "sketched_sgd indices=bitmap": 13,
    "onebit dense_below=9": 13,
}  # fmt: skip
"""Cases that take more than MOST, as the docs state."""
REFERENCE = "hash=reference"
"""The textbook's hash, which has no kernels."""
SOME: list[tuple[str, dict[str, Any]]] = [
    ("oktopk", {"density": 0.05, "indices": "delta"}),
    ("iwp", {"masks": "delta", "mode": "layerwise", "waiting": True, "masking": True, "threshold": 0.05}),
    ("iwp", {"clip": 1.0, "nesterov": True, "dense_below": 1}),
    ("oktopk", {"density": 0.05, "indices": "delta", "values": "fp16"}),
    ("sketched_sgd", {"indices": "bitmap", "clip": 1.0, "nesterov": True}),
    ("topk", {"density": 0.1, "indices": "delta", "values": "fp16", "dense_below": 9}),
]
"""Compositions of several options."""


@pytest.fixture(autouse=True)
def few_numbers(monkeypatch) -> Iterator[None]:
    """Kernels run on the CPU, of low-rank methods on small blocks, or it takes minutes. Layers take several pieces
    each, where they are reduced, and estimates are made of short vectors, too.
    """
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    monkeypatch.setattr(thin, "MOST", 4)
    monkeypatch.setattr(thin, "BLOCK", 16)
    monkeypatch.setattr(selection, "PROGRAMS", 1)
    monkeypatch.setattr(region_messages, "PROGRAMS", 4)
    monkeypatch.setattr(selection, "TILE", 4096)
    monkeypatch.setattr(segments, "PIECE", 32)
    monkeypatch.setattr(thresholds, "SMALL", 16)
    segments.pieces_of.cache_clear()
    yield
    segments.pieces_of.cache_clear()


def shapes(count: int) -> list[tuple[int, ...]]:
    """Matrices and, among them, vectors, which some methods send dense."""
    return [(8, 6) if i % 3 else (5,) for i in range(count)]


def cases() -> Iterator[Any]:
    """Every method with its defaults, and with every other value of every option of its own or of its wrappers.

    make test-all leaves out other numbers of methods in LONG and of iwp, by which no other kernels are chosen.
    """
    for name in compressors.available():
        method = compressors.class_of(name)
        hints = get_type_hints(method.__init__)
        options: list[tuple[str, Any]] = []
        for option, parameter in list(inspect.signature(method).parameters.items()):
            values = NUMBERS[option] if (words := words_of(hints[option])) is None else words
            options += [(option, value) for value in values if value != parameter.default]
        if not method.makes_update:
            options += [("dense_below", value) for value in (0, 9) if value != method.dense_below]
        if compressors.build(name).density is not None:
            options.append(("warmup", (0.25,)))
        yield pytest.param(name, "", None, id=name, marks=[pytest.mark.slow] * (name in LONG))
        for option, value in options:
            late = pytest.mark.weekly if name in (*LONG, "iwp") and option in NUMBERS else pytest.mark.slow
            yield pytest.param(name, option, value, id=f"{name} {option}={value}", marks=late)


def words_of(hint: Any) -> list[Any] | None:
    """The values of an option that has few of them."""
    if hint is bool:
        return [False, True]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    parts = [words_of(each) for each in get_args(hint)]
    return None if not parts or None in parts else [word for part in parts if part for word in part]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's
@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "option", "value"), list(cases()))
def test_an_exchange_starts_few_kernels_however_many_layers(name, option, value, monkeypatch):
    if f"{option}={value}" == REFERENCE:
        assert f"`{REFERENCE}`" in DOCS[DOCS.index("start more") :]
        return
    options = BASE.get(name, {}) | WITH.get((name, option, value), {}) | WITH.get((name, option, None), {})
    options = {"dense_below": compressors.dense_below_of(name)} | options | ({option: value} if option else {})
    ranks = RANKS.get(option, 1)
    counts = OKTOPK if name == "oktopk" else COUNTS[name in LONG]
    few, many = (launches(monkeypatch, name, shapes(count), ranks, **options) for count in counts)
    assert many.total() <= MORE.get(f"{name} {option}={value}", MOST), many
    assert few == many or value in ESTIMATES, many - few


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("iwp", {"masks": "delta"}),
        *(pytest.param(*each, marks=pytest.mark.slow, id=str(each)) for each in SOME),
    ],
)
def test_so_do_some_compositions(name, options, monkeypatch):
    """Of layers of several sizes."""
    counts = [
        launches(monkeypatch, name, [(24, 4 + i % 3, 3) if i % 3 else (5,) for i in range(n)], **options)
        for n in (4, 12)
    ]
    assert counts[0] == counts[1]
    assert counts[0].total() <= MOST, counts[0]


@pytest.mark.slow
def test_a_table_that_stalls_takes_few_launches(monkeypatch):
    seen = launches(monkeypatch, "iblt", [(24, 6), (5,), (24, 6)], density=0.3, room=0.3)
    assert "K:_flag" in seen
    assert seen.total() <= MOST, seen


@pytest.mark.slow
@pytest.mark.parametrize("indices", ["int32", "bitmap", "delta"])
def test_a_merge_takes_as_many_as_docs_state(indices):
    stated = re.search(r"`gtopk` in each merge \((\d+), or (\d+) with", DOCS)
    assert stated is not None
    code = SparseCode("fp32", indices)
    merger = _Merger(code, 9, 300)
    mine, theirs = (code.encode(torch.arange(step, 250, step), torch.ones(249 // step), 300) for step in (20, 30))
    assert launches_of(lambda: merger.merge(mine, theirs)).total() <= int(stated[1 if indices == "int32" else 2])


@pytest.mark.slow
@pytest.mark.parametrize("indices", ["int32", "bitmap", "delta"])
def test_exact_thresholds_take_as_many_as_docs_state(indices, monkeypatch):
    stated = re.search(r"`oktopk` in a step with an exact threshold \((\d+)\)", DOCS)
    assert stated is not None
    options = {"density": 0.05, "indices": indices, "reevaluate_every": 1}
    counts = [launches(monkeypatch, "oktopk", shapes(count), **options) for count in COUNTS[1]]
    assert counts[0] == counts[1]
    assert counts[0].total() <= int(stated[1]), counts[0]
