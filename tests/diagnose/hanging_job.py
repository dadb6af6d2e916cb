"""A rank of a job that hangs, since rank 1 leaves a collective out: FOLDER, where the flight recorder's dumps go."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

BOTH = 2
"""Collectives that both ranks call."""


def main(folder: str) -> None:
    """Call three all-reduces on rank 0, two on rank 1, and write the dumps while rank 0 waits."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for elements in (4, 8):
        dist.all_reduce(torch.ones(elements))
    if rank == 0:
        dist.all_reduce(torch.ones(16), async_op=True)
    # A thread of Gloo's notes that a collective is over, sooner or later.
    while sum(bool(each.get("retired")) for each in json.loads(c10d._dump_fr_trace_json())["entries"]) < BOTH:
        time.sleep(0.01)
    for kind, dump in (("", c10d._dump_fr_trace()), (".json", c10d._dump_fr_trace_json())):
        (Path(folder) / f"trace_rank_{rank}{kind}").write_bytes(dump)
    # Where one rank has gone, the other one's collective fails, and is over.
    (Path(folder) / f"written-{rank}").touch()
    while not (Path(folder) / f"written-{1 - rank}").exists():
        time.sleep(0.01)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
