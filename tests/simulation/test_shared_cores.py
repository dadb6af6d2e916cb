"""Gradients and compressors that share their cores, by hand: each has its share of the speed while both work."""

import functools
from dataclasses import replace

import pytest

from tests.costmodel.test_request_sizes import make_of
from tests.simulation.test_simulator import GOOGLENET, PAPER
from wirebench import collectives, schedulers
from wirebench.costmodel.request_cost import Pricer
from wirebench.costmodel.request_sizes import Sizes
from wirebench.exchange.pipeline import Passes
from wirebench.gradient.schedule import Duration
from wirebench.planner.candidate import Candidate
from wirebench.simulation.shared_cores import beside_computing, handled, share
from wirebench.simulation.simulator import Factors, Simulator
from wirebench.simulation.stages import Work
from wirebench.topology import presets
from wirebench.topology.processor import Processor

PASSES = Passes(forward=(1.0, 1.0), ready=(2.0, 10.0), backward=10.0)
SINGLE = [range(1), range(1, 2)]
EXCHANGES = [Duration(4.0, 0.5), Duration(1.0)]


BEFORE, AFTER = [Work(3.0), Work(0.0)], [Work(0.0, 3.0), Work(0.0)]


def shared(handling=(0.0, 4.0), together=0.5, works=BEFORE):
    return share(PASSES, SINGLE, EXCHANGES, works, handling, together)


def test_each_waits_for_the_other():
    """From 2 on the second gradient's first half, 2 s, and the bucket's 3 s share the cores: 6, then 7; its message
    goes until 8. From 10 on the gradient's other half has them alone."""
    passes, exchanges = shared()
    assert passes == Passes(PASSES.forward, ready=(2.0, 12.0), backward=12.0)
    assert exchanges == [Duration(6.0, 0.5), Duration(1.0)]


def test_what_is_decoded_shares_the_cores_when_its_message_has_come():
    """The message goes until 3; 1 s of the handling is left then, so the 3 s of work have it beside them until 5."""
    passes, exchanges = shared(works=AFTER)
    assert (passes.ready, exchanges[0]) == ((2.0, 12.0), Duration(7.0 - 2.0, 0.5))


@pytest.mark.parametrize(("handling", "together"), [((0.0, 0.0), 0.5), ((0.0, 4.0), 1.0)])
def test_without_handling_or_with_cores_enough_exchanges_are_as_alone(handling, together):
    passes, exchanges = shared(handling, together)
    assert exchanges == EXCHANGES and passes == handled(PASSES, handling)
    assert passes.backward == 10.0 + handling[1] / 2


def test_handling_that_is_longer_than_computing_is_waited_for():
    """20 s before the second layer is there in any case: 3 s of the bucket's work beside it take 3 s from it."""
    passes, exchanges = shared((0.0, 40.0))
    assert passes.ready[1] == pytest.approx(2 + 20 + 3 + 20) and exchanges[0].seconds == pytest.approx(6 + 1)
    assert handled(PASSES, (0.0, 40.0)).ready == (2.0, 42.0)


@pytest.mark.parametrize(
    ("cores", "ranks", "speed"), [(0, 8, 1.0), (4, 2, 1.0), (3, 2, 0.75), (2, 2, 0.5), (2, 8, 0.5)]
)
def test_two_threads_have_half_of_what_their_rank_has(cores, ranks, speed):
    assert Processor(cores=cores).together_speed(ranks) == speed


@pytest.mark.parametrize(("threads", "cores", "speed"), [(1, 1, 0.5), (2, 1, 2 / 3), (2, 2, 2 / 3), (2, 3, 1.0)])
def test_of_several_threads_that_compute_one_in_so_many_more_is_lost(threads, cores, speed):
    assert Processor(cores=cores).together_speed(1, threads) == pytest.approx(speed)


def test_a_backward_pass_that_the_cores_compute_takes_longer_by_the_work_beside_it():
    """From 2 on 3 s of the bucket's work take 6 s, and 3 s of the 8 s of computation are done by then: 8 + 5 = 13."""
    passes, exchanges = beside_computing(PASSES._replace(backward=11.0), SINGLE, EXCHANGES, BEFORE, 0.5)
    assert passes == Passes(PASSES.forward, ready=(2.0, 13.0), backward=14.0)
    assert exchanges == [Duration(7.0, 0.5), Duration(1.0)], "a message of 1 s follows the work"


