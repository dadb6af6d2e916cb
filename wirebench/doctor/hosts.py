"""The hosts of a run, an agent on each, and how it is asked."""

import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from wirebench.doctor.answers import LONGEST, odd, printable
from wirebench.errors import UserError
from wirebench.utils.package import TOP
from wirebench.utils.parsing import json_of

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"
PATIENCE = 90.0
"""Seconds that an answer may take: importing torch from a slow disk is part of the first."""
LONGEST_LINE = 2**20
"""Bytes of a line that are looked at, at most: an answer has a few thousand."""
OLDEST = (3, 11)
PROGRAM = (
    "import sys, runpy; "
    "sys.version_info >= {oldest} or sys.exit('Python %d.%d is there, {needed} is needed' % sys.version_info[:2]); "
    "runpy.run_module('wirebench.doctor.agent', run_name='__main__')"
)
"""Starts the agent with any Python, of which an old one could not read it; in one line, as csh wants it."""


class Unreachable(Exception):
    """A host that gives no answer; says why."""


class AskedHost:
    """One host with a running agent, in the same folder and with the same Python as here."""

    def __init__(self, name: str, ssh: str = SSH) -> None:
        self.name = name
        self._mark, self._number, self._noise, self._late = f"wirebench-{secrets.token_hex(8)}", 0, b"", False
        program = PROGRAM.format(oldest=OLDEST, needed=".".join(map(str, OLDEST)))
        inside = f"cd {shlex.quote(str(TOP))} && exec {shlex.quote(sys.executable)} -c {shlex.quote(program)}"
        # In memory: a disk that is full or read-only is what a doctor is called for.
        self._errors = open(os.memfd_create("errors"), "w+b")  # noqa: SIM115  closed with the host
        try:
            self._agent = subprocess.Popen(
                # By sh, whatever the user's shell is.
                [*shlex.split(ssh), name, f"sh -c {shlex.quote(f'{inside} {self._mark}')}"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                # A session of its own, so that all that a wrapper around ssh has started can be killed.
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise UserError(f"--ssh: {shlex.split(ssh)[0]} cannot be started: {error.strerror}") from error

    def ask(self, what: str, **more: Any) -> Any:
        """The agent's answer; Unreachable where it has gone or is silent, OSError where it says what went wrong."""
        assert self._agent.stdin
        self._number += 1
        watch = threading.Timer(PATIENCE, self._give_up)
        watch.start()
        try:
            with suppress(BrokenPipeError):  # it has ended: what it printed before tells why
                self._agent.stdin.write(json.dumps({"ask": what, "number": self._number, **more}).encode() + b"\n")
                self._agent.stdin.flush()
            told = self._answer()
        finally:
            watch.cancel()
        if "error" in told:
            raise OSError(_last_line(told["error"]))
        answer = told.get("answer")
        if strange := odd(what, answer):
            raise Unreachable(f"another version of Wirebench answers there ({strange})")
        return answer

    def _answer(self) -> dict[str, Any]:
        """The next answer to this question; lines without the mark are what a login shell prints, and skipped."""
        assert self._agent.stdout
        mark = f"{self._mark} ".encode()
        while line := self._agent.stdout.readline(LONGEST_LINE):
            _, marked, text = line.partition(mark)
            if not marked:
                self._noise = line if line.strip() else self._noise
                continue
            try:
                told = json_of(text)
            except ValueError:
                raise Unreachable("its answer is cut off") from None
            if not isinstance(told, dict):
                raise Unreachable("another version of Wirebench answers there")
            if told.get("number") == self._number:  # else it is one that was given twice
                return told
        raise Unreachable(self._last_words())

    def _give_up(self) -> None:
        self._late = True
        self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._agent.pid, signal.SIGKILL)

    def clock_ahead(self, times: int = 5) -> float:
        """Seconds by which its clock is ahead of ours; 0 where the way there and back may take as long.

        The question that was answered soonest says it.
        """
        trips = []
        for _ in range(times):
            begin = time.time()
            theirs = self.ask("clock")
            end = time.time()
            trips.append((end - begin, theirs - (begin + end) / 2))
        trip, ahead = min(trips)
        return ahead if abs(ahead) > trip / 2 else 0.0

    def close(self) -> None:
        """Close the agent's pipes, on which it ends."""
        for pipe in (self._agent.stdin, self._agent.stdout):
            # A question that never reached an agent that has gone waits in the pipe, and would be sent once more.
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        try:
            self._agent.wait(5)
        except subprocess.TimeoutExpired:
            self._kill()
            self._agent.wait()
        self._errors.close()

    def _last_words(self) -> str:
        try:
            code: int | None = self._agent.wait(5)
        except subprocess.TimeoutExpired:
            self._kill()
            code = None
        self._errors.seek(0)
        lines = [line for line in map(_printable, (self._noise, *self._errors)) if line]
        if self._late:
            return f"no answer in {PATIENCE:g} s{f'; it printed {lines[-1]!r}' if lines else ''}"
        return lines[-1] if lines else f"its agent ended with code {code} and without an answer"


def _printable(line: bytes) -> str:
    """The end of a line from another program, with unprintable characters replaced by spaces."""
    return printable(line[-LONGEST:].decode(errors="replace")).strip()


def _last_line(error: Any) -> str:
    """The last line of an error's text that has printable characters."""
    lines = [line for line in map(_printable, str(error).encode(errors="replace").splitlines()) if line]
    return lines[-1] if lines else "an error without words"
