"""train.py where each file that rank 0 packs takes SECONDS more: python slow_disk.py SECONDS CONFIG [OVERRIDE ...]."""

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

    state_files.pack_to = pack_slowly
    end_process(train.main(arguments))
