"""train.py where each file that rank 0 packs takes SECONDS more: python slow_disk.py SECONDS CONFIG [OVERRIDE ...]."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wirebench.comm.launch import end_process
from wirebench.compose import run as train
from wirebench.training import state_files
from wirebench.utils.tensor_tree import pack_to

if __name__ == "__main__":
    seconds, *arguments = sys.argv[1:]

    def pack_slowly(file: Path, tree: Mapping[str, Any]) -> None:
        pack_to(file, tree)
        time.sleep(float(seconds))

    [folder] = [Path(word.partition("=")[2]) for word in arguments if word.startswith("output.dir=")]
    kill = os.kill

    def kill_amid(pid: int, number: int) -> None:
        """A rank is killed while a checkpoint is half written, however late a busy machine begins to write it."""
        begin = time.monotonic()
        while number == signal.SIGKILL and time.monotonic() < begin + 60:
            if any(folder.glob("checkpoints/.*.partial")):
                break
            time.sleep(0.01)
        kill(pid, number)

    state_files.pack_to, os.kill = pack_slowly, kill_amid
    end_process(train.main(arguments))
