"""Who started this process: read from the environment, before any engine exists."""

import os
from collections.abc import Mapping
from typing import NamedTuple


class Launch(NamedTuple):
    """A process's place as its launcher names it: horovodrun, torchrun, or none (engine `local`)."""

    engine: str
    rank: int
    size: int
    local_rank: int
    local_size: int


def launched(environment: Mapping[str, str] = os.environ) -> Launch:
    """The place that the environment gives this process."""
    for engine, prefixes in (("horovod", ("HOROVOD_", "OMPI_COMM_WORLD_")), ("torch", ("",))):
        for prefix in prefixes:
            size_name = f"{prefix}WORLD_SIZE" if engine == "torch" else f"{prefix}SIZE"
            if f"{prefix}RANK" in environment and size_name in environment:
                rank, size = int(environment[f"{prefix}RANK"]), int(environment[size_name])
                local_rank = int(environment.get(f"{prefix}LOCAL_RANK", 0))
                name = "LOCAL_WORLD_SIZE" if engine == "torch" else f"{prefix}LOCAL_SIZE"
                return Launch(engine, rank, size, local_rank, int(environment.get(name, 1)))
    return Launch("local", 0, 1, 0, 1)
