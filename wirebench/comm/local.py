"""Virtual workers: all ranks live in one process and take turns; their messages are copies in memory.

The driver lets every rank post its part of a call before any rank waits for it. A wait that finds nothing is therefore
a mistake in the calls' order, and raises an AssertionError instead of hanging.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wirebench.comm.base import LENGTH_BYTES, Receive, each_once, lengths_go_ahead, received_dtype, ring_reduce_bytes

SEGMENT_BYTES = 1 << 20


class LocalHub:
    """What `size` virtual workers share: mail between pairs, and calls of all; `communicators[rank]` is each one's way.

    mail   messages on their way, by (source, destination), in the order in which they were sent
    calls  the ranks' parts of collective calls, by (kind, number)
    sums   the sum of the last all-reduce that was computed, by its number
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.mail: defaultdict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self.calls: dict[tuple[str, int], dict[int, list[Tensor]]] = {}
        self.sums: dict[int, Tensor] = {}
        self.communicators = [LocalCommunicator(self, rank) for rank in range(size)]

    def post(self, kind: str, number: int, rank: int, tensors: list[Tensor]) -> None:
        """Rank `rank` takes part in the `number`th call of its kind with `tensors`, which the hub keeps."""
        self.calls.setdefault((kind, number), {})[rank] = tensors

    def posted(self, kind: str, number: int) -> dict[int, list[Tensor]]:
        """All ranks' parts of a call."""
        parts = self.calls[kind, number]
        missing = [rank for rank in range(self.size) if rank not in parts]
        assert not missing, f"{kind} call {number}: ranks {missing} have not made it"
        return parts

    def sum_of(self, number: int) -> Tensor:
        """The sum of all ranks' tensors of an all-reduce, computed once."""
        if number not in self.sums:
            parts = self.posted("all_reduce", number)
            self.sums = {number: ring_sum([parts[rank][0] for rank in range(self.size)])}
        return self.sums[number]


def ring_sum(tensors: Sequence[Tensor]) -> Tensor:
    """Sum of the ranks' tensors, in the order of Gloo's ring: equal, to the bit, to what real processes get from Gloo.

    Rank k's chunk starts at its lower neighbour and collects the others' downwards until it arrives at rank k. Chunks
    are whole segments of at most 1 MiB, at least two per rank (gloo/allreduce.cc, algorithm RING).
    """
    size, total = len(tensors), torch.empty_like(tensors[0])
    flat, parts = total.view(-1), [tensor.reshape(-1) for tensor in tensors]
    element, num_bytes = total.element_size(), total.nbytes
    segments = max(math.ceil(num_bytes / SEGMENT_BYTES), 2 * size)
    segments += -segments % size
    segment_items = math.ceil(math.ceil(num_bytes / segments) / element)
    chunk = segment_items * (segments // size)
    for rank in range(size):
        piece = slice(min(rank * chunk, flat.numel()), min((rank + 1) * chunk, flat.numel()))
        flat[piece] = parts[(rank - 1) % size][piece]
        for step in range(2, size + 1):
            flat[piece] += parts[(rank - step) % size][piece]
    return total


class LocalHandle:
    """A call whose result is computed when it is waited for."""

    def __init__(self, result: Callable[[], Any], wire_bytes: int) -> None:
        self.result, self.wire_bytes = result, wire_bytes

    def wait(self) -> Any:
        """The result of the call."""
        return self.result()


class LocalCommunicator:
    """One virtual worker's way to the others."""

    def __init__(self, hub: LocalHub, rank: int) -> None:
        self.hub, self.rank, self.size = hub, rank, hub.size
        self.made: defaultdict[str, int] = defaultdict(int)

    def exchange(
        self,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[Receive],
        dtype: torch.dtype | None = None,
        lengths_travel: bool = False,
        device: torch.device | None = None,
        ahead: Sequence[Receive] = (),
    ) -> LocalHandle:
        """One round; see Communicator."""
        expected = received_dtype(sends, dtype)
        for destination, tensor in sends:
            self.hub.mail[self.rank, destination].append(tensor.clone())

        def result() -> list[Tensor]:
            return [self._take(source, what, expected) for source, what in receives]

        lengths = LENGTH_BYTES * len(sends) if lengths_go_ahead(receives, lengths_travel) else 0
        return LocalHandle(result, lengths + sum(tensor.nbytes for _, tensor in sends))

    def all_reduce(self, tensor: Tensor) -> LocalHandle:
        """Sum over ranks, in place."""
        number = self._post("all_reduce", [tensor.clone()])
        return LocalHandle(lambda: tensor.copy_(self.hub.sum_of(number)), ring_reduce_bytes(tensor.nbytes, self.size))

    def all_gather(self, tensor: Tensor) -> LocalHandle:
        """Every rank's tensor."""
        number = self._post("all_gather", [tensor.clone()])

        def result() -> list[Tensor]:
            parts = self.hub.posted("all_gather", number)
            handle.wire_bytes = sum(p[0].nbytes for r, p in parts.items() if r != (self.rank + 1) % self.size)
            return [parts[rank][0].clone() for rank in range(self.size)]

        handle = LocalHandle(result, 0)
        return handle

    def broadcast(self, tensors: Sequence[Tensor], root: int = 0) -> LocalHandle:
        """Overwrite with the root's."""
        own = list(map(each_once, tensors))
        number = self._post("broadcast", [t.clone() for t in own])

        def result() -> None:
            for mine, theirs in zip(own, self.hub.posted("broadcast", number)[root], strict=True):
                mine.copy_(theirs)

        return LocalHandle(result, sum(t.nbytes for t in tensors) if self.rank == root and self.size > 1 else 0)

    def _post(self, kind: str, tensors: list[Tensor]) -> int:
        self.made[kind] += 1
        number = self.made[kind]
        self.hub.post(kind, number, self.rank, tensors)
        # A rank makes a call only when it has finished the one before, which needed all ranks: so all ranks have made
        # the call before this one, and have finished the one before that.
        self.hub.calls.pop((kind, number - 2), None)
        return number

    def _take(self, source: int, what: int | Tensor | None, dtype: torch.dtype) -> Tensor:
        box = self.hub.mail[source, self.rank]
        assert box, f"rank {self.rank} waits for rank {source}, which sent nothing in this round"
        message = box.popleft()
        if isinstance(what, Tensor):
            return what.copy_(message)
        assert what is None or message.numel() == what, f"{message.numel()} elements came instead of {what}"
        assert message.dtype == dtype, f"{message.dtype} came instead of {dtype}"
        return message
