"""The guard warns of residuals that never end growing, and of no others."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.distributed.launch import CONFIG, here
from wirebench import compressors
from wirebench.compose.bookkeeping import residual_watch_of
from wirebench.compose.resolve import compressor_of
from wirebench.config import loader
from wirebench.training.progress import silent
from wirebench.training.residual_watch import TURNOVERS, ResidualWatch


class Watched:
    """A watch of a residual, and what it has warned of."""

    def __init__(self, density: float | None = 0.01, **options: Any) -> None:
        self.said: list[str] = []
        self.watch = ResidualWatch("topk", "density", density, self.said.append, **options)

    def over(self, steps: range, norm_at: Callable[[int], float]) -> list[str]:
        """The warnings after these steps of a run whose residual has this norm."""
        for step in steps:
            self.watch.look(step, lambda step=step: torch.tensor([norm_at(step)]))  # type: ignore[misc]
        return self.said


def test_a_residual_that_is_never_sent_is_named_with_the_setting():
    (warning,) = Watched().over(range(5000), lambda step: 2.0 * step)
    assert warning == (
        "step 500: the residual of topk grows without bound: its norm is 1e+03, 2 times as large as at step 250; "
        "change compressor.density"
    )


@pytest.mark.parametrize(
    ("density", "steps", "norm_at"),
    [
        (0.01, 20_000, lambda step: 50 * (1 - 0.99**step)),
        (0.001, 60_000, lambda step: 50 * (1 - 0.999**step)),
        (0.01, 5000, lambda step: 100 * 0.999**step),
    ],
    ids=["levels off", "levels off late", "shrinks with the gradient"],
)
def test_a_residual_that_has_a_bound_is_none_of_its_business(density, steps, norm_at):
    assert not Watched(density).over(range(steps), norm_at)


@pytest.mark.parametrize(
    ("options", "norm_at", "steps", "first"),
    [
        ({}, lambda step: step**0.5, range(2000), 500),  # noise that is never sent
        ({"density": None}, float, range(2000), 500),
        ({"density": 1e-9}, float, range(9000), 5000),
        ({"density": 0.001}, float, range(9000), 5000),
        ({"density": 0.1, "every": 30}, float, range(2000), 1500),  # local steps: as many exchanges
        ({}, lambda step: step - 9_999.0, range(10_000, 11_000), 10_500),  # a resumed run counts from where it began
    ],
)
def test_it_waits_until_a_bounded_residual_would_have_stopped_growing(options, norm_at, steps, first):
    (warning,) = Watched(**options).over(steps, norm_at)
    assert warning.startswith(f"step {first}:")


@pytest.mark.parametrize(("size", "warnings"), [(4, 1), (2, 0)])
def test_norms_outlive_a_resume_but_not_another_number_of_ranks(size: int, warnings: int) -> None:
    """Otherwise a run that is interrupted often enough would never be warned."""
    before, after = (Watched(size=each) for each in (4, size))
    before.over(range(300), float)
    after.watch.load_state_dict(json.loads(json.dumps(before.watch.state_dict())))
    assert len(after.over(range(300, 600), float)) == warnings and not before.said


def test_methods_without_a_residual_are_left_alone():
    guard = ResidualWatch("none", "", None, pytest.fail)
    guard.look(50, lambda: None)


@pytest.mark.parametrize(
    ("words", "watched"),
    [
        (["compressor.name=topk", "scheduler.name=outer", "scheduler.every=4"], 4),
        (["compressor.name=topk", "scheduler.name=outer", "scheduler.every=4", "scheduler.delay=1"], 0),
        (["compressor.name=chunk_topk", "scheduler.name=outer", "scheduler.every=4"], 0),
        (["compressor.name=chunk_topk", "compressor.beta=1"], 1),
        (["compressor.name=topk"], 1),
        (["compressor.name=gtopk"], 1),
        (["compressor.name=chunk_topk", "compressor.dense_below=1024"], 0),
    ],
)
def test_what_is_watched(words: list[str], watched: int) -> None:
    """Not what fades, nor what an exchange is at work on; local steps have fewer exchanges than steps."""
    settings = loader.load(CONFIG, words)
    lane: Any = SimpleNamespace(compressor=compressor_of(settings), flat=SimpleNamespace(numel=10_000))
    lane.world = SimpleNamespace(size=2)
    guard = residual_watch_of(settings, [lane], [], silent(), 0)
    turnovers = TURNOVERS / lane.compressor.sent_share(10_000)
    assert (guard.settled_steps if guard else 0) == pytest.approx(watched * turnovers)


@pytest.mark.parametrize("name", compressors.available())
def test_what_a_warning_advises_to_change_can_be_changed(name: str) -> None:
    method = compressors.build(name)
    advice = method.bounded_by.partition(",")[0]
    assert advice in {*compressors.PLUGINS.options(name), "name"} if method.keeps != "nothing" else not advice


@pytest.mark.slow
def test_a_run_with_a_threshold_that_nothing_passes_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["compressor.name=threshold", "compressor.threshold=1e9", "train.max_steps=520", "train.epochs=90"]
    settings += ["optimizer.lr=0"]  # the gradients stay what they are
    assert here(2, [CONFIG, f"output.dir={tmp_path}", *settings, "train.checkpoint_every_steps=0"]) == 0
    said = capsys.readouterr().out
    assert "warning: step 500: the residual of threshold grows without bound" in said
    assert "change compressor.threshold" in said
