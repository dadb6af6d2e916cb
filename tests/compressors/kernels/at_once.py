"""Triton's interpreter runs a kernel's programs one after the other; here they run at once, a thread each.

So programs that wait for one another can be tested without a GPU.
"""

import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from triton.runtime import interpreter

from wirebench.compressors.kernels import together


@contextmanager
def at_once(monkeypatch: pytest.MonkeyPatch, programs: int) -> Iterator[None]:
    """Launches whose programs meet have so many of them."""
    program = threading.local()
    place = property(lambda _builder: program.idx, lambda _builder, idx: setattr(program, "idx", idx))

    def launch(kernel: Any, *args: Any, **kwargs: Any) -> None:
        known = inspect.getfullargspec(kernel.fn).args
        kept = {name: value for name, value in kwargs.items() if name in known}
        interpreter._patch_lang(kernel.fn)
        inputs = {
            name: value if name in kernel.constexprs else interpreter._implicit_cvt(value)
            for name, value in inspect.getcallargs(kernel.fn, *args, **kept).items()
        }
        grid = tuple(kernel.grid) + (1,) * (3 - len(kernel.grid))
        interpreter.interpreter_builder.set_grid_dim(*grid)
        failed: list[BaseException] = []

        def run(x: int) -> None:
            try:
                for y in range(grid[1]):
                    interpreter.interpreter_builder.set_grid_idx(x, y, 0)
                    kernel.fn(**inputs)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=run, args=(x,), daemon=True) for x in range(grid[0])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failed, failed
        assert not any(thread.is_alive() for thread in threads), "programs wait for ever"

    interval = sys.getswitchinterval()
    with monkeypatch.context() as patched:
        patched.setattr(interpreter.InterpreterBuilder, "grid_idx", place, raising=False)
        patched.setattr(interpreter.GridExecutor, "__call__", launch)
        patched.setattr(together, "programs", lambda device: programs)
        sys.setswitchinterval(1e-4)
        try:
            yield
        finally:
            sys.setswitchinterval(interval)
