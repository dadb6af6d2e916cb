"""Which steps are profiled and validated, and what is made of them, without a job."""

from typing import Any

import pytest

from wirebench import schedulers
from wirebench.gradient.schedule import Duration, LayerCost
from wirebench.profiling.calibration import (
    MOST_VALIDATION_STEPS,
    PROFILING_STEPS,
    SETTLING_STEPS,
    VALIDATION_STEPS,
    Calibration,
    typical,
)
from wirebench.profiling.layer_timer import Profile
from wirebench.telemetry.step_stats import PHASES, StepSeries, StepTimes


def calibration(scheduler: str = "wfbp", **changes: Any) -> Calibration:
    given: dict[str, Any] = {
        "engine": None, "scheduler": schedulers.build(scheduler), "driver": object(), "timer": None,
        "layers": [LayerCost("b", 1), LayerCost("a", 1)], "groups": [range(0, 1), range(1, 2)],
        "set_buckets": None, "costs": None, "warmup_steps": 5, "accumulation": 1, "learns": False, "identity": {},
        "save": None,
    }  # fmt: skip
    return Calibration(**{**given, **changes})


def step(number: int, seconds: float, exposed: float, backward: float, counted: bool = False) -> StepTimes:
    phases = {**dict.fromkeys(PHASES, 0.0), "exchange_exposed": exposed, "backward": backward}
    return StepTimes(number, seconds, phases, 8, counted)


@pytest.mark.parametrize("warmup", [0, 5, 9, 20])
def test_only_the_last_steps_before_the_counted_ones_are_held(warmup: int) -> None:
    learner = calibration(learns=True, warmup_steps=warmup)
    learner.plan(100)
    assert learner._profiling == range(100 + SETTLING_STEPS, 100 + SETTLING_STEPS + PROFILING_STEPS)
    assert learner.counted_from == 100 + max(warmup, SETTLING_STEPS + PROFILING_STEPS + VALIDATION_STEPS)
    tries = min(MOST_VALIDATION_STEPS, max(VALIDATION_STEPS, warmup - SETTLING_STEPS - PROFILING_STEPS))
    assert learner._validation == range(learner.counted_from - tries, learner.counted_from)
    other = calibration(warmup_steps=warmup)
    other.plan(100)
    assert len(other._validation) == {0: 0, 5: 3, 9: 7, 20: MOST_VALIDATION_STEPS}[warmup]
    assert other.counted_from == 100 + warmup


def test_a_prediction_overlaps_what_was_timed_apart() -> None:
    """Forward 1 s, gradients after 2 and 4 s, messages of 3 and 1 s: the second one shows."""
    made = calibration()
    made.plan(0)
    made.profile, made._durations = Profile((2.0, 4.0), (0.5, 0.5)), [Duration(3.0), Duration(1.0)]
    held = [step(number, 9.25, 4.0, 4.0) for number in made._validation]
    found = made.prediction(StepSeries([*held, step(5, 6.0, 1.0, 4.0, counted=True)]))
    assert found is not None
    # 0.25 s of a step are neither pass. The first message ends at 1 + 2 + 3, when the second one's gradient is there.
    assert found["step_seconds"] == pytest.approx(6.25 + 1.0)
    assert found["exposed_seconds"] == pytest.approx(2.0)
    assert found["error"] == pytest.approx(7.25 / 6.0 - 1)


@pytest.mark.parametrize(
    ("backward", "exposed"), [(4.0, 2.0), (6.0, 0.0)], ids=["horovod waits after it", "ddp waits within it"]
)
def test_an_engines_own_messages_are_not_counted_twice(backward: float, exposed: float) -> None:
    """It sends in the steps that are timed, too: what they wait for is no computation."""
    made = calibration("builtin", driver=None)
    made.plan(0)
    made.profile, made._durations = Profile((2.0, 4.0), (0.5, 0.5)), [Duration(3.0), Duration(1.0)]
    tried = [step(number, 1.0 + backward + exposed, exposed, backward) for number in made._validation]
    found = made.prediction(StepSeries([*tried, step(5, 7.0, exposed, backward, counted=True)]))
    assert found is not None
    assert found["step_seconds"] == pytest.approx(1.0 + 4.0 + 2.0)
    assert found["exposed_seconds"] == pytest.approx(2.0)


def test_a_late_message_of_many_is_expected_again_and_a_disturbed_try_is_not() -> None:
    """In each of three tries another message of three is late; a fourth try was slow all over."""
    tries = [[Duration(9.0 if late == message else 1.0, 1.0) for message in range(3)] for late in range(3)]
    durations = typical([*tries, [Duration(50.0, 1.0)] * 3])
    assert sum(first + second for first, second in durations) == pytest.approx(14.0)
    assert [round(first / durations[0][0], 6) for first, _ in durations] == [1.0, 1.0, 1.0]
    assert typical([[Duration(0.0)]]) == [[0.0, 0.0]]
    # A stall of one message in one try is no property of that message.
    stalled = [[Duration(1.0)] * 6, [Duration(7.0), *[Duration(1.0)] * 5], [Duration(1.0)] * 6]
    assert [first for first, _ in typical(stalled)] == pytest.approx([1.0] * 6)


def test_nothing_is_predicted_where_nothing_was_tried_or_counted() -> None:
    made = calibration(warmup_steps=2)
    made.plan(0)
    made.profile, made._durations = Profile((2.0, 4.0), (0.5, 0.5)), [Duration(3.0), Duration(1.0)]
    assert made.prediction(StepSeries([step(5, 6.0, 1.0, 4.0, counted=True)])) is None
    made = calibration()
    made.plan(0)
    assert made.prediction(StepSeries([step(number, 9.25, 4.0, 4.0) for number in made._validation])) is None
