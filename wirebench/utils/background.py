"""Jobs beside the caller's thread, one after the other: exchanges during a step, files that are written meanwhile."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

Job = Callable[[], object]


def nothing() -> None:
    """Do nothing."""


class Background:
    """Runs jobs in the order in which they are submitted, in a thread of its own, which is called `name`.

    error  what the first job that failed has raised; jobs behind it are left out until `wait` raises it
    A process that ends does not wait for jobs: callers that need them done call `wait`.
    """

    def __init__(self, name: str) -> None:
        self.error: BaseException | None = None
        self._name = name
        self._thread: threading.Thread | None = None
        self._jobs: deque[tuple[Job, Job]] = deque()
        self._turn = threading.Lock()
        """Held by the thread that takes a job from the queue, until the job is done: they never overlap."""
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """One entry for each job that the thread is to take; False ends it."""

    def busy(self) -> bool:
        """Whether a job is queued or under way."""
        return bool(self._jobs) or self._turn.locked()

    def submit(self, job: Job, done: Job = nothing, wake: bool = True) -> None:
        """Queue `job`; `done` is called after it, whatever became of it. Without `wake` it waits for `work_off`.

        Raises what an earlier job has raised, and then leaves this one out.
        """
        if self.error is not None:
            done()
            raise self.error
        if self._thread is None or not self._thread.is_alive():
            # A daemon, so that a disk or a network that does not answer keeps no process alive.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.append((job, done))
        if wake:
            self._calls.put(True)

    def work_off(self) -> None:
        """Return when no job is queued or under way: the caller's thread does those that have not begun."""
        with self._turn:
            while self._jobs:
                self._do_next()

    def wait(self) -> None:
        """Return when the thread has done all jobs, and end it; raise what one of them raised, once.

        Signals are heard meanwhile.
        """
        if self._thread is not None:
            thread, self._thread = self._thread, None
            self._calls.put(False)
            thread.join()
        error, self.error = self.error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread after the job that is under way, without waiting for it; the others are dropped."""
        self._jobs.clear()
        self._calls.put(False)

    def _run(self) -> None:
        while self._calls.get():
            with self._turn:
                self._do_next()

    def _do_next(self) -> None:
        """Do the first job in the queue, unless another thread has emptied it."""
        try:
            job, done = self._jobs.popleft()
        except IndexError:
            return
        if self.error is None:
            try:
                job()
            except BaseException as error:  # for the thread that waits
                self.error = error
        done()


class SideStream:
    """A GPU's stream for jobs beside its current stream. For another device, or where not `wanted`, there is none."""

    def __init__(self, device: torch.device, wanted: bool = True) -> None:
        self._device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" and wanted else None

    def mark(self) -> torch.cuda.Event | None:
        """An event behind the work that the current stream has been given so far."""
        return None if self.stream is None else torch.cuda.current_stream(self._device).record_event()

    @contextmanager
    def behind(self, mark: torch.cuda.Event | None) -> Iterator[None]:
        """Give the block's work to this stream, where it begins once the mark is reached."""
        if self.stream is None:
            yield
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self.stream):
            if mark is not None:
                self.stream.wait_event(mark)
            yield
