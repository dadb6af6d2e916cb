"""One job at a time beside the caller's thread: for what takes long and uses the disk rather than the processor."""

import threading
from collections.abc import Callable


class Background:
    """Runs a job in a thread of its own, called `name`; the next job waits for the end of the one before.

    The next `submit` or `wait` raises a job's exception, once. A process that ends does not wait for a job: callers
    that need it done call `wait`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def busy(self) -> bool:
        """Whether a job is under way."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, job: Callable[[], object]) -> None:
        """Begin `job`, once the one before has ended; where that one raised something, raise it and begin nothing."""
        self.wait()
        # A daemon, so that a disk that does not answer keeps no process alive whose user wants it gone.
        self._thread = threading.Thread(target=self._run, args=(job,), name=self._name, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when no job is under way; raise what the last one raised. Signals are heard meanwhile."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error
