"""Virtual workers and metering: the contract of a communicator, calls in the wrong order, what is counted."""

import time
from typing import Any

import pytest
import torch

from tests.comm.contract import CHECKS
from wirebench.comm.local import LocalHub
from wirebench.comm.metered import Count, Metered
from wirebench.exchange.advance import run


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("size", [3, 4])
def test_the_contract(name, size):
    hub = LocalHub(size)
    meters = [Metered(communicator) for communicator in hub.communicators]
    run([CHECKS[name](meter) for meter in meters])
    assert not any(hub.mail.values()), "a message was sent that nobody took"
    assert all(meter.count.calls > 0 for meter in meters)
    assert any(meter.count.wire_bytes for meter in meters) == (name != "rounds_without_a_message")


def test_buffers_may_be_changed_once_a_round_has_begun():
    first, second = LocalHub(2).communicators
    tensor = torch.ones(2)
    handle = first.exchange([(1, tensor)], [])
    tensor.zero_()
    handle.wait()
    (got,) = second.exchange([], [(0, 2)]).wait()
    assert torch.equal(got, torch.ones(2))


def test_waiting_for_what_nobody_sent_is_a_mistake():
    with pytest.raises(AssertionError, match="rank 0 waits for rank 1, which sent nothing in this round"):
        LocalHub(2).communicators[0].exchange([], [(1, 3)]).wait()


def test_waiting_for_ranks_that_have_not_called_is_a_mistake():
    with pytest.raises(AssertionError, match=r"all_reduce call 1: ranks \[1, 2\] have not made it"):
        LocalHub(3).communicators[0].all_reduce(torch.ones(1)).wait()


@pytest.mark.parametrize(
    ("sent", "expected", "words"),
    [(torch.ones(2), 3, "2 elements came instead of 3"), (torch.ones(3).double(), 3, "float64 came instead of")],
)
def test_messages_that_are_not_as_announced_are_a_mistake(sent, expected, words):
    first, second = LocalHub(2).communicators
    first.exchange([(1, sent)], [])
    with pytest.raises(AssertionError, match=words):
        second.exchange([], [(0, expected)], torch.float32).wait()


def test_old_calls_are_forgotten():
    hub = LocalHub(2)
    for _ in range(10):
        for handle in [communicator.all_reduce(torch.ones(1)) for communicator in hub.communicators]:
            handle.wait()
    assert len(hub.calls) <= 2
    assert len(hub.sums) == 1


def test_a_call_counts_when_it_is_complete():
    first, second = (Metered(communicator) for communicator in LocalHub(2).communicators)
    handle = first.exchange([(1, torch.ones(3))], [])
    assert first.count == Count()
    handle.wait()
    second.exchange([], [(0, 3)]).wait()
    assert (first.count.wire_bytes, first.count.calls) == (12, 1)
    assert (second.count.wire_bytes, second.count.calls) == (0, 1)


def test_seconds_reach_from_the_start_to_the_completion():
    meter, began = Metered(LocalHub(1).communicators[0]), time.perf_counter()
    handle = meter.all_reduce(torch.ones(1))
    time.sleep(0.02)
    handle.wait()
    assert 0.02 <= meter.count.seconds <= time.perf_counter() - began


def test_options_of_a_round_are_passed_on():
    seen = []

    class Recorder:
        rank, size = 0, 2

        def exchange(self, *arguments):
            seen.append(arguments)

    device = torch.device("meta")
    given: Any = ([], [(1, None)], torch.float64, True, device, [(1, torch.ones(2))])
    Metered(Recorder()).exchange(*given)  # type: ignore[arg-type]
    assert seen == [given]
