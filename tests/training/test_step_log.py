"""The step log: a step is passed on once, in order, when its time and its loss are both known."""

from types import SimpleNamespace
from typing import Any

import pytest

from wirebench.errors import Diverged
from wirebench.telemetry.step_stats import StepTimes
from wirebench.training.step_log import StepLog


class Late:
    """A clock and a guard whose answers come `lag` steps late, as a GPU's do."""

    def __init__(self, lag: int, clock_lag: int, bad: int = -1) -> None:
        self.lag, self.clock_lag, self.bad = lag, clock_lag, bad
        self.closed: list[StepTimes] = []
        self.noted: list[int] = []

    def close(self, step: int) -> None:
        self.closed.append(StepTimes(step, 0.5, {}, 8, True))
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
    assert [times.step for times in book.steps] == list(range(6))
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
