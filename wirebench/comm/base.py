"""The contract of a communicator: one rank's way to the others, ignorant of gradients and of algorithms."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

Receive = tuple[int, int | Tensor | None]
"""(source, what comes from it), see Communicator.exchange."""


class Handle(Protocol):
    """A call under way. The caller leaves the tensors that it handed over untouched until `wait` returns."""

    wire_bytes: int
    """Bytes that this rank sent, valid after `wait`: counted for rounds, by the algorithm's formula in native calls."""

    def wait(self) -> Any:
        """Block until the call is complete and return its result; raises PeerLost when another rank fails."""
        ...


class Communicator(Protocol):
    """Rank `rank` of `size`. Every rank makes the same calls in the same order."""

    rank: int
    size: int

    def exchange(
        self,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[Receive],
        dtype: torch.dtype | None = None,
        lengths_travel: bool = False,
        device: torch.device | None = None,
        ahead: Sequence[Receive] = (),
    ) -> Handle:
        """One round of point-to-point messages; EVERY rank calls it in EVERY round, also with nothing to send.

        sends     (destination, one-dimensional contiguous tensor)
        receives  (source, what): a number of elements, None where only the sender knows it, or a one-dimensional
                  contiguous tensor to receive into
        dtype     of the elements received where `what` is no tensor; default: the first send's dtype, else float32
        lengths_travel  each message is preceded by its length: true on every rank of a round in which any rank
                  receives None; it may be left out where this rank receives None itself
        device    of the round's tensors, the same kind on every rank; default: the first given tensor's device, else
                  the CPU. A rank that gives no tensor must pass it if the others' tensors lie on a GPU
        ahead     the next round's receives, all of them tensors, untouched until then: an engine may post them now, so
                  that their messages arrive without delay
        The result is the received tensors, in the order of `receives`. Between one pair of ranks at most one message
        travels in each direction per round.
        """
        ...

    def all_reduce(self, tensor: Tensor) -> Handle:
        """Sum over ranks, in place; the result is `tensor`."""
        ...

    def all_gather(self, tensor: Tensor) -> Handle:
        """Every rank's one-dimensional tensor, of any length; the result is a list in rank order."""
        ...

    def broadcast(self, tensors: Sequence[Tensor], root: int = 0) -> Handle:
        """Overwrite `tensors` with rank `root`'s, in place."""
        ...


LENGTH_BYTES = 8


def lengths_go_ahead(receives: Sequence[Receive], lengths_travel: bool) -> bool:
    """Whether messages of the round are preceded by their lengths."""
    return lengths_travel or any(what is None for _, what in receives)


def received_dtype(sends: Sequence[tuple[int, Tensor]], dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of what a round receives, by the rule of `Communicator.exchange`."""
    return dtype or (sends[0][1].dtype if sends else torch.float32)


def device_of(
    sends: Sequence[tuple[int, Tensor]], receives: Sequence[Receive], device: torch.device | None
) -> torch.device:
    """The device of a round's tensors, by the rule of `Communicator.exchange`."""
    given = [tensor for _, tensor in sends] + [what for _, what in receives if isinstance(what, Tensor)]
    return device or (given[0].device if given else torch.device("cpu"))


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a one-dimensional contiguous tensor, as a view."""
    # A tensor of at most one element counts as contiguous whatever its stride, but `view` wants stride 1.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def each_once(tensor: Tensor) -> Tensor:
    """A view in which each element stands for itself: an expanded tensor has one in several places."""
    for dim, stride in enumerate(tensor.stride()):
        if not stride and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def ring_reduce_bytes(num_bytes: int, size: int) -> int:
    """Bytes that one of `size` ranks sends in a ring all-reduce: the count used for engines' own all-reduce."""
    return 2 * (size - 1) * num_bytes // size
