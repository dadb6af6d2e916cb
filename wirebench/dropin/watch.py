"""`watch`: some steps of a training loop of the user's own, recorded by PyTorch's profiler for `wirebench diagnose`.

for inputs, labels in wirebench.watch(loader): ...      a loop over batches
with wirebench.watch(steps=5): ...                      any loop; a step ends when the optimizer has stepped
It works in loops under DDP, FSDP2 and Horovod, on every rank; each writes a file, and rank 0 prints the command.
"""

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch.autograd.profiler import profile as autograd_profiler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from wirebench.comm.place import launched
from wirebench.errors import UserError, line_of
from wirebench.telemetry.rank_facts import OURS, CoreWatch, InterfaceWatch, link_mbit
from wirebench.utils import this_machine
from wirebench.utils.files import keeping
from wirebench.utils.hooks import WeakHook

WARM_UP = 3
"""Steps that are not recorded: DDP cuts its buckets anew after the first, and memory is allocated."""
T = TypeVar("T")


class Watch(Generic[T]):
    """Records the steps after WARM_UP of a loop; the loop continues as before.

    steps   that are recorded; one more is, for the profiler's start
    folder  where rank{N}.json.gz is written
    """

    def __init__(self, batches: Iterable[T] | None, steps: int, folder: str | Path) -> None:
        if batches is not None and not hasattr(batches, "__iter__"):
            raise UserError(f"watch: needs what a loop goes over, or nothing, got {type(batches).__name__}")
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise UserError(f"watch: steps: needs a number of steps, at least 1, got {steps!r}")
        self._batches, self._steps, self._folder = batches, steps, Path(folder)
        self._begun = self._ended = False
        self._profiler: Any = None
        self._counted = self._depth = 0
        self._stepping: int | None = None
        self._detach: list[Callable[[], None]] = []

    def __enter__(self) -> "Watch[T]":
        """Watch from here on; a step ends when the optimizer that was the first to step has stepped again."""
        self._begin()
        hooks = [
            register_optimizer_step_pre_hook(WeakHook(self._steps_on)),
            register_optimizer_step_post_hook(WeakHook(self._stepped)),
        ]
        self._detach = [hook.remove for hook in hooks]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Write the file, if the loop has ended before the last step; UserError if that is too early."""
        for detach in self._detach:
            detach()
        if kind is None:
            self._end()
        else:
            self._drop()

    def __iter__(self) -> Iterator[T]:
        """The batches; each is a step, and the time until it is there is the step's."""
        if self._batches is None:
            raise UserError("watch: has nothing to go over; pass the loader, or use it in a with statement")
        self._begin()
        try:
            for place, batch in enumerate(self._batches):
                if place:
                    self.step()
                yield batch
            self._counted += 1
            self._end()
        except GeneratorExit:  # by break: nothing that is raised here would be seen
            if self._counted <= WARM_UP + 1:
                _warn(f"{self._too_early()}; no file is written")
            raise
        finally:
            if self._counted > WARM_UP + 1:
                self._end()
            self._drop()

    def step(self) -> None:
        """A step has ended."""
        self._counted += 1
        if self._ended:
            return
        if self._counted == WARM_UP:
            self._start()
        elif self._counted == WARM_UP + 1 + self._steps:
            self._end()
        elif self._profiler is not None:
            self._profiler.step()

    def _begin(self) -> None:
        if self._begun:
            raise UserError("watch: is over; call wirebench.watch again for another loop")
        self._begun = True
        # Later an error would end one rank in the middle of training, and the others would wait for it.
        with keeping(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder) as file:
                file.write(b"\n")

    def _steps_on(self, optimizer: Optimizer, *_: Any) -> None:
        self._depth += 1

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        """An optimizer has stepped; Horovod's says so twice: for itself, and for the class that it extends."""
        self._depth = max(self._depth - 1, 0)
        if self._stepping is None:
            self._stepping = id(optimizer)
        if id(optimizer) == self._stepping and not self._depth:
            self.step()

    def _start(self) -> None:
        if torch.autograd._profiler_enabled():
            self._ended = True
            _warn("another profiler of PyTorch's records these steps; no file is written")
            return
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._watches = InterfaceWatch(), CoreWatch()
        # With a schedule the profiler names its steps.
        self._profiler = profile(activities=kinds, record_shapes=True, schedule=lambda step: ProfilerAction.RECORD)
        self._profiler.start()

    def _end(self) -> None:
        """Stop, write, and print the command; what cannot be written ends no training."""
        if self._ended:
            return
        if self._profiler is None or self._counted <= WARM_UP + 1:
            self._drop()
            raise UserError(f"watch: {self._too_early()}")
        if self._replaced():
            self._drop()
            _warn("another profiler of PyTorch's was started, and ended this one; no file is written")
            return
        try:
            facts = _facts(*self._watches)
        except UserError as error:
            self._drop()
            _warn(f"{error}; this rank's number is not known, and no file is written")
            return
        self._ended, profiler, self._profiler = True, self._profiler, None
        profiler.add_metadata_json(OURS, json.dumps(facts))
        profiler.stop()
        path = self._folder / f"rank{facts['rank']}.json.gz"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            _warn(f"{path}: cannot be written: {reason}")
            return
        if facts["rank"] == 0:
            ranks = range(facts["world_size"]) or "*"
            names = " ".join(str(self._folder / f"rank{each}.json.gz") for each in ranks)
            print(f"wirebench.watch: {self._counted - WARM_UP} steps of each rank are in {self._folder}; to read them:")
            print(f"wirebench diagnose --kineto {names}", flush=True)

    def _too_early(self) -> str:
        return (
            f"the loop ended after {self._counted} steps; it needs {WARM_UP + 2} at least, since the first {WARM_UP} "
            "warm up"
        )

    def _replaced(self) -> bool:
        """Whether another profiler was started since: it has cancelled this one, and PyTorch crashes on its results."""
        mine = self._profiler.profiler
        # By type: to ask a weak proxy for its class is an error where its object is gone.
        others = (each for each in gc.get_objects() if type(each) is autograd_profiler and each is not mine)
        started = any(
            each.entered
            and (each.kineto_results is None or each.profiling_start_time_ns > mine.profiling_start_time_ns)
            for each in others
        )
        return started or not torch.autograd._profiler_enabled()

    def _drop(self) -> None:
        """Stop without writing a file; a profiler that has taken this one's place records further."""
        self._ended = True
        if self._profiler is not None and not self._replaced():
            self._profiler.stop()
        self._profiler = None


