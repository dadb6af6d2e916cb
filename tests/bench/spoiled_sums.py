"""What `test_bench_collectives.py` runs on every rank: `wirebench bench collectives`, some of whose sums are spoiled.

The last number of a sum by `tree` is the next larger float32 on rank 1 alone, and of a sum by `one_hop` on all ranks.
"""

import sys

import torch
from torch import Tensor

from wirebench.bench import collectives
from wirebench.bench.all_reduce_benchmark import AllReduceBenchmark
from wirebench.comm.launch import end_process


class Spoiled(AllReduceBenchmark):
    """A benchmark whose collective may be wrong by one bit."""

    def _sum(self, tensor: Tensor) -> None:
        super()._sum(tensor)
        assert self.wire is not None
        name = type(self.wire.inner).__name__
        if name == "OneHop" or (name == "Tree" and self.communicator.rank == 1):
            last = tensor[-1:]
            last.copy_(torch.nextafter(last, torch.full_like(last, torch.inf)))


if __name__ == "__main__":
    collectives.AllReduceBenchmark = Spoiled  # type: ignore[misc]
    end_process(collectives.main(sys.argv[1:]))
