"""Who takes over the state of whom, where a run is resumed by another number of ranks.

A rank that stays keeps its own state. Of ranks that leave, each hands its residual on to one that stays, so that no
gradient is lost. A rank that joins begins with what is the same on all ranks, and with an empty residual.

What waits was to be divided by the number of ranks that there were, and will be by the new one. So it is multiplied by
the new number over the old: its part in the average is what it would have been.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from wirebench.data.shard import Entry, images_seen
from wirebench.utils.parsing import json_of

LENGTH_BYTES = 8
State = TypeVar("State")


class RankState(NamedTuple, Generic[State]):
    """What a rank begins with: the states of one rank or of several, its own first.

    states  as the files that hold them, or as the trees in those
    joins   it is new: of the one state here, another rank's, only what all ranks share counts
    weight  number of ranks now over that of the earlier world
    """

    states: list[State]
    joins: bool = False
    weight: float = 1.0


def rank_states(files: Sequence[bytes | None], size: int) -> list[RankState[bytes]]:
    """One for each of `size` ranks, from the files of the ranks of an earlier world, in order; None: it is lost."""
    states = []
    known = [file for file in files if file is not None]
    for rank in range(size):
        mine = known[rank::size]
        states.append(RankState(mine or known[:1], not mine, size / len(files)))
    return states


def position(progress: Mapping[str, Any], world: Mapping[str, int], batch_size: int) -> tuple[int, int]:
    """(epoch, images of it that were seen) where a world stood that saved `progress`.

    world  its `size` and `steps_per_epoch`; batch_size: images of a worker in a step
    """
    epoch, steps = divmod(progress["step"], world["steps_per_epoch"])
    entry = Entry(*progress["entry"]) if progress.get("entry") else None
    return epoch, images_seen(entry, epoch, steps, batch_size * world["size"])


def to_bytes(state: RankState[bytes]) -> bytes:
    """For the way to its rank."""
    told = {"joins": state.joins, "weight": state.weight, "lengths": [len(file) for file in state.states]}
    head = json.dumps(told).encode()
    return b"".join([len(head).to_bytes(LENGTH_BYTES, "little"), head, *state.states])


def from_bytes(content: bytes) -> RankState[bytes]:
    """What `to_bytes` made."""
    start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    head = json_of(content[LENGTH_BYTES:start])
    files = []
    for length in head["lengths"]:
        files.append(content[start : start + length])
        start += length
    return RankState(files, head["joins"], head["weight"])