def watch(batches: Iterable[T] | None = None, *, steps: int = 5, folder: str | Path = "watched") -> Watch[T]:
    """Record `steps` steps of a loop on every rank, for `wirebench diagnose --kineto`; see Watch.

    batches  what the loop goes over, if the loop is `for batch in wirebench.watch(batches)`
    folder   where each rank writes rank{N}.json.gz
    Raises UserError where the loop ends too early, and at its begin where the folder cannot be written to.
    """
    return Watch(batches, steps, folder)


def _warn(text: str) -> None:
    print(line_of(f"warning: wirebench.watch: {text}"), file=sys.stderr, flush=True)


def _facts(interfaces: InterfaceWatch, cores: CoreWatch) -> dict[str, Any]:
    """What the file says of this rank: as in a record's table of ranks."""
    rank, world, backend = _place()
    sent = interfaces.sent()
    return {
        "rank": rank, "world_size": world, "backend": backend, "host": _host(), "threads": torch.get_num_threads(),
        "cores": this_machine.cores(), "ranks_on_host": _local_size(), "core_wait": cores.share(), "sent": sent,
        "link_mbit": link_mbit(sent), "cpu": this_machine.cpu().model,
    }  # fmt: skip


def _place() -> tuple[int, int, str]:
    """Rank, world size and back end of this process: of torch.distributed, of Horovod, or of the launcher.

    Size 0: the launcher does not say. UserError where its variables make no sense.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), str(dist.get_backend())
    horovod = _horovod()
    if horovod is not None:
        return int(horovod.rank()), int(horovod.size()), "nccl" if torch.cuda.is_available() else "gloo"
    launch = launched()
    return launch.rank, launch.size, ""


def _horovod() -> Any:
    """Horovod, where this process has imported and initialised it."""
    horovod = sys.modules.get("horovod.torch")
    return horovod if horovod is not None and horovod.is_initialized() else None


def _local_size() -> int | None:
    horovod = _horovod()
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(horovod.local_size()) if horovod is not None else int(told) if told.isdigit() else None


def _host() -> str:
    return os.environ.get("HOROVOD_HOSTNAME") or this_machine.hostname()
