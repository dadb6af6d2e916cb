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


def watch(norm_at: Callable[[int], float], steps: int, density: float | None = 0.01) -> list[str]:
    """The warnings over a run whose residual has this norm."""
    said: list[str] = []
    guard = ResidualWatch("topk", "density", density, said.append)
    for step in range(steps):
        guard.look(step, lambda step=step: torch.tensor([norm_at(step)]))  # type: ignore[misc]
    return said


def test_a_residual_that_is_never_sent_is_named_with_the_setting():
    (warning,) = watch(lambda step: 2.0 * step, 5000)
    assert warning == (
        "step 500: the residual of topk grows without bound: its norm is 1e+03, 2 times as large as at step 250; "
        "change compressor.density"
    )


def test_noise_that_is_never_sent_is_named_too():
    assert len(watch(lambda step: step**0.5, 2000)) == 1


def test_what_levels_off_is_none_of_its_business():
    assert not watch(lambda step: 50 * (1 - 0.99**step), 20_000)
    assert not watch(lambda step: 50 * (1 - 0.999**step), 60_000, density=0.001)


def test_shrinking_with_the_gradient_is_fine():
    assert not watch(lambda step: 100 * 0.999**step, 5000)


def test_a_method_without_a_density_is_judged_after_five_hundred_steps():
    assert watch(float, 2000, density=None)[0].startswith("step 500:")


@pytest.mark.parametrize("density", [1e-9, 0.001])
def test_the_slowest_is_judged_after_five_thousand(density):
    assert watch(float, 9000, density)[0].startswith("step 5000:")


def test_a_resumed_run_counts_from_where_it_began():
    said: list[str] = []
    guard = ResidualWatch("topk", "density", 0.01, said.append)
    for step in range(10_000, 10_500):
        guard.look(step, lambda step=step: torch.tensor([float(step - 9_999)]))  # type: ignore[misc]
    assert not said
    guard.look(10_500, lambda: torch.tensor([501.0]))
    assert said


@pytest.mark.parametrize(("size", "warnings"), [(4, 1), (2, 0)])
def test_norms_outlive_a_resume_but_not_another_number_of_ranks(size: int, warnings: int) -> None:
    """Otherwise a run that is interrupted often enough would never be warned."""
    said: list[str] = []
    before, after = (ResidualWatch("topk", "density", 0.01, said.append, size=each) for each in (4, size))
    for step in range(300):
        before.look(step, lambda step=step: torch.tensor([float(step)]))  # type: ignore[misc]
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    for step in range(300, 600):
        after.look(step, lambda step=step: torch.tensor([float(step)]))  # type: ignore[misc]
    assert len(said) == warnings


def test_under_local_steps_it_waits_for_as_many_exchanges():
    said: list[str] = []
    guard = ResidualWatch("topk", "density", 0.1, said.append, every=30)
    for step in range(2000):
        guard.look(step, lambda step=step: torch.tensor([float(step)]))  # type: ignore[misc]
    assert said[0].startswith("step 1500:")


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


def test_methods_without_a_residual_are_left_alone():
    guard = ResidualWatch("none", "", None, pytest.fail)
    for step in range(2000):
        guard.look(step, lambda: None)


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
