"""Schedulers that weigh waiting against start-ups: the paper's cases, brute force, and what must hold for any costs."""

import itertools
import json
import math
import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.costmodel.closed_forms import finish_seconds
from tests.helpers import pace
from wirebench import schedulers
from wirebench.costmodel.piecewise import Piecewise
from wirebench.gradient.schedule import LayerCost

ORACLES = json.loads((Path(__file__).parent / "oracles.json").read_text())
MERGING = ("mg_wfbp", "mg_wfbp_later", "asc_wfbp", "optimal")
PAPER = {"mg_wfbp": "greedy_t_iter", "optimal": "optimal_t_iter", "wfbp": "wfbp_t_iter"}


def backward(times, sizes):
    """Layers in backward order from the paper's 1..L."""
    return [LayerCost(f"layer{i}", n, t) for i, (t, n) in reversed(list(enumerate(zip(times, sizes, strict=True), 1)))]


def line(a, b):
    return lambda numel: a + b * numel


def finish(name, layers, cost):
    options = {"least_elements": 0} if name == "mg_wfbp_later" else {}
    return finish_seconds(layers, schedulers.build(name, **options).partition(layers, cost), cost)


def merged_layers(groups, count):
    """The paper's M: every layer of a group but its lowest, in the paper's numbers."""
    return sorted(count - i for group in groups for i in group[:-1])


@pytest.mark.parametrize("case", ORACLES, ids=lambda case: str(case["t_b[1..L]"][:4]))
def test_the_papers_cases(case):
    layers = backward(case["t_b[1..L]"], case["bytes[1..L]"])
    cost, forward = line(case["a"], case["b"]), case["t_f"]
    for name, key in PAPER.items():
        assert forward + finish(name, layers, cost) == pytest.approx(case[key], rel=1e-12), name
    groups = schedulers.build("mg_wfbp").partition(layers, cost)
    assert merged_layers(groups, len(layers)) == case["greedy_M"]
    whole = schedulers.build("sync_easgd").partition(layers, cost)
    assert forward + finish_seconds(layers, whole, cost) == pytest.approx(case["single_message_t_iter"], rel=1e-12)


def test_theorem_1_is_false():
    """Three layers: the greedy merges all and ends at 475, sending the first alone would end at 440."""
    layers, cost = backward([90, 90, 90], [35, 35, 35]), line(100, 1)
    assert schedulers.build("mg_wfbp").partition(layers, cost) == [range(3)]
    assert finish("mg_wfbp", layers, cost) == 475
    assert finish("optimal", layers, cost) == 440
    assert finish("optimal", layers, cost) < finish("wfbp", layers, cost) == 495


def all_cuts(count):
    for marks in itertools.product((False, True), repeat=count - 1):
        bounds = [0, *(i + 1 for i, cut in enumerate(marks) if cut), count]
        yield [range(start, stop) for start, stop in itertools.pairwise(bounds)]


