"""Tables that stay on a device: made once for each set of arguments, and kept alive by the graphs that read them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
_state = threading.local()


class Cached(Protocol[P, R_co]):
    """A function with a cache."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The result for these arguments, made once."""
        ...

    def cache_clear(self) -> None:
        """Empty the cache."""
        ...


def device_table(maxsize: int = 1024) -> Callable[[Callable[P, R_co]], Cached[P, R_co]]:
    """`lru_cache` for functions whose results hold tensors on a device.

    A CUDA graph reads addresses. It needs the table at the address while it is replayed, which may be longer
    than the cache keeps it.
    """

    def cached(function: Callable[P, R_co]) -> Cached[P, R_co]:
        known: Any = lru_cache(maxsize)(function)

        @wraps(function)
        def table(*args: P.args, **kwargs: P.kwargs) -> R_co:
            found: R_co = known(*args, **kwargs)
            kept = getattr(_state, "kept", None)
            if kept is not None:
                kept.append(found)
            return found

        with_clear: Any = table
        with_clear.cache_clear = known.cache_clear
        remembered: Cached[P, R_co] = with_clear
        return remembered

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
