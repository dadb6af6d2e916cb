"""The step log: a step is passed on once, in order, when its time and its loss are both known."""

import random
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from wirebench.collectives.execution.executor import RequestLog
from wirebench.errors import Diverged
from wirebench.exchange.diagnostics import Health
from wirebench.telemetry import step_stats
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.nic import InterfaceCounter
from wirebench.telemetry.step_stats import PHASES, StepSeries, StepTimes, summary
from wirebench.telemetry.timeline import Timeline
from wirebench.telemetry.wire_stats import Traffic
from wirebench.training import residual_watch
from wirebench.training.residual_watch import ResidualWatch
from wirebench.training.step_log import StepLog


class Late:
    """A clock and a guard whose answers come `lag` steps late, as a GPU's do."""

    def __init__(self, lag: int, clock_lag: int, bad: int = -1) -> None:
        self.lag, self.clock_lag, self.bad = lag, clock_lag, bad
        self.closed: list[StepTimes] = []
        self.noted: list[int] = []

    def close(self, step: int) -> None:
        self.closed.append(StepTimes(step, 0.5, dict.fromkeys(PHASES, 0.1), 8, step > 0))
        self.noted.append(step)

    def completed(self) -> list[StepTimes]:
        cut = max(0, len(self.closed) - self.clock_lag)
        known, self.closed = self.closed[:cut], self.closed[cut:]
        return known

    def drain(self) -> list[StepTimes]:
        known, self.closed = self.closed, []
        return known

    def losses(self, up_to_step: int) -> list[tuple[int, float]]:
        known = [step for step in self.noted if step <= up_to_step]
        self.noted = self.noted[len(known) :]
        if self.bad in known:
            raise Diverged(f"step {self.bad}")
        return [(step, step / 10) for step in known]


class Sink:
    """A record and a progress line that keep what they are given."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, dict[str, Any]]] = []
        self.shown: list[tuple[Any, ...]] = []
        self.record = SimpleNamespace(step=lambda times, **facts: self.entries.append((times.step, facts)))
        self.progress = SimpleNamespace(step=lambda *facts: self.shown.append(facts))


def step_log(late: Late, sink: Sink) -> StepLog:
    return StepLog(late, late, sink.record, sink.progress, 4)  # type: ignore[arg-type]


def run_steps(late: Late, book: StepLog, count: int) -> None:
    for step in range(count):
        late.close(step)
        book.step(step, step // 3, 0.1 * step, 1000 * step, {"seen": step})


@pytest.mark.parametrize(("lag", "clock_lag", "known"), [(0, 0, 6), (2, 0, 4), (0, 3, 3), (2, 1, 4)])
def test_steps_are_passed_on_when_both_sides_know_them(lag, clock_lag, known):
    late, sink = Late(lag, clock_lag), Sink()
    book = step_log(late, sink)
    run_steps(late, book, 6)
    assert [step for step, _ in sink.entries] == list(range(known))
    book.flush()
    assert [step for step, _ in sink.entries] == list(range(6))
    assert (book.steps.count, [times.step for times in book.steps.warm_up]) == (5, [0])
    book.flush()
    assert len(sink.entries) == 6


def test_facts_stay_with_their_step():
    late, sink = Late(2, 1), Sink()
    book = step_log(late, sink)
    run_steps(late, book, 5)
    book.flush()
    for step, facts in sink.entries:
        expected = {"epoch": step // 3, "loss": step / 10, "learning_rate": 0.1 * step, "wire_bytes": 1000 * step}
        assert facts == {**expected, "extra": {"seen": step}}


def test_a_person_sees_the_worlds_images_and_one_ranks_mean_megabytes_per_second():
    late, sink = Late(0, 0), Sink()
    run_steps(late, step_log(late, sink), 3)
    step, epoch, rate, loss, megabytes = sink.shown[2]
    assert (step, epoch, loss) == (2, 0, 0.2)
    assert rate == 4 * 8 / 0.5
    assert megabytes == pytest.approx((0 + 1000 + 2000) / 1.5 / 1e6)


def test_all_ranks_hear_of_a_bad_step_after_the_same_one():
    late = Late(lag=2, clock_lag=0, bad=1)
    book = step_log(late, Sink())
    run_steps(late, book, 3)
    late.close(3)
    with pytest.raises(Diverged, match="step 1"):
        book.step(3, 0, 0.1, 0, {})


def test_flushing_looks_at_every_step():
    late = Late(lag=2, clock_lag=0, bad=2)
    book = step_log(late, Sink())
    run_steps(late, book, 3)
    with pytest.raises(Diverged, match="step 2"):
        book.flush()


def peak_bytes(steps: int) -> int:
    """What a run's bookkeeping takes at most in memory, with the summary at its end."""
    sink = SimpleNamespace(step=lambda *_, **__: None)
    late = SimpleNamespace(lag=0, losses=lambda step: [(step, 0.1)])
    traffic = Traffic(100, 2, InterfaceCounter(None), 2)
    watch = ResidualWatch("topk", "density", 0.01, lambda text: None)
    residual = torch.ones(1)
    health = Health([])
    tracemalloc.start()
    clock = Clock(torch.device("cpu"), Timeline())
    book = StepLog(clock, late, sink, sink, 2)  # type: ignore[arg-type]
    clock.resume()
    for step in range(steps):
        with clock.phase("forward"):
            pass
        clock.end_step(step, 8, True)
        log = [RequestLog("Sum", "ring", 2, 400, 400, 400, 0.1)]
        book.step(step, 0, 0.1, traffic.step([log, log], True), {"health/density": 0.1})
        health._add({"health/density": 0.1})
        watch.look(50 * step, lambda: residual)
    summary(book.steps, 2)
    traffic.summary()
    health.summary()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_stats, "MOST_STEPS", 256)
    monkeypatch.setattr(residual_watch, "MOST_NORMS", 64)
    peak_bytes(300)
    few, many = peak_bytes(400), peak_bytes(2400)
    assert many - few < 2000, f"{(many - few) / 2000:.1f} bytes a step"


def test_of_a_long_run_the_spread_is_a_samples_and_the_mean_is_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    taken = [draw.lognormvariate(0, 0.3) for _ in range(20_000)]
    steps = [StepTimes(n, seconds, dict.fromkeys(PHASES, seconds / 6), 8, True) for n, seconds in enumerate(taken)]
    whole = summary(steps, 4)
    assert whole["step_seconds"]["p90"] == np.percentile(taken, 90)
    monkeypatch.setattr(step_stats, "MOST_STEPS", 2000)
    series = StepSeries(steps)
    sampled = summary(series, 4)
    assert len(series.columns["seconds"]) == 2000
    assert sampled["images_per_second"]["steps"] == 20_000
    assert sampled["images_per_second"]["mean"] == pytest.approx(whole["images_per_second"]["mean"], rel=1e-12)
    for name in ("median", "p10", "p90"):
        assert sampled["step_seconds"][name] == pytest.approx(whole["step_seconds"][name], rel=0.05)
    assert sampled["phases"]["forward"] == pytest.approx(whole["phases"]["forward"], rel=0.03)
    assert summary(steps[:2000], 4) == summary(StepSeries(steps[:2000]), 4)
