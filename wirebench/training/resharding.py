"""Redistribute per-rank state when a run resumes with another world size.

A rank that stays keeps its own state. Each rank that leaves hands its residual on to one that stays, so that no
gradient is lost. A rank that joins begins with the state that all ranks share, and with an empty residual.

A residual would have been divided by the old world size, and will be divided by the new one. So it is multiplied by the
new size over the old: its part in the average does not change.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from wirebench.data.shard import Takeover, images_seen
from wirebench.utils.parsing import json_of

LENGTH_BYTES = 8
State = TypeVar("State")


class RankState(NamedTuple, Generic[State]):
    """What a rank begins with: the states of one rank or of several, its own first.

    states  as the contents of their files, or as the trees in these
    joins   the rank is new: it takes only the shared part of the one state here, which is another rank's
    weight  the new world size over the earlier one
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
    entry = Takeover(*progress["entry"]) if progress.get("entry") else None
    return epoch, images_seen(entry, epoch, steps, batch_size * world["size"])


def to_bytes(state: RankState[bytes]) -> bytes:
    """Serialise `state`, to send it to its rank."""
    told = {"joins": state.joins, "weight": state.weight, "lengths": [len(file) for file in state.states]}
    head = json.dumps(told).encode()
    return b"".join([len(head).to_bytes(LENGTH_BYTES, "little"), head, *state.states])


def from_bytes(content: bytes) -> RankState[bytes]:
    """The state that `to_bytes` serialised."""
    start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    head = json_of(content[LENGTH_BYTES:start])
    files = []
    for length in head["lengths"]:
        files.append(content[start : start + length])
        start += length
    return RankState(files, head["joins"], head["weight"])
