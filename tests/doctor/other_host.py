"""In ssh's place: `other_host.py HOST COMMAND` runs the command here, as a host that differs in one thing would.

What differs is in the variable DIFFERS, as JSON: {"h2": {"torch": "2.9.0"}, "h3": {"clock": 10}, ...}.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

LATE = """
import time as _time
_real = _time.time
_time.time = lambda: _real() + {clock}
"""
ROOMY = """
import shutil as _shutil
_shutil.disk_usage = lambda _: _shutil._ntuple_diskusage(10**12, 0, 10**12)
"""
OTHER_SYSTEM = """
from pathlib import Path as _Path
from wirebench.utils import this_machine as _machine
_machine.{name} = _Path({folder!r})
"""
OTHER_TORCH = """
import torch as _torch
_torch.__version__ = {torch!r}
"""


def main() -> None:
    host, command = sys.argv[1:]
    differs = json.loads(os.environ.get("DIFFERS", "{}")).get(host, {})
    if "refuses" in differs:
        print(differs["refuses"], file=sys.stderr)
        sys.exit(255)
    if "prints" in differs:  # and nothing else, as a login shell that refuses does
        sys.stdout.buffer.write(differs["prints"].encode("latin-1"))
        sys.exit(differs.get("code", 0))
    for old, new in differs.get("command", {}).items():
        command = command.replace(old, new)
    if "shell" in differs:  # its first words come before the command, the others after it
        before, after = differs["shell"]
        command = f"{before}\n{command.replace('exec ', '', 1)}\n{after}"
    if "folder" in differs:
        command = command.replace(differs["instead of"], differs["folder"], 1)
    changes = [ROOMY]  # whatever this machine has: a container's /dev/shm is small
    changes += [LATE.format(clock=differs["clock"])] if "clock" in differs else []
    changes += [OTHER_TORCH.format(torch=differs["torch"])] if "torch" in differs else []
    changes += [OTHER_SYSTEM.format(name=name, folder=folder) for name, folder in differs.get("system", {}).items()]
    os.environ.update(differs.get("variables", {}))
    place = tempfile.mkdtemp()
    Path(place, "sitecustomize.py").write_text("".join(changes))
    os.environ["PYTHONPATH"] = f"{place}:{os.environ.get('PYTHONPATH', '')}"
    if "inside" in differs:
        os.execvp("nsenter", ["nsenter", *differs["inside"], "--", "sh", "-c", command])
    os.execvp("sh", ["sh", "-c", command])


if __name__ == "__main__":
    main()
