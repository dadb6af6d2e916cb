"""Traffic: bytes per counted step, ratios, and the interface's counter divided among its ranks."""

from collections.abc import Iterator, Sequence
from typing import cast

import pytest

from wirebench.collectives.execution.executor import RequestLog
from wirebench.telemetry.nic import Counters, InterfaceCounter
from wirebench.telemetry.wire_stats import PerRankBytes, Traffic

DENSE = RequestLog("Sum", "ring", 6, 400, 400, 600, 0.5)
SPARSE = RequestLog("Gather", "native", 1, 80, 40, 240, 0.25)


class Counter:
    """An interface whose counter reads these values, one after the other."""

    def __init__(self, values: Sequence[int | None] = ()) -> None:
        self.values: Iterator[int | None] = iter(values)

    def read(self) -> Counters | None:
        value = next(self.values, None)
        return None if value is None else Counters(value, 0, value // 1000)


def traffic(values: Sequence[int | None] = (), size: int = 4, here: int = 1) -> Traffic:
    return Traffic(100, size, cast(InterfaceCounter, Counter(values)), here)


def test_bytes_are_means_over_counted_steps():
    counted = traffic()
    assert counted.step([[DENSE, DENSE]], counted=False) == 1200
    assert counted.step([[DENSE]], counted=True) == 600
    assert counted.step([[SPARSE, SPARSE]], counted=True) == 480
    found = counted.summary()
    assert found["bytes_per_step"] == {
        "payload": 280.0, "dense": 400, "wire": 540.0, "wire_mean": None, "wire_max": None, "nic": None,
        "nic_headers": None,
    }  # fmt: skip


def test_ratios_compare_with_the_dense_gradient_and_with_its_ring():
    counted = traffic()
    counted.step([[SPARSE]], counted=True)
    # A ring of 4 sends 2 * 3 / 4 of 400 bytes.
    assert counted.summary()["compression_ratio"] == {
        "values": 10.0,
        "with_indices": 5.0,
        "wire": 600 / 240,
        "nic": None,
    }


def test_requests_are_those_of_the_last_step():
    counted = traffic()
    counted.step([[SPARSE]], counted=True)
    counted.step([[DENSE, SPARSE]], counted=True)
    assert counted.summary()["requests"] == [
        {"kind": "Sum", "plan": "ring", "rounds": 6, "bytes": 600, "payload_bytes": 400, "seconds": 0.5},
        {"kind": "Gather", "plan": "native", "rounds": 1, "bytes": 240, "payload_bytes": 80, "seconds": 0.25},
    ]


def test_without_counted_steps_nothing_is_known():
    counted = traffic()
    counted.step([[DENSE]], counted=False)
    found = counted.summary()
    unknown = dict.fromkeys(("payload", "wire", "wire_mean", "wire_max", "nic", "nic_headers"))
    assert found["bytes_per_step"] == {**unknown, "dense": 400}
    assert set(found["compression_ratio"].values()) == {None}


def test_a_single_worker_has_no_wire_ratio():
    counted = traffic(size=1)
    counted.step([[RequestLog("Sum", "none", 0, 400, 400, 0, 0.0)]], counted=True)
    assert counted.summary()["compression_ratio"] == {"values": 1.0, "with_indices": 1.0, "wire": None, "nic": None}


@pytest.mark.parametrize("here", [1, 2])
def test_the_interfaces_bytes_are_those_of_counted_steps_and_are_shared(here):
    # 0 to 3000 in warm-up; 3000 to 5000 in two steps; 5000 to 9000 in a pause; 9000 to 13000 in one step.
    counted = traffic([0, 3000, 4000, 5000, 9000, 13_000], here=here)
    counted.resume()
    counted.step([[DENSE]], counted=False)
    counted.step([[DENSE]], counted=True)
    counted.step([[DENSE]], counted=True)
    counted.pause()
    counted.resume()
    counted.step([[DENSE]], counted=True)
    counted.pause()
    found = counted.summary()["bytes_per_step"]
    assert (found["nic"], found["nic_headers"]) == (2000 / here, 66 * 2 / here)
    assert counted.summary()["compression_ratio"]["nic"] == pytest.approx(600 / (2000 / here))


def test_the_interface_may_be_read_once_for_several_steps():
    # 0 to 3000 in warm-up; 3000 to 5000 in two steps; a pause; 9000 to 13000 in a step that nothing was read after.
    counted = traffic([0, 3000, 5000, 9000, 13_000, 50_000])
    counted.resume()
    counted.step([[DENSE]], counted=False)
    counted.step([[DENSE]], counted=True, reads=False)
    counted.step([[DENSE]], counted=True, reads=False)
    counted.pause()
    counted.resume()
    counted.step([[DENSE]], counted=True, reads=False)
    assert counted.summary()["bytes_per_step"]["nic"] == 2000
    counted.pause()
    counted.pause()
    assert counted.summary()["bytes_per_step"]["nic"] == 2000


def test_an_interface_that_cannot_be_read_says_nothing():
    counted = traffic([None, None])
    counted.resume()
    counted.step([[DENSE]], counted=True)
    counted.pause()
    assert counted.summary()["bytes_per_step"]["nic"] is None


def test_what_all_ranks_sent_counts_for_the_ratio():
    counted = traffic(size=4)
    counted.step([[SPARSE], [DENSE]], counted=False)
    counted.step([[SPARSE], [DENSE], [SPARSE], [SPARSE, SPARSE]], counted=True)
    assert counted.own_ranks() == ([240, 600, 240, 480], [40, 400, 40, 80], [240, 600, 240, 480])
    counted.per_rank = counted.own_ranks()
    found = counted.summary()
    assert (found["bytes_per_step"]["wire_mean"], found["bytes_per_step"]["wire_max"]) == (390.0, 600.0)
    assert found["compression_ratio"]["wire"] == 600 / 390
    assert counted.values_sent == 560


def test_the_last_step_has_a_ratio_of_its_own():
    counted = traffic()
    assert (counted.own_ranks(), counted.last_ratio) == (None, None)
    counted.step([[DENSE]], counted=True)
    counted.step([[SPARSE]], counted=False)
    assert counted.last_ratio == 600 / 240
    counted.per_rank = PerRankBytes([600.0] * 4, [400.0] * 4, [240.0, 240.0, 120.0, 120.0])
    assert counted.last_ratio == 600 / 180
    assert counted.summary()["compression_ratio"]["wire"] == 1.0


def test_a_last_step_that_does_not_count_changes_no_mean():
    counted = traffic()
    counted.step([[DENSE]], counted=False)
    counted.per_rank = counted.own_ranks()
    assert counted.summary()["bytes_per_step"]["wire_mean"] is None
    assert counted.summary()["compression_ratio"]["wire"] is None
