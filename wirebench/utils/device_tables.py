"""Tables that stay on a device: made once for each set of arguments, and kept alive by the graphs that read them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_state = threading.local()


def device_table(maxsize: int = 1024) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`lru_cache` for functions whose results hold tensors on a device.

    A CUDA graph reads addresses. It needs the table at the address for as long as it is replayed, which may be longer
    than the cache keeps it.
    """

    def cached(function: Callable[P, R]) -> Callable[P, R]:
        known: Any = lru_cache(maxsize)(function)

        @wraps(function)
        def table(*args: P.args, **kwargs: P.kwargs) -> R:
            found: R = known(*args, **kwargs)
            kept = getattr(_state, "kept", None)
            if kept is not None:
                kept.append(found)
            return found

        table.cache_clear = known.cache_clear  # type: ignore[attr-defined]
        return table

    return cached


@contextmanager
def keeping(kept: list[Any]) -> Iterator[None]:
    """Put every table that this thread looks up within the context into `kept`."""
    before = getattr(_state, "kept", None)
    _state.kept = kept
    try:
        yield
    finally:
        _state.kept = before