def made(processor: Processor, ranks: int, threads: int = 0) -> Simulator:
    topology = replace(presets.cluster(PAPER, ranks), processor=processor)
    pricer = Pricer(collectives.build("ring"), topology)
    return Simulator(GOOGLENET, Sizes(make_of("topk"), ranks, 0), lambda numel: 1e-8 * numel, pricer, None, threads)


def test_what_cores_compute_is_slowed_down_by_compressing_and_by_calls_beside_it():
    """Replayed passes take no core; those of hosts with cores to spare are not slowed down."""
    built = schedulers.build("wfbp")
    free, calls = Processor(cores=2.0), Processor(cores=2.0, call_seconds=1e-4)
    replayed, computed, called = made(free, 2).step(built), made(free, 2, 1).step(built), made(calls, 2, 1).step(built)
    assert replayed.passes.seconds == replayed.alone == computed.alone
    assert replayed.passes.backward < computed.passes.backward < called.passes.backward
    assert computed.step.exposed == pytest.approx(computed.step.seconds - computed.alone)
    for spare, threads in ((Processor(cores=4.0), 1), (Processor(), 8)):
        assert made(spare, 2, threads).step(built).step == made(spare, 2).step(built).step
    naive = schedulers.build("naive")
    assert made(free, 2, 1).step(naive).step == made(free, 2).step(naive).step, "nothing is beside the backward pass"


@pytest.mark.parametrize("scheduler", ["wfbp", "optimal", "dear", "naive"])
def test_a_machine_that_plays_all_hosts_handles_their_gradients(scheduler):
    cores, built = Processor(cores=2.0), schedulers.build(scheduler)
    handles = replace(cores, gradient_seconds_per_byte=5e-9)
    bare, found, crowded = (made(each, ranks).step(built) for each, ranks in ((cores, 2), (handles, 2), (handles, 8)))
    assert bare.step.seconds < found.step.seconds < crowded.step.seconds
    assert crowded.passes.backward > found.passes.backward and bare.alone == crowded.alone
    assert crowded.step.exposed == pytest.approx(crowded.step.seconds - crowded.alone)
    again = made(handles, 8)
    assert again.stretched(again.step(built), built, Factors(1.0, 1.0)) == again.step(built).step


@pytest.mark.parametrize("scheduler", ["easgd", "outer", "sync_easgd"])
def test_gradients_that_nobody_compresses_meanwhile_are_handled_all_the_same(scheduler):
    built, handles = schedulers.build(scheduler), made(Processor(cores=2.0, gradient_seconds_per_byte=5e-9), 8)
    found = handles.step(built)
    assert found.passes == handled(handles.passes, [4 * 4 * 5e-9 * each.numel for each in handles.layers])
    assert found.step.exposed == pytest.approx(found.step.seconds - found.alone)


def test_hosts_of_their_own_have_cores_to_spare():
    bare, handles = (Processor(gradient_seconds_per_byte=each) for each in (0.0, 5e-9))
    assert made(handles, 8).step(schedulers.build("wfbp")) == made(bare, 8).step(schedulers.build("wfbp"))


def test_a_step_that_handles_gradients_is_not_said_to_be_faster_when_nothing_overlaps():
    simulator, naive = made(Processor(cores=2.0, gradient_seconds_per_byte=5e-9), 8), schedulers.build("naive")
    found = simulator.step(naive)
    stretched = functools.partial(simulator.stretched, found, naive)
    advice = Candidate("topk", "naive", "ring", found, 8.0, stretched, (Factors(1.0, 1.0), Factors(1.0, 1.0)))
    assert found.alone + found.compress + found.communicate < found.step.seconds
    assert advice.serial == pytest.approx(advice.images_per_second)
    assert advice.serial_between.high == pytest.approx(advice.images_between.high)


@pytest.mark.parametrize(
    ("elements", "times"), [(0, 3.0), (4_000, 3.0), (270_000, 3.0), (1_992_235, 2.0), (14_700_000, 1.0), (10**9, 1.0)]
)
def test_a_vector_that_no_cache_holds_is_compressed_as_fast_as_it_was_timed(elements: int, times: float) -> None:
    """In the middle of 0.27 and 14.7 million, by the logarithm, half of the factor's two more is left."""
    assert Processor(compress_factor=3.0).slower_by(elements) == pytest.approx(times, rel=1e-5)
    assert Processor().slower_by(elements) == 1.0
