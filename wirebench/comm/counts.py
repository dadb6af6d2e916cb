"""Bytes that each rank sent to each other one, left in a folder for comparison with the links' own counters."""

import json
from collections.abc import Sequence
from pathlib import Path

from wirebench.comm.metered import Metered
from wirebench.comm.peers import Peer
from wirebench.utils.files import write_atomically


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
