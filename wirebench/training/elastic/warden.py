"""A rank that stands still as a whole is killed, so that an elastic run continues without it.

A rank that is stopped (SIGSTOP), or whose extension waits with Python's lock (the GIL) in its hands, does not hear
SIGTERM. torchrun sends it SIGKILL 30 s after that, which no option shortens (torch 2.15). So each rank of an
elastic run has a small process beside it, to which a thread of the rank writes several times a second.
"""

import os
import subprocess
import sys
import threading
from contextlib import suppress

BEATS = 8
"""Messages in the time that a rank may be silent."""
PROGRAM = """
import os, select, signal, sys
pid, seconds, line = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
rank, missed = os.pidfd_open(pid), 0
while missed < 2:
    ready = select.select([0, rank], [], [], seconds / 2)[0]
    # Twice: where the whole machine stood still, the rank has not had its time yet.
    missed = 0 if ready else missed + 1
    if rank in ready or (ready and not os.read(0, 4096)):
        sys.exit()
os.write(2, line.encode())
signal.pidfd_send_signal(rank, signal.SIGKILL)
"""


class Warden:
    """Prints an error and kills this process when none of its Python code has run for `seconds`.

    name  of the rank, for the error
    """

    def __init__(self, name: str, seconds: float) -> None:
        line = f"error: {name}: it has stood still for {seconds:g} s and is killed, so that the others go on\n"
        words = [sys.executable, "-I", "-S", "-c", PROGRAM, str(os.getpid()), str(seconds), line]
        # A session of its own: what stops the rank's process group does not stop it.
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._beat, args=(seconds / BEATS,), name="wirebench-warden", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the watch; may be called again."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _beat(self, every: float) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the other process was killed: the watch is over
            while not self._over.wait(every):
                os.write(self._process.stdin.fileno(), b".")
