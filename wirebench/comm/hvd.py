"""Horovod: its own collectives for native calls; rounds of plans beside it, because it has no send and receive."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wirebench.comm.base import (
    Communicator,
    Handle,
    Receive,
    as_bytes,
    device_of,
    each_once,
    received_dtype,
    ring_reduce_bytes,
)
from wirebench.comm.peers import reporting_loss
from wirebench.errors import PeerLost, UserError

REDUCIBLE = (torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
"""The dtypes that Horovod 0.28 can sum; it cannot sum bfloat16."""

ROUND_NAMES = 64
"""More than the rounds that can be under way at once."""


class HorovodCommunicator:
    """A rank of the Horovod job.

    beside           runs the rounds of plans, and the sums that Horovod has no type for: torch.distributed in the same
                     process. None: rounds become one `alltoall` each, which needs nothing beside Horovod and is slower
    timeout_seconds  after this long a call counts as lost
    """

    def __init__(self, hvd: Any, beside: Communicator | None, timeout_seconds: float) -> None:
        self.hvd, self.beside, self.timeout_seconds = hvd, beside, timeout_seconds
        self.rank, self.size = hvd.rank(), hvd.size()
        self._rounds = 0

    def exchange(
        self,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[Receive],
        dtype: torch.dtype | None = None,
        lengths_travel: bool = False,
        device: torch.device | None = None,
        ahead: Sequence[Receive] = (),
    ) -> Handle:
        """One round; see Communicator."""
        if self.beside is not None:
            return self.beside.exchange(sends, receives, dtype, lengths_travel, device, ahead)
        return self._all_to_all(sends, receives, received_dtype(sends, dtype), device_of(sends, receives, device))

    def all_reduce(self, tensor: Tensor) -> Handle:
        """Sum over ranks, in place."""
        if tensor.dtype not in REDUCIBLE:
            if self.beside is None:
                kind = str(tensor.dtype).removeprefix("torch.")
                raise UserError(f'engine.rounds: Horovod cannot sum {kind}; set engine.rounds = "p2p"')
            return self.beside.all_reduce(tensor)
        name = f"wirebench.sum.{tensor.numel()}.{tensor.dtype}"
        with reporting_loss():
            call = self.hvd.allreduce_async_(tensor, name=name, op=self.hvd.Sum)
        return self._handle(call, lambda _: tensor, ring_reduce_bytes(tensor.nbytes, self.size))

    def all_gather(self, tensor: Tensor) -> Handle:
        """Every rank's tensor: one gather of lengths, one of contents, as bytes because some types Horovod lacks."""
        with reporting_loss():
            lengths_call = self.hvd.allgather_async(torch.tensor([tensor.nbytes]), name="wirebench.lengths")

        def result(lengths: Tensor) -> list[Tensor]:
            counts = lengths.tolist()
            # The ring passes on every block but the right neighbour's own.
            others = sum(counts) - counts[(self.rank + 1) % self.size]
            handle.wire_bytes = others + (self.size - 1) * lengths.element_size()
            if not sum(counts):
                return [tensor.new_empty(0) for _ in counts]
            with reporting_loss():
                call = self.hvd.allgather_async(as_bytes(tensor), name="wirebench.gather")
            return [part.view(tensor.dtype) for part in self._wait(call).split(counts)]

        handle = self._handle(lengths_call, result, 0)
        return handle

    def broadcast(self, tensors: Sequence[Tensor], root: int = 0) -> Handle:
        """Overwrite with the root's, as bytes because some types Horovod lacks."""
        pairs = [(each, each.contiguous()) for each in map(each_once, tensors) if each.numel()]
        with reporting_loss():
            calls = [
                self.hvd.broadcast_async_(as_bytes(flat.view(-1)), root, name=f"wirebench.broadcast.{number}")
                for number, (_, flat) in enumerate(pairs)
            ]

        def result() -> None:
            for call, (tensor, flat) in zip(calls, pairs, strict=True):
                self._wait(call)
                if flat is not tensor:
                    tensor.copy_(flat)

        sent = sum(t.nbytes for t in tensors) if self.rank == root and self.size > 1 else 0
        return _HorovodHandle(result, sent)

    def _handle(self, call: int, result: Callable[[Any], Any], wire_bytes: int) -> "_HorovodHandle":
        return _HorovodHandle(lambda: result(self._wait(call)), wire_bytes)

    def _all_to_all(
        self,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[Receive],
        dtype: torch.dtype,
        device: torch.device,
    ) -> "_HorovodHandle":
        """The round as one alltoall of bytes, which every rank enters: lengths are negotiated by Horovod."""
        parts: dict[int, Tensor] = {dst: as_bytes(tensor) for dst, tensor in sends}
        nothing = torch.empty(0, dtype=torch.uint8, device=device)
        ordered = [parts.get(rank, nothing) for rank in range(self.size)]
        splits = torch.tensor([part.numel() for part in ordered], dtype=torch.int32)
        # Several rounds may be under way, and Horovod tells them apart by name; few names, since it keeps them all.
        self._rounds += 1
        with reporting_loss():
            name = f"wirebench.round.{self._rounds % ROUND_NAMES}"
            call = self.hvd.alltoall_async(torch.cat(ordered), splits, name=name)

        def result(answer: tuple[Tensor, Tensor]) -> list[Tensor]:
            pieces = answer[0].split(answer[1].tolist())
            return [_delivered(what, pieces[source].clone(), dtype) for source, what in receives]

        return self._handle(call, result, sum(part.numel() for part in ordered))

    def _wait(self, call: int) -> Any:
        """Poll, then synchronise: Horovod's own wait spins, and starves its thread where ranks outnumber cores."""
        deadline, pause = time.monotonic() + self.timeout_seconds, 20e-6
        with reporting_loss():
            while not self.hvd.poll(call):
                if time.monotonic() > deadline:
                    raise PeerLost(f"no answer from the other ranks for {self.timeout_seconds:g} s")
                time.sleep(pause)
                pause = min(pause * 1.5, 500e-6)
            return self.hvd.synchronize(call)


class _HorovodHandle:
    def __init__(self, result: Callable[[], Any], wire_bytes: int) -> None:
        self.result, self.wire_bytes = result, wire_bytes

    def wait(self) -> Any:
        return self.result()


def _delivered(what: int | Tensor | None, piece: Tensor, dtype: torch.dtype) -> Tensor:
    """A received piece as the caller wants it. `piece` is a copy, so that it is aligned for any dtype."""
    if isinstance(what, Tensor):
        return what.copy_(piece.view(what.dtype))
    return piece.view(dtype)
