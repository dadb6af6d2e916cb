"""Wirebench: what data-parallel training puts on the wire, composed, measured and explained.

The functions in `_HOMES` are the ways into a training loop of the user's own.
"""

import importlib
from typing import Any

__version__ = "0.2.0"

_HOMES = {
    "synchronise": "wirebench.dropin.synchroniser",
    "comm_hook": "wirebench.dropin.comm_hook",
    "compress_replicas": "wirebench.dropin.fsdp",
    "compress_shards": "wirebench.dropin.shard_sums",
    "profile": "wirebench.dropin.profiler",
    "watch": "wirebench.dropin.watch",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: most of the suite's commands need neither torch nor these.
    if name not in _HOMES:
        raise AttributeError(f"module 'wirebench' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
