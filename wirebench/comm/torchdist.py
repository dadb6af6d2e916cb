"""torch.distributed: NCCL where every rank has a GPU of its own, Gloo elsewhere."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wirebench.comm.base import (
    LENGTH_BYTES,
    Receive,
    as_bytes,
    device_of,
    each_once,
    lengths_go_ahead,
    received_dtype,
    ring_reduce_bytes,
)
from wirebench.comm.peers import reporting_loss

GATHER_TAG = 1
"""Of messages of an all-gather between two ranks; messages of `exchange` have 0."""


class TorchCommunicator:
    """A rank of a process group. All ranks that its methods take and return are ranks within the group.

    staged  tensors on a GPU travel through host memory: set where the group speaks Gloo only
    group   the process group; None: the default one
    """

    def __init__(self, staged: bool = False, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.size, self.staged = dist.get_rank(group), dist.get_world_size(group), staged
        self.group = group
        self._ahead: list[Any] | None = None

    def exchange(
        self,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[Receive],
        dtype: torch.dtype | None = None,
        lengths_travel: bool = False,
        device: torch.device | None = None,
        ahead: Sequence[Receive] = (),
    ) -> "_Round":
        """One round; see Communicator."""
        device = device_of(sends, receives, device)
        wire = torch.device("cpu") if self.staged else device
        lengths = lengths_go_ahead(receives, lengths_travel)
        begun = _Round(receives, received_dtype(sends, dtype), device, wire, self.group)
        if lengths:
            begun.start_with_lengths(sends)
        elif wire.type == "cuda":
            begun.start(sends)
        else:
            # Not with NCCL, which takes the messages of a pair, both ways, in the order in which both sides name them.
            begun.start(sends, self._ahead, () if self.staged else ahead)
            self._ahead = begun.ahead
        return begun

    def all_reduce(self, tensor: Tensor) -> "TorchHandle":
        """Sum over ranks, in place."""
        on_wire = self._to_wire(tensor)
        work = _start(lambda: dist.all_reduce(on_wire, group=self.group, async_op=True))
        return TorchHandle(work, lambda: _back(on_wire, tensor), ring_reduce_bytes(tensor.nbytes, self.size))

    def all_gather(self, tensor: Tensor) -> "TorchHandle":
        """Every rank's tensor; lengths are gathered first, and shorter contributions padded to the longest."""
        on_wire = self._to_wire(tensor.contiguous())
        lengths = torch.empty(self.size, dtype=torch.int64, device=on_wire.device)
        mine = torch.tensor([on_wire.numel()], dtype=torch.int64, device=on_wire.device)
        work = _start(lambda: dist.all_gather_into_tensor(lengths, mine, self.group, async_op=True))

        def result() -> list[Tensor]:
            counts = lengths.tolist()
            longest = max(counts)
            handle.wire_bytes = (self.size - 1) * (LENGTH_BYTES + longest * on_wire.element_size())
            blocks = on_wire.new_empty(self.size, longest)
            padded = on_wire if on_wire.numel() == longest else _padded(on_wire, longest)
            if longest:
                self._all_gather_alike(blocks, padded)
            return [blocks[rank, :count].to(tensor.device) for rank, count in enumerate(counts)]

        handle = TorchHandle(work, result, 0)
        return handle

    def _all_gather_alike(self, blocks: Tensor, mine: Tensor) -> None:
        """Fill `blocks`, a row a rank, with the tensors `mine` of all, which are as long as a row.

        Between two ranks Gloo's all-gather sends halves, and the word that a rank can take its second half waits in the
        one connection behind what that rank sends itself: one of both directions takes 1.5 times as long. Messages
        whose receives are posted first do not. A tag of their own keeps them apart from messages of `exchange`.
        """
        if self.size == 2 and blocks.device.type == "cpu":
            peer = 1 - self.rank
            blocks[self.rank].copy_(mine.view(-1))
            works = _post(self.group, [(peer, blocks[peer])], [(peer, mine)], GATHER_TAG)
        else:
            works = [_start(lambda: dist.all_gather(list(blocks.unbind(0)), mine, self.group, async_op=True))]
        for work in works:
            _wait(work)

    def broadcast(self, tensors: Sequence[Tensor], root: int = 0) -> "TorchHandle":
        """Overwrite with the root's, as bytes because some types Gloo lacks.

        Gloo reads and writes as many elements as a tensor has from its first one on, whatever its strides.
        """
        pairs = [(self._to_wire(each.contiguous()), each) for each in map(each_once, tensors) if each.numel()]
        on_wire = [as_bytes(flat.view(-1)) for flat, _ in pairs]
        works = _start(
            lambda: [dist.broadcast(each, group=self.group, async_op=True, group_src=root) for each in on_wire]
        )

        def result() -> None:
            for flat, tensor in pairs:
                _back(flat, tensor)

        sent = sum(t.nbytes for t in tensors) if self.rank == root and self.size > 1 else 0
        return TorchHandle(works, result, sent)

    def leave(self) -> None:
        """Destroy the group, unless the program has; no call comes after this.

        Gloo's threads end with the last reference to their group. One that lets go of a tensor while the interpreter
        ends would abort the process.
        """
        group, self.group = self.group, None
        if group is not None and group in dist.distributed_c10d._world.pg_map:
            dist.destroy_process_group(group)

    def _to_wire(self, tensor: Tensor) -> Tensor:
        return tensor.cpu() if self.staged else tensor


