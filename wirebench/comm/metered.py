"""A communicator that keeps count: bytes sent, in all and to whom, calls made, seconds waited.

To whom is also left in a folder, for comparison with the links' own counters.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from wirebench.comm.base import LENGTH_BYTES, Communicator, Handle, Receive, lengths_go_ahead
from wirebench.comm.peers import Peer
from wirebench.errors import PeerLost
from wirebench.utils.files import write_atomically

Result = TypeVar("Result")


class Count(NamedTuple):
    """Totals so far: bytes this rank sent, calls it made, seconds from a call's start to its completion."""

    wire_bytes: int = 0
    calls: int = 0
    seconds: float = 0.0

    def since(self, before: "Count") -> "Count":
        """The difference to the earlier count `before`."""
        return Count(self.wire_bytes - before.wire_bytes, self.calls - before.calls, self.seconds - before.seconds)


class Metered:
    """Wraps `communicator` and counts what passes through.

    count        totals
    sent_to      bytes by the rank they were sent to. The destinations of an engine's own calls are unknown: all bytes
                 count as sent to the next rank, as in a ring
    who_is_gone  names the ranks that are gone, for the message of a PeerLost; None: the message names no rank
    """

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.who_is_gone: Callable[[], str] | None = None
        self.rank, self.size = communicator.rank, communicator.size
        self.count = Count()
        self.sent_to: Counter[int] = Counter()

    def exchange(
        self,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[Receive],
        dtype: torch.dtype | None = None,
        lengths_travel: bool = False,
        device: torch.device | None = None,
        ahead: Sequence[Receive] = (),
    ) -> Handle:
        """One counted round."""
        handle = self.named(lambda: self.communicator.exchange(sends, receives, dtype, lengths_travel, device, ahead))
        head = LENGTH_BYTES if lengths_go_ahead(receives, lengths_travel) else 0
        return _MeteredHandle(self, handle, {destination: tensor.nbytes + head for destination, tensor in sends})

    def all_reduce(self, tensor: Tensor) -> Handle:
        """Counted sum."""
        return _MeteredHandle(self, self.named(lambda: self.communicator.all_reduce(tensor)))

    def all_gather(self, tensor: Tensor) -> Handle:
        """Counted gather."""
        return _MeteredHandle(self, self.named(lambda: self.communicator.all_gather(tensor)))

    def broadcast(self, tensors: Sequence[Tensor], root: int = 0) -> Handle:
        """Counted broadcast."""
        return _MeteredHandle(self, self.named(lambda: self.communicator.broadcast(tensors, root)))

    def named(self, call: Callable[[], Result]) -> Result:
        """The result of `call`; a PeerLost names the ranks that are gone, if `who_is_gone` knows them."""
        try:
            return call()
        except PeerLost as error:
            gone = "" if self.who_is_gone is None else self.who_is_gone()
            if not gone:
                raise
            raise PeerLost(f"lost {gone} ({error})") from error


class _MeteredHandle:
    wire_bytes = 0

    def __init__(self, meter: Metered, handle: Handle, sent_to: Mapping[int, int] | None = None) -> None:
        self.meter, self.handle, self.sent_to, self.begin = meter, handle, sent_to, time.perf_counter()

    def wait(self) -> Any:
        result = self.meter.named(self.handle.wait)
        self.wire_bytes = self.handle.wire_bytes
        total, seconds = self.meter.count, time.perf_counter() - self.begin
        self.meter.count = Count(total.wire_bytes + self.wire_bytes, total.calls + 1, total.seconds + seconds)
        if self.sent_to is None:
            self.meter.sent_to[(self.meter.rank + 1) % self.meter.size] += self.wire_bytes
        else:
            self.meter.sent_to.update(self.sent_to)
        return result


def save_counts(folder: Path, peers: Sequence[Peer], communicators: Sequence[Metered], complete: bool) -> None:
    """Write rank-N.json for every rank of this process: {rank, host, sent_to: {rank: bytes}, complete}.

    complete  the counts hold all that the ranks sent
    """
    for communicator in communicators:
        rank = communicator.rank
        content = {
            "rank": rank,
            "host": peers[rank].host,
            "sent_to": {str(other): count for other, count in sorted(communicator.sent_to.items())},
            "complete": complete,
        }
        write_atomically(folder / f"rank-{rank}.json", json.dumps(content) + "\n")
