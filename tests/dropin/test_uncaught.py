"""A mistake in a user's script that nothing catches: one line and exit code 2, nothing else changed."""

import subprocess
import sys

import pytest

MISTAKE = "from wirebench.errors import UserError\nraise UserError('density: is 7')"


@pytest.mark.parametrize(
    ("code", "flags", "ends", "last"),
    [
        (MISTAKE, (), 2, "error: density: is 7"),
        (f"try:\n    {MISTAKE.replace(chr(10), chr(10) + '    ')}\nexcept ValueError:\n    print('caught')", (), 0, ""),
        ("import wirebench.errors\n1 / 0", (), 1, "ZeroDivisionError: division by zero"),
        (MISTAKE, ("-i",), 0, "wirebench.errors.UserError: density: is 7"),
    ],
)
def test_what_nobody_catches(code: str, flags: tuple[str, ...], ends: int, last: str) -> None:
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    told = [line for line in done.stderr.splitlines() if line.strip(" >")]
    assert done.returncode == ends, done.stderr
    assert (told[-1] if told else "").startswith(last)
    assert (len(told) == 1) == (ends == 2)


def test_a_rank_ends_at_once_after_what_was_registered_for_its_end() -> None:
    """Without the interpreter's own end, in which a thread of a process group could abort it."""
    code = f"""
import atexit
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
atexit.register(print, "registered")
class Late:
    def __del__(self):
        print("interpreter's end")
late = Late()
{MISTAKE}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "registered\n"), done.stderr
    assert done.stderr.startswith("error: rank 0: density: is 7")
