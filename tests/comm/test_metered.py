"""Metering: what passes is counted after it is complete, and passed on unchanged."""

import time
from typing import Any

import torch

from tests.comm.contract import CHECKS
from wirebench.comm.local import LocalHub
from wirebench.comm.metered import Count, Metered
from wirebench.exchange.advance import run


def test_every_kind_of_call_is_counted_and_passed_on():
    meters = [Metered(communicator) for communicator in LocalHub(3).communicators]
    for name in ("messages_of_known_length", "sums", "gathers", "broadcasts"):
        before = meters[0].count
        run([CHECKS[name](meter) for meter in meters])
        assert meters[0].count.since(before).calls > 0, name
        assert meters[0].count.since(before).wire_bytes > 0, name


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
