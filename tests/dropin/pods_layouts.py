"""What `test_fsdp.py` runs on each of four ranks: parameters of few rows, modules in one group, what no replica uses.

Each function below is a case; rank 0 prints its name when it holds on all ranks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import wirebench
from tests.dropin import pods as job
from tests.dropin.pods import Layer, gradients, loss_of
from wirebench import compressors
from wirebench.comm.launch import end_process


class Gated(nn.Module):
    """One unit whose first parameters have one row: the second rank's part begins with padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.gate, self.body = Layer(12, 1), Layer(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * self.gate(x)


def padding_before_the_first_elements_moves_no_gradient() -> None:
    """To compressors that get fp32 and to one whose gradient is reduced in bf16."""
    plain = DistributedDataParallel(Gated())
    loss_of(plain, 0).backward()
    bf16 = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    kinds: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("none", {}, {}),
        ("topk", {"density": 1.0}, {}),
        ("powersgd", {"rank": 16}, {}),
        ("topk", {"density": 1.0}, {"mp_policy": bf16}),
    ]
    for name, options, policy in kinds:
        model = Gated()
        fully_shard(model, mesh=job.MESH["shard"], **policy)
        build = compressors.build(name, **options)
        replicas = wirebench.compress_replicas(model, build, job.MESH["replicate"])
        loss_of(model, 0).backward()
        for mine, theirs in zip(gradients(model), gradients(plain), strict=True):
            assert float((mine - theirs).norm() / theirs.norm()) < (0.02 if policy else 1e-5), (name, policy)
        replicas.close()


CASES: list[Callable[[], None]] = [
    padding_before_the_first_elements_moves_no_gradient,
]

if __name__ == "__main__":
    job.start()
    for case in CASES:
        case()
        if job.RANK == 0:
            print(case.__name__, flush=True)
    end_process(0)