class TorchHandle:
    """Works of torch.distributed (its handles of calls under way), and what makes the result when they are done."""

    def __init__(self, works: Any, result: Callable[[], Any], wire_bytes: int) -> None:
        self.works = works if isinstance(works, list) else [works]
        self.result, self.wire_bytes = result, wire_bytes

    def wait(self) -> Any:
        """Block (on a GPU: the current stream) until the works are done; return the result."""
        for work in self.works:
            _wait(work)
        return self.result()


class _Round:
    """One round of messages: receives are posted before sends, lengths before contents.

    ahead  works of the next round's receives, where they are posted already; None where they are not
    """

    def __init__(
        self,
        receives: Sequence[Receive],
        dtype: torch.dtype,
        device: torch.device,
        wire: torch.device,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.receives, self.dtype, self.device, self.wire, self.group = receives, dtype, device, wire, group
        self.lengths: list[Tensor] = []
        self.buffers: list[Tensor] = []
        self.works: list[Any] = []
        self.content_works: list[Any] = []
        self.late_sends: list[tuple[int, Tensor]] = []
        self.ahead: list[Any] | None = None

    def start(
        self,
        sends: Sequence[tuple[int, Tensor]],
        posted: list[Any] | None = None,
        ahead: Sequence[Receive] = (),
    ) -> None:
        """Post what travels without lengths; `posted`: the receives' works, if the round before has posted them."""
        outgoing = self._outgoing(sends, 0)
        self.buffers = [self._buffer(what) for _, what in self.receives]
        if ahead:
            # The receives of a pair are matched with its sends in the order in which they are posted: this round's
            # must come before the next one's.
            posted = _post(self.group, self._incoming(), []) if posted is None else posted
            self.ahead = _post(self.group, [(src, self._buffer(what)) for src, what in ahead], [])
        if posted is None:
            self.content_works = _post(self.group, self._incoming(), outgoing)
        else:
            self.content_works = [*posted, *_post(self.group, [], outgoing)]

    def start_with_lengths(self, sends: Sequence[tuple[int, Tensor]]) -> None:
        """Post lengths, and contents where they need not wait for them."""
        outgoing = self._outgoing(sends, LENGTH_BYTES)
        self.lengths = [torch.empty(1, dtype=torch.int64, device=self.wire) for _ in self.receives]
        heads = [(dst, torch.tensor([t.numel()], dtype=torch.int64, device=self.wire)) for dst, t in outgoing]
        self.kept += [head for _, head in heads]
        sources = [src for src, _ in self.receives]
        self.works = _post(self.group, list(zip(sources, self.lengths, strict=True)), heads)
        # NCCL runs one call after the other: a send that starts before its own rank's receives would wait for ever.
        self.late_sends = outgoing if self.wire.type == "cuda" else []
        self.content_works = _post(self.group, [], [] if self.late_sends else outgoing)

    def _outgoing(self, sends: Sequence[tuple[int, Tensor]], head_bytes: int) -> list[tuple[int, Tensor]]:
        outgoing = [(dst, tensor.to(self.wire)) for dst, tensor in sends]
        self.kept = [tensor for _, tensor in outgoing]
        self.wire_bytes = sum(tensor.nbytes + head_bytes for tensor in self.kept)
        return outgoing

    def wait(self) -> list[Tensor]:
        for work in self.works:
            _wait(work)
        if self.lengths or self.late_sends:
            counts = [int(head.item()) for head in self.lengths]
            whats = [w if isinstance(w, Tensor) else n for (_, w), n in zip(self.receives, counts, strict=True)]
            self.buffers = [self._buffer(what) for what in whats]
            self.content_works += _post(self.group, self._incoming(), self.late_sends)
        for work in self.content_works:
            _wait(work)
        return [self._delivered(what, b) for (_, what), b in zip(self.receives, self.buffers, strict=True)]

    def _incoming(self) -> list[tuple[int, Tensor]]:
        return [(src, buffer) for (src, _), buffer in zip(self.receives, self.buffers, strict=True)]

    def _buffer(self, what: int | Tensor | None) -> Tensor:
        if isinstance(what, Tensor):
            return what if what.device == self.wire else torch.empty_like(what, device=self.wire)
        assert what is not None
        return torch.empty(what, dtype=self.dtype, device=self.wire)

    def _delivered(self, what: int | Tensor | None, buffer: Tensor) -> Tensor:
        if not isinstance(what, Tensor):
            return buffer.to(self.device)
        return what if what is buffer else what.copy_(buffer)


def _post(
    group: dist.ProcessGroup | None,
    receives: Sequence[tuple[int, Tensor]],
    sends: Sequence[tuple[int, Tensor]],
    tag: int = 0,
) -> list[Any]:
    """Post receives, then sends; nothing travels for an empty tensor, whose length both sides know."""
    both = ((dist.irecv, receives), (dist.isend, sends))
    calls = [
        dist.P2POp(call, each, group=group, tag=tag, group_peer=peer)
        for call, those in both
        for peer, each in those
        if each.numel()
    ]
    return _start(lambda: dist.batch_isend_irecv(calls)) if calls else []


def _start(call: Callable[[], Any]) -> Any:
    with reporting_loss():
        return call()


def _wait(work: Any) -> None:
    with reporting_loss():
        work.wait()


def _padded(tensor: Tensor, length: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(length - tensor.numel())])


def _back(on_wire: Tensor, tensor: Tensor) -> Tensor:
    return tensor if on_wire is tensor else tensor.copy_(on_wire)
