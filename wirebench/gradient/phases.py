"""Names for the parts of a compressor's work, so that a benchmark can time them where it wants to.

  update  the gradient is added to the memory: residual, momentum
  select  what is sent is computed: the largest entries, a sketch, a quantised or a low-rank form
  encode  a message is made of it, and what was sent is removed from the memory
  decode  answers are read, and the average is written

A method writes `with phase("select"): ...`; without a recorder that does nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

Phase = Literal["update", "select", "encode", "decode"]
Recorder = Callable[[Phase], AbstractContextManager[None]]

_NOTHING = nullcontext()
_recorder: list[Recorder] = []


def phase(name: Phase) -> AbstractContextManager[None]:
    """A context for a part of the work; never around a `yield`, during which other ranks and buckets work."""
    return _recorder[-1](name) if _recorder else _NOTHING


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Let every `phase` of this process open what `recorder` gives for its name."""
    _recorder.append(recorder)
    try:
        yield
    finally:
        _recorder.pop()
