"""A run beside reference runs of its method: flagged where it converges otherwise than their seeds do."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from papers.accuracy.known import flagged
from papers.runner import RESULTS
from wirebench.inspect.reference import TrainedMethod, last, reference_of, remarks
from wirebench.record import recorded

pytestmark = pytest.mark.sampled(2)

DENSE = RESULTS / "convergence" / "resnet20" / "dense-0"


def changed(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    record = copy.deepcopy(recorded.read(DENSE))
    change(record)
    return record


def add(points: float, epochs: slice) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        for entry in record["history"][epochs]:
            entry["top1"] += points / 100

    return change


def test_a_seed_like_the_others_is_not_flagged() -> None:
    assert remarks(recorded.read(DENSE)) == []
    assert remarks(changed(add(0.5, slice(None)))) == []


@pytest.mark.parametrize(
    ("points", "epochs", "said"),
    [
        (-4, slice(-1, None), "ends lower than the 3 reference runs of dense (resnet20): top-1 at the end 82."),
        (4, slice(-1, None), "ends higher than"),
        (-25, slice(0, 4), "converges slower than"),
        (25, slice(0, 4), "converges faster than"),
    ],
)
def test_one_that_learns_otherwise_is(points: float, epochs: slice, said: str) -> None:
    [line] = remarks(changed(add(points, epochs)))
    assert line.startswith(said) and ", expected " in line


def test_of_many_records_those_that_learn_otherwise_are_flagged(tmp_path: Path) -> None:
    """A seed more of a method, and what is no training on CIFAR-10."""
    changes = {"usual": lambda record: None, "slow": add(-25, slice(0, 4)),
               "replayed": lambda record: record["config"]["data"].update(name="synthetic")}  # fmt: skip
    for name, change in changes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(json.dumps(changed(change)))
    [(path, said)] = flagged(recorded.below(tmp_path))
    assert path == tmp_path / "slow" and said.startswith("converges slower than the 3 reference runs")


def test_what_no_reference_ran_has_none() -> None:
    assert remarks(changed(lambda record: record["config"]["optimizer"].update(lr=0.2))) == []
    assert remarks(changed(lambda record: record.update(history=[]))) == []
    # A shorter run is at another point of its schedule.
    assert remarks(changed(lambda record: record.update(history=record["history"][:3]))) == []


def test_the_spread_is_that_of_all_methods_seeds() -> None:
    """Two methods of variance 1 and 4 points, 2 degrees of freedom each."""
    figures = {"a": [1.0, 2.0, 3.0], "b": [10.0, 12.0, 14.0], "c": [5.0]}
    methods = [TrainedMethod("a task", name, {}, True, [[seed] for seed in seeds]) for name, seeds in figures.items()]
    found = reference_of(methods[0], methods, last)
    assert found is not None and (found.mean, found.freedom, found.seeds) == (2.0, 4, 3)
    assert found.spread == pytest.approx(2.5**0.5)
    # t of 0.9975 with 4 degrees of freedom is 5.598.
    assert found.expected()[1] == pytest.approx(2.0 + 5.598 * (2.5 * 4 / 3) ** 0.5, rel=1e-3)
    assert reference_of(methods[2], methods, last) is None
