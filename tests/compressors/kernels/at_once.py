"""Triton's interpreter runs a kernel's programs one after the other; here they run at once, a thread each.

So programs that wait for one another can be tested without a GPU.
"""

import inspect
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("triton", reason="needs Triton: pip install triton")
from triton.runtime import interpreter

from wirebench.compressors.kernels import together


@contextmanager
def at_once(monkeypatch: pytest.MonkeyPatch, programs: int) -> Iterator[None]:
    """Launches whose programs meet have so many of them."""
    program = threading.local()
    place = property(lambda _builder: program.idx, lambda _builder, idx: setattr(program, "idx", idx))

    change = interpreter.InterpreterBuilder.create_atomic_rmw

    def give_way(*args: Any) -> Any:
        time.sleep(0)
        return change(*args)

    rewrite, alone = interpreter.FunctionRewriter.rewrite_ast, threading.Lock()

    def rewrite_alone(rewriter: Any) -> Any:
        with alone:  # CPython 3.11 counts the depth of all threads' syntax trees together: SystemError
            return rewrite(rewriter)

    one_by_one = interpreter.GridExecutor.__call__

    def launch(kernel: Any, *args: Any, **kwargs: Any) -> None:
        if tuple(kernel.grid) != (programs,):
            one_by_one(kernel, *args, **kwargs)
            return
        known = inspect.getfullargspec(kernel.fn).args
        kept = {name: value for name, value in kwargs.items() if name in known}
        interpreter._patch_lang(kernel.fn)
        inputs = {
            name: value if name in kernel.constexprs else interpreter._implicit_cvt(value)
            for name, value in inspect.getcallargs(kernel.fn, *args, **kept).items()
        }
        interpreter.interpreter_builder.set_grid_dim(programs, 1, 1)
        failed: list[BaseException] = []

        def run(x: int) -> None:
            try:
                interpreter.interpreter_builder.set_grid_idx(x, 0, 0)
                kernel.fn(**inputs)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=run, args=(x,), daemon=True) for x in range(programs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failed, failed
        assert not any(thread.is_alive() for thread in threads), "programs wait for ever"

    with monkeypatch.context() as patched:
        patched.setattr(interpreter.InterpreterBuilder, "grid_idx", place, raising=False)
        patched.setattr(interpreter.GridExecutor, "__call__", launch)
        patched.setattr(interpreter.FunctionRewriter, "rewrite_ast", rewrite_alone)
        patched.setattr(together, "programs", lambda device: programs)
        patched.setattr(interpreter.InterpreterBuilder, "create_atomic_rmw", give_way)
        yield
