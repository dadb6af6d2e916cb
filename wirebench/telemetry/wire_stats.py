"""What a run put on the wire: requests as they were served, summed per step, and the interface's own counters."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wirebench.collectives.execution.executor import RequestLog
from wirebench.comm.base import ring_reduce_bytes
from wirebench.telemetry.nic import HEADER_BYTES, Counters, InterfaceCounter

BYTES_PER_ELEMENT = 4


class OfRanks(NamedTuple):
    """By rank: bytes on the wire and bytes of gradient values per counted step, bytes on the wire of the last step."""

    wire: list[float]
    values: list[float]
    last: list[float]


class Traffic:
    """Traffic over the counted steps: rank 0's, and what each rank of this process sent.

    numel  elements of the gradient;  size  ranks;  ranks_on_this_host  those whose traffic the interface counts
    """

    def __init__(self, numel: int, size: int, nic: InterfaceCounter, ranks_on_this_host: int) -> None:
        self.dense_bytes = numel * BYTES_PER_ELEMENT
        self.size, self.nic, self.ranks_on_this_host = size, nic, ranks_on_this_host
        self.steps = self.payload = self.values = self.wire = 0
        self.sent: list[int] = []
        """Bytes on the wire of each rank of this process."""
        self.total = 0.0
        """Bytes on the wire of all steps of the run so far, counted or not: the mean of this process's ranks."""
        self.handed: list[int] = []
        """Bytes of gradient values that each rank of this process handed over."""
        self.of_ranks: OfRanks | None = None
        """Of all ranks, once the run has gathered it."""
        self.last_wires: list[int] = []
        """Bytes on the wire of the last step of each rank of this process."""
        self.last: list[RequestLog] = []
        self._nic_sent = self._nic_packets = self._nic_steps = 0
        self._nic_last: Counters | None = None

    def state_dict(self) -> dict[str, Any]:
        """The bytes of all steps so far; throughput and means are of the steps after a resume alone."""
        return {"total": self.total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.total = state["total"]

    def step(self, logs: Sequence[Sequence[RequestLog]], counted: bool) -> int:
        """Take in one step's requests, a log for each rank of this process; returns the first's bytes on the wire."""
        served, wires = logs[0], [sum(s.wire_bytes for s in log) for log in logs]
        wire = wires[0]
        self.total += sum(wires) / len(wires)
        if counted:
            values = [sum(s.value_bytes for s in log) for log in logs]
            self.sent, self.handed = _added(self.sent, wires), _added(self.handed, values)
            self.steps += 1
            self.payload += sum(s.payload_bytes for s in served)
            self.values += values[0]
            self.wire += wire
        self._read_interface(counted)
        self.last, self.last_wires = list(served), wires
        return wire

    def of_mine(self) -> OfRanks | None:
        """The same of the ranks of this process; None without a step."""
        if not self.last_wires:
            return None
        nothing, steps = [0.0] * len(self.last_wires), max(self.steps, 1)
        wire, values = ([total / steps for total in totals] for totals in (self.sent, self.handed))
        return OfRanks(wire or nothing, values or nothing, [float(count) for count in self.last_wires])

    @property
    def values_sent(self) -> float:
        """Bytes of gradient values that were handed over in the counted steps, as far as is known."""
        return float(sum(self.of_ranks.values if self.of_ranks else self.handed))

    @property
    def last_ratio(self) -> float | None:
        """`compression_ratio.wire` of the last step alone."""
        return self._wire_ratio(self.of_ranks.last if self.of_ranks else self.last_wires)

    def resume(self) -> None:
        """Training traffic begins: remember the interface's counters."""
        self._nic_last = self.nic.read()

    def pause(self) -> None:
        """Training traffic ends (evaluation, checkpoint)."""
        self._nic_last = None

    def _read_interface(self, counted: bool) -> None:
        """Add what the interface has sent since the end of the step before, if this step counts."""
        before, now = self._nic_last, self.nic.read()
        if before is None or now is None:
            return
        self._nic_last = now
        if counted:
            self._nic_sent += now.sent - before.sent
            self._nic_packets += now.packets - before.packets
            self._nic_steps += 1

    def summary(self) -> dict[str, Any]:
        """The record's `bytes_per_step`, `compression_ratio` and `requests` (those of the last step)."""
        per_step = {name: self._mean(total) for name, total in self._totals().items()}
        share = 1 / (self._nic_steps * self.ranks_on_this_host) if self._nic_steps else None
        wires = self.of_ranks.wire if self.of_ranks and self.steps else []
        return {
            "bytes_per_step": {
                "payload": per_step["payload"],
                "dense": self.dense_bytes,
                "wire": per_step["wire"],
                "wire_mean": sum(wires) / len(wires) if wires else None,
                "wire_max": max(wires, default=None),
                "nic": None if share is None else self._nic_sent * share,
                "nic_headers": None if share is None else self._nic_packets * HEADER_BYTES * share,
            },
            "compression_ratio": {
                "values": _ratio(self.dense_bytes, per_step["values"]),
                "with_indices": _ratio(self.dense_bytes, per_step["payload"]),
                "wire": self._wire_ratio(wires or [per_step["wire"] or 0.0]),
            },
            "requests": [_as_entry(served) for served in self.last],
        }

    def _wire_ratio(self, wires: Sequence[float]) -> float | None:
        """What a dense ring sends, over the mean of these."""
        dense_wire = ring_reduce_bytes(self.dense_bytes, self.size)
        return _ratio(dense_wire, sum(wires) / len(wires)) if wires else None

    def _totals(self) -> dict[str, int]:
        return {"payload": self.payload, "values": self.values, "wire": self.wire}

    def _mean(self, total: int) -> float | None:
        return total / self.steps if self.steps else None


def _added(totals: Sequence[int], more: Sequence[int]) -> list[int]:
    return [total + each for total, each in zip(totals or [0] * len(more), more, strict=True)]


def _ratio(dense: float, compressed: float | None) -> float | None:
    return dense / compressed if compressed and dense else None


def _as_entry(served: RequestLog) -> dict[str, Any]:
    return {
        "kind": served.kind,
        "plan": served.plan,
        "rounds": served.rounds,
        "bytes": served.wire_bytes,
        "payload_bytes": served.payload_bytes,
        "seconds": served.seconds,
    }