def random_case(seed, longest=12):
    rng = random.Random(seed)
    count = rng.randint(1, longest)
    layers = [LayerCost(str(i), rng.randint(0, 200), rng.choice((0.0, rng.uniform(0, 200)))) for i in range(count)]
    a, b = rng.uniform(0, 200), rng.uniform(0, 2)
    if seed % 3:
        return layers, line(a, b)
    # A step up and a step down, as where an engine changes its algorithm: no line, and not even rising.
    step, drop = rng.randint(1, 400), rng.randint(1, 400)
    return layers, lambda numel: a + b * numel + (50 if numel > step else 0) - (40 if numel > drop else 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("block", range(20))
def test_optimal_equals_brute_force(block):
    """2,000 instances, lengths 1 to 12 (long ones rarer, as they take 2^11 cuts each)."""
    for seed in range(100 * block, 100 * block + 100):
        layers, cost = random_case(seed, longest=12 if seed % 20 == 0 else 8)
        best = min(finish_seconds(layers, cut, cost) for cut in all_cuts(len(layers)))
        assert finish("optimal", layers, cost) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_optimal_takes_lines_for_what_they_are(seed):
    """What it leaves out because lines never fall changes no cut; numbers are exact, so that many cuts end together."""
    rng, cost = random.Random(seed), Piecewise([(128, 1.0), (256, 1.0), (1024, 4.0)])
    for count in (5, 40):
        layers = [LayerCost("x", 32 * rng.randint(0, 9), rng.choice((0.0, 0.25, 1.5))) for _ in range(count)]
        found, wanted = (schedulers.build("optimal").partition(layers, each) for each in (cost, cost.__call__))
        assert found == wanted


def test_of_cuts_that_end_together_the_fewest_messages_and_the_latest_begin():
    optimal = schedulers.build("optimal")
    for count in (4, 12):
        layers = [LayerCost("x", 100, 1.0)] * count
        for cost in (line(0.25, 0), Piecewise([(100, 0.25)])):
            assert optimal.partition(layers, cost) == [range(count)]
    # The last layer ends alike alone and with the second.
    late = [LayerCost("x", 100, seconds) for seconds in (1.0, 0.0, 5.0)]
    assert optimal.partition(late, lambda numel: 0.25 if numel <= 200 else 9.0) == [range(2), range(2, 3)]


layer_lists = st.lists(
    st.builds(LayerCost, st.just("layer"), st.integers(0, 10_000), st.floats(0, 1000)), min_size=1, max_size=40
)


@given(layers=layer_lists, a=st.floats(0, 2000), b=st.floats(0, 1))
def test_optimal_is_never_later_than_any_other(layers, a, b):
    best = finish("optimal", layers, line(a, b))
    for name in schedulers.available():
        assert best <= finish(name, layers, line(a, b)) * (1 + 1e-12)


@given(layers=layer_lists, b=st.floats(0, 1))
def test_without_start_up_time_no_merging_helps(layers, b):
    ends = [finish(name, layers, line(0, b)) for name in ("optimal", "wfbp", "mg_wfbp", "asc_wfbp")]
    assert ends == pytest.approx([ends[0]] * 4, rel=1e-9, abs=1e-9)


@given(times=st.lists(st.floats(101, 1000), min_size=1, max_size=30))
def test_where_bytes_are_free_and_layers_take_longer_than_a_start_up_nothing_is_merged(times):
    layers = [LayerCost("layer", 10, t) for t in times]
    assert len(schedulers.build("mg_wfbp").partition(layers, line(100, 0))) == len(layers)


@given(layers=layer_lists, a=st.floats(0.1, 2000), b=st.floats(0, 1))
def test_units_do_not_matter(layers, a, b):
    """Times in other units, by a power of two so that rounding is the same, give the same cut."""
    scaled = [layer._replace(backward_seconds=4 * layer.backward_seconds) for layer in layers]
    for name in MERGING:
        scheduler = schedulers.build(name)
        assert scheduler.partition(layers, line(a, b)) == scheduler.partition(scaled, line(4 * a, 4 * b))


def test_the_later_rule_sends_what_is_hidden_and_fills_small_groups():
    layers = [LayerCost("x", 10_000, t) for t in (10, 50, 10)]
    cost = line(20, 0)
    # At 10 the first could be sent until 30, before the second is there at 60: it goes. The second would end at 80 and
    # the third is there at 70, less than a start-up after 60: they wait.
    assert schedulers.build("mg_wfbp_later").partition(layers, cost) == [range(1), range(1, 3)]
    # Without overlap the first does wait for nobody either, but where it is small it does.
    small = [layers[0]._replace(numel=8191), *layers[1:]]
    assert schedulers.build("mg_wfbp_later").partition(small, cost)[0] == range(3)
    assert schedulers.build("mg_wfbp_later", least_elements=0).partition(small, cost) == [range(1), range(1, 3)]


def test_asc_waits_only_while_the_network_is_busy():
    layers = [LayerCost("x", 100, t) for t in (10, 5, 5, 30)]
    # The first is sent from 10 to 60. The others are ready at 15, 20 and 50, before the network is free at 60.
    assert schedulers.build("asc_wfbp").partition(layers, line(50, 0)) == [range(1), range(1, 4)]
    assert schedulers.build("asc_wfbp").partition(layers, line(1, 0)) == [range(i, i + 1) for i in range(4)]


@pytest.mark.slow
@pytest.mark.clock
@pytest.mark.parametrize("name", schedulers.available())
def test_a_thousand_layers_take_no_longer_than_counting_to_sixty_million(name):
    rng = random.Random(5)
    layers = [LayerCost(str(i), int(math.exp(rng.uniform(5, 15))), rng.uniform(0, 1e-3)) for i in range(1000)]
    began = time.process_time()
    groups = schedulers.build(name).partition(layers, line(1e-3, 4e-9))
    assert time.process_time() - began < 6 * pace()
    assert [i for group in groups for i in group] == list(range(1000))


@pytest.mark.parametrize("name", MERGING)
def test_one_look_at_the_costs_is_enough_for_all_but_optimal(name):
    layers, asked = [LayerCost("x", 100, 1.0)] * 50, []

    def cost(numel):
        asked.append(numel)
        return 3.0

    schedulers.build(name).partition(layers, cost)
    assert len(asked) <= (50 * 51 // 2 if name == "optimal" else 3 * 50)
