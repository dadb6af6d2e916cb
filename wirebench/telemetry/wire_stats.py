"""What a run put on the wire: bytes of its requests, summed per step, and the network interface's own counters."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wirebench.collectives.execution.executor import RequestLog
from wirebench.comm.base import ring_reduce_bytes
from wirebench.gradient.flat import FLOAT_BYTES
from wirebench.telemetry.nic import HEADER_BYTES, Counters, InterfaceCounter


class PerRankBytes(NamedTuple):
    """Bytes by rank.

    wire    on the wire per counted step
    values  of gradient values, without indices and scales, per counted step
    last    on the wire in the last step
    """

    wire: list[float]
    values: list[float]
    last: list[float]


class Traffic:
    """Bytes over the counted steps: of the first rank of this process, and of each of its ranks.

    numel               elements of the gradient
    size                world size
    nic                 the interface whose own counters are read
    ranks_on_this_host  ranks whose bytes these counters see together
    """

    def __init__(self, numel: int, size: int, nic: InterfaceCounter, ranks_on_this_host: int) -> None:
        self.dense_bytes = numel * FLOAT_BYTES
        self.size, self.nic, self.ranks_on_this_host = size, nic, ranks_on_this_host
        self.steps = self.payload = self.values = self.wire = self.requests = 0
        self.sent: list[int] = []
        """Bytes on the wire of each rank of this process."""
        self.total = 0.0
        """Bytes on the wire of all steps of the run so far, counted or not: the mean of this process's ranks."""
        self.handed: list[int] = []
        """Bytes of gradient values that each rank of this process handed to the network."""
        self.per_rank: PerRankBytes | None = None
        """Byte counts of all ranks, once the run has gathered them."""
        self.last_wires: list[int] = []
        """Bytes that each rank of this process put on the wire in the last step."""
        self.last: list[RequestLog] = []
        self._nic_sent = self._nic_packets = self._nic_steps = 0
        self._nic_waiting = 0
        """Counted steps since the interface's counters were read."""
        self._nic_last: Counters | None = None

    def state_dict(self) -> dict[str, Any]:
        """The bytes of all steps so far; throughput and means are of the steps after a resume alone."""
        return {"total": self.total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.total = state["total"]

    def step(self, logs: Sequence[Sequence[RequestLog]], counted: bool, reads: bool = True) -> int:
        """Add one step's requests, a log for each rank of this process; returns the first rank's bytes on the wire.

        reads  read the interface's counters now; else with a later step, or in a pause, as long as all steps count
        """
        first, wires = logs[0], [sum(request.wire_bytes for request in log) for log in logs]
        wire = wires[0]
        self.total += sum(wires) / len(wires)
        if counted:
            values = [sum(request.value_bytes for request in log) for log in logs]
            self.sent, self.handed = _added(self.sent, wires), _added(self.handed, values)
            self.steps += 1
            self.requests += len(first)
            self.payload += sum(request.payload_bytes for request in first)
            self.values += values[0]
            self.wire += wire
        self._nic_waiting += counted
        if reads:
            self._read_interface(counted)
        self.last, self.last_wires = list(first), wires
        return wire

    def own_ranks(self) -> PerRankBytes | None:
        """Per-rank byte counts of this process; None without a step."""
        if not self.last_wires:
            return None
        nothing, steps = [0.0] * len(self.last_wires), max(self.steps, 1)
        wire, values = ([total / steps for total in totals] for totals in (self.sent, self.handed))
        return PerRankBytes(wire or nothing, values or nothing, [float(count) for count in self.last_wires])

    @property
    def values_sent(self) -> float:
        """Bytes of gradient values sent: by all ranks per counted step once gathered, else by this process in total."""
        return float(sum(self.per_rank.values if self.per_rank else self.handed))

    @property
    def last_ratio(self) -> float | None:
        """`compression_ratio.wire` of the last step alone."""
        return self._wire_ratio(self.per_rank.last if self.per_rank else self.last_wires)

    def resume(self) -> None:
        """Training traffic begins: remember the interface's counters."""
        self._nic_last = self.nic.read()

    def pause(self) -> None:
        """Training traffic ends (evaluation, checkpoint)."""
        self._catch_up()
        self._nic_last = None

    def _catch_up(self) -> None:
        if self._nic_waiting:
            self._read_interface(True)

    def _read_interface(self, counted: bool) -> None:
        """Add what the interface has sent since the last reading, if the steps since then count."""
        before, now = self._nic_last, self.nic.read()
        waited, self._nic_waiting = self._nic_waiting, 0
        if before is None or now is None:
            return
        self._nic_last = now
        if counted:
            self._nic_sent += now.sent - before.sent
            self._nic_packets += now.packets - before.packets
            self._nic_steps += waited

    def summary(self) -> dict[str, Any]:
        """The record's `bytes_per_step`, `compression_ratio` and `requests` (of the last step)."""
        self._catch_up()
        per_step = {name: self._mean(total) for name, total in self._totals().items()}
        share = 1 / (self._nic_steps * self.ranks_on_this_host) if self._nic_steps else None
        wires = self.per_rank.wire if self.per_rank and self.steps else []
        nic = None if share is None else self._nic_sent * share
        return {
            "bytes_per_step": {
                "payload": per_step["payload"],
                "dense": self.dense_bytes,
                "wire": per_step["wire"],
                "wire_mean": sum(wires) / len(wires) if wires else None,
                "wire_max": max(wires, default=None),
                "nic": nic,
                "nic_headers": None if share is None else self._nic_packets * HEADER_BYTES * share,
            },
            "compression_ratio": {
                "values": _ratio(self.dense_bytes, per_step["values"]),
                "with_indices": _ratio(self.dense_bytes, per_step["payload"]),
                "wire": self._wire_ratio(wires or [per_step["wire"] or 0.0]),
                "nic": None if nic is None else self._wire_ratio([nic]),
            },
            "requests": [_as_entry(request) for request in self.last],
        }

    def _wire_ratio(self, wires: Sequence[float]) -> float | None:
        """Bytes that a rank sends in a dense ring all-reduce, over the mean of `wires`."""
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


def _as_entry(request: RequestLog) -> dict[str, Any]:
    return {
        "kind": request.kind,
        "plan": request.plan,
        "rounds": request.rounds,
        "bytes": request.wire_bytes,
        "payload_bytes": request.payload_bytes,
        "seconds": request.seconds,
    }
