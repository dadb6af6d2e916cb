"""A step on paper, by hand and against the closed form."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.costmodel.closed_forms import finish_seconds
from wirebench.exchange.pipeline import Passes, in_turn
from wirebench.exchange.reduce_scatter import ReduceScatterDriver
from wirebench.gradient.schedule import Duration, LayerCost, ready_times

PASSES = Passes(forward=(1.0, 1.0, 2.0), ready=(2.0, 5.0, 6.0), backward=7.0, other=0.5)
SINGLE, ALL = [range(i, i + 1) for i in range(3)], [range(3)]


def seconds(*each):
    return [Duration(float(s)) for s in each]


def halves(passes, groups, durations):
    return ReduceScatterDriver.simulate(None, passes, groups, durations)


def test_messages_leave_when_they_are_ready_and_the_network_is_free():
    step = in_turn(PASSES, SINGLE, seconds(4, 1, 1), "gradient")
    assert [(s.start, s.end) for s in step.spans] == [(6, 10), (10, 11), (11, 12)]
    assert (step.seconds, step.exposed) == (12.5, 1.0)


def test_what_backward_hides_is_not_exposed():
    step = in_turn(PASSES, SINGLE, seconds(1, 0.5, 0.5), "gradient")
    assert (step.seconds, step.exposed) == (PASSES.seconds, 0.0) == (11.5, 0.0)


def test_after_backward_all_is_exposed():
    step = in_turn(PASSES, SINGLE, seconds(4, 1, 1), "backward")
    assert [s.start for s in step.spans] == [11, 15, 16]
    assert step.exposed == 6


def test_weights_travel_from_the_step_s_begin():
    assert in_turn(PASSES, ALL, seconds(11), "step").exposed == 0
    assert in_turn(PASSES, ALL, seconds(13), "step").exposed == 2


def test_all_gathers_go_under_the_next_forward_pass():
    """Reduce-scatters end 4, 6 and 7 s into the backward pass, which ends at 7; all-gathers take 1 s each, the last
    bucket's first: its layer waits 0.5 s at the next step's begin, half of the second is under its forward."""
    step = halves(PASSES, SINGLE, [Duration(2, 1), Duration(1, 1), Duration(1, 1)])
    assert step.seconds == pytest.approx(PASSES.seconds + 0.5)
    copies = [s for s in step.spans if s.half == "copy"]
    assert [s.bucket for s in copies] == [2, 1, 0]
    assert [s.end - s.start for s in copies] == [1, 1, 1]


def test_a_slow_network_is_the_split_schedules_limit():
    step = halves(PASSES, ALL, [Duration(30, 30)])
    assert step.seconds == pytest.approx(sum(PASSES.forward) + 6 + 60)


layer_lists = st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 5)), min_size=1, max_size=20)


@given(given=layer_lists, a=st.floats(0, 10), b=st.floats(0, 0.1), cuts=st.randoms())
def test_overlap_is_the_papers_recurrence(given, a, b, cuts):
    layers = [LayerCost(str(i), n, t) for i, (n, t) in enumerate(given)]
    bounds = sorted({0, len(layers), *(cuts.randint(0, len(layers)) for _ in range(3))})
    groups = [range(start, stop) for start, stop in itertools.pairwise(bounds)]
    ready = ready_times(layers)
    passes = Passes((0.0,) * len(layers), tuple(ready), ready[-1])
    durations = [Duration(a + b * sum(layers[i].numel for i in group)) for group in groups]
    step = in_turn(passes, groups, durations, "gradient")
    assert step.seconds == pytest.approx(finish_seconds(layers, groups, lambda n: a + b * n))
    assert step.seconds <= in_turn(passes, groups, durations, "backward").seconds + 1e-9
    split = halves(passes, groups, [Duration(d.seconds / 2, d.seconds / 2) for d in durations])
    assert split.seconds <= in_turn(passes, groups, durations, "backward").seconds + 1e-9
