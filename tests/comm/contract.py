"""What every communicator does, as generators that yield a handle per call: one code for real and for virtual ranks.

Each check runs on every rank of a world of at least three and raises AssertionError where an answer is wrong.
"""

from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor

from wirebench.comm.base import Communicator, Handle, Receive

Check = Generator[Handle, Any, None]
CHECKS: dict[str, Callable[[Communicator], Check]] = {}

FLOATS = (torch.float16, torch.float32, torch.float64)
WHOLE = (torch.int32, torch.int64)
DTYPES = (*FLOATS, torch.bfloat16, *WHOLE, torch.uint8, torch.bool)


def check(function: Callable[[Communicator], Check]) -> Callable[[Communicator], Check]:
    """Add `function` to CHECKS under its name."""
    CHECKS[function.__name__] = function
    return function


def message(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What rank `rank` sends: its number in every element, and a ramp."""
    return (torch.arange(numel) % 7 + 10 * rank).to(dtype)


def neighbours(c: Communicator) -> tuple[int, int]:
    """(left, right) on a ring."""
    return (c.rank - 1) % c.size, (c.rank + 1) % c.size


def same(got: Any, expected: Tensor) -> None:
    assert isinstance(got, Tensor)
    assert got.dtype == expected.dtype, f"{got.dtype} instead of {expected.dtype}"
    assert torch.equal(got, expected), f"{got} instead of {expected}"


@check
def messages_of_known_length(c: Communicator) -> Check:
    left, right = neighbours(c)
    for numel in (1, 5, 0, 100_000):
        handle = c.exchange([(right, message(c.rank, numel))], [(left, numel)])
        (got,) = yield handle
        same(got, message(left, numel))
        assert handle.wire_bytes == 4 * numel


@check
def messages_whose_length_only_the_sender_knows(c: Communicator) -> Check:
    left, right = neighbours(c)
    for longest in (3, 0, 50_000):
        numel, theirs = longest * c.rank, longest * left
        (got,) = yield c.exchange([(right, message(c.rank, numel))], [(left, None)])
        same(got, message(left, theirs))


@check
def every_dtype_travels(c: Communicator) -> Check:
    left, right = neighbours(c)
    for dtype in DTYPES:
        (known,) = yield c.exchange([(right, message(c.rank, 3, dtype))], [(left, 3)])
        same(known, message(left, 3, dtype))
        (unknown,) = yield c.exchange([(right, message(c.rank, 3, dtype))], [(left, None)])
        same(unknown, message(left, 3, dtype))


@check
def a_rank_that_only_receives_is_told_the_dtype(c: Communicator) -> Check:
    for lengths_travel in (False, True):
        sends = [(0, message(c.rank, 4, torch.float64))] if c.rank == 1 else []
        receives: list[Receive] = [(1, None if lengths_travel else 4)] if c.rank == 0 else []
        got = yield c.exchange(sends, receives, torch.float64, lengths_travel)
        assert len(got) == len(receives)
        for each in got:
            same(each, message(1, 4, torch.float64))


@check
def received_into_a_part_of_a_tensor(c: Communicator) -> Check:
    left, right = neighbours(c)
    for dtype in (torch.float32, torch.bfloat16):
        whole = torch.zeros(9, dtype=dtype)
        (got,) = yield c.exchange([(right, message(c.rank, 3, dtype))], [(left, whole[3:6])])
        same(whole[3:6], message(left, 3, dtype))
        assert got.data_ptr() == whole[3:6].data_ptr()
        assert not whole[:3].any()
        assert not whole[6:].any()


@check
def lengths_travel_for_all_where_one_rank_needs_one(c: Communicator) -> Check:
    left, right = neighbours(c)
    into = torch.zeros(2)
    what = {0: None, 1: 2}.get(c.rank, into)
    handle = c.exchange([(right, message(c.rank, 2))], [(left, what)], lengths_travel=True)
    (got,) = yield handle
    same(got, message(left, 2))


@check
def rounds_without_a_message(c: Communicator) -> Check:
    for lengths_travel in (False, True):
        handle = c.exchange([], [], lengths_travel=lengths_travel)
        assert (yield handle) == []
        assert handle.wire_bytes == 0


@check
def the_next_rounds_messages_are_asked_for_ahead(c: Communicator) -> Check:
    left, right = neighbours(c)
    into = [torch.zeros(4) for _ in range(5)]
    for number, buffer in enumerate(into):
        # Now and then a round knows nothing of the next.
        ahead: list[Receive] = [(left, into[number + 1])] if number in (0, 1, 3) else []
        handle = c.exchange([(right, torch.full((4,), 10.0 * c.rank + number))], [(left, buffer)], ahead=ahead)
        (got,) = yield handle
        same(got, torch.full((4,), 10.0 * left + number))
        assert got.data_ptr() == buffer.data_ptr()
    (got,) = yield c.exchange([(right, message(c.rank, 3))], [(left, None)])
    same(got, message(left, 3))


@check
def a_message_between_every_pair(c: Communicator) -> Check:
    others = [rank for rank in range(c.size) if rank != c.rank]
    sends = [(dst, message(10 * c.rank + dst, 2 + dst)) for dst in others]
    got = yield c.exchange(sends, [(src, 2 + c.rank) for src in others])
    for src, each in zip(others, got, strict=True):
        same(each, message(10 * src + c.rank, 2 + c.rank))
    got = yield c.exchange(sends, [(src, None) for src in reversed(others)])
    for src, each in zip(reversed(others), got, strict=True):
        same(each, message(10 * src + c.rank, 2 + c.rank))


@check
def many_rounds_stay_in_order(c: Communicator) -> Check:
    left, right = neighbours(c)
    for number in range(30):
        (got,) = yield c.exchange(
            [(right, torch.tensor([c.rank, number]))], [(left, 2 if number % 2 else None)], None, True
        )
        same(got, torch.tensor([left, number]))


@check
def sums(c: Communicator) -> Check:
    for dtype in (*FLOATS, *WHOLE):
        for shape in ((5,), (2, 3), (0,), ()):
            tensor = torch.full(shape, c.rank + 1, dtype=dtype)
            got = yield c.all_reduce(tensor)
            same(got, torch.full(shape, c.size * (c.size + 1) // 2, dtype=dtype))
            assert got.data_ptr() == tensor.data_ptr(), "the sum is made in place"


@check
def sums_of_bfloat16(c: Communicator) -> Check:
    tensor = torch.full((5,), c.rank + 1, dtype=torch.bfloat16)
    same((yield c.all_reduce(tensor)), torch.full((5,), c.size * (c.size + 1) // 2, dtype=torch.bfloat16))


@check
def gathers(c: Communicator) -> Check:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        for lengths in ([4] * c.size, range(c.size), [0] * c.size, [2, *[0] * (c.size - 1)]):
            got = yield c.all_gather(message(c.rank, lengths[c.rank], dtype))
            assert len(got) == c.size
            for rank, each in enumerate(got):
                same(each, message(rank, lengths[rank], dtype))


@check
def broadcasts(c: Communicator) -> Check:
    for root in (0, 1):
        tensors = [torch.full((2, 2), float(c.rank)), torch.tensor(c.rank), torch.tensor([c.rank > 0]), torch.empty(0)]
        strided, gaps = torch.full((3, 2), c.rank).t(), (torch.arange(8.0) + 10 * c.rank)[::2]
        expanded = torch.full((1, 3), float(c.rank)).expand(4, 3)
        yield c.broadcast([*tensors, strided, gaps, expanded], *([root] if root else []))
        same(tensors[0], torch.full((2, 2), float(root)))
        same(tensors[1], torch.tensor(root))
        same(tensors[2], torch.tensor([root > 0]))
        same(strided, torch.full((2, 3), root))
        same(gaps, torch.arange(0.0, 8.0, 2) + 10 * root)
        same(expanded, torch.full((4, 3), float(root)))
