"""Ranks that torchrun starts again and again meet in a store that stays: which of its keys are of this time?

torchrun tells each worker how often its own agent restarted it, which differs between hosts: one that only saw others
come or go has restarted nothing. So rank 0 names the reunion, and each rank makes sure that rank 0 means it, and not a
process that had its rank before.
"""

import json
import time
import uuid
from datetime import timedelta

import torch.distributed as dist

OFFER, POLL_SECONDS = "wirebench/reunion", 0.01


def name_of_reunion(store: dist.Store, rank: int, size: int, seconds: float) -> str:
    """A name that the ranks of this start share and no earlier ones had; RuntimeError after `seconds` of waiting."""
    deadline = time.monotonic() + seconds
    if rank == 0:
        return _invite(store, size, deadline)
    mine = uuid.uuid4().hex
    store.set(f"{OFFER}/guest/{rank}", mine)
    while True:
        # Rank 0 may not have offered anything yet; a wait of the store's own names the key in its error.
        store.wait([OFFER], timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
        offer = json.loads(store.get(OFFER))
        if offer["guests"].get(str(rank)) == mine:
            store.set(f"{offer['name']}/{rank}", "here")
            return str(offer["name"])
        _pause(deadline, "rank 0")


def _invite(store: dist.Store, size: int, deadline: float) -> str:
    name = f"{OFFER}/{uuid.uuid4().hex}"
    guests: dict[str, str] = {}
    while True:
        known = [rank for rank in range(1, size) if store.check([f"{OFFER}/guest/{rank}"])]
        now = {str(rank): store.get(f"{OFFER}/guest/{rank}").decode() for rank in known}
        if now != guests or not guests:
            guests = now
            store.set(OFFER, json.dumps({"name": name, "guests": guests}))
        missing = [rank for rank in range(1, size) if not store.check([f"{name}/{rank}"])]
        if not missing:
            return name
        _pause(deadline, f"rank {missing[0]}")


def _pause(deadline: float, whom: str) -> None:
    if time.monotonic() > deadline:
        raise RuntimeError(f"{whom} did not come")
    time.sleep(POLL_SECONDS)
