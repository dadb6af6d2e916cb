"""What `test_fsdp.py` runs on both ranks: each compressor between replicas of one shard, and through DDP's hook.

Arguments: names of compressors. DDP's buckets are the layers, which are FSDP's modules, and FSDP's training begins with
the weights that the hook's dense steps have left. Rank 0 prints, for each name: the number of messages, the largest
difference of any parameter after all steps, and the bytes a step of either.
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import wirebench
from tests.dropin.pods import Layer
from wirebench import compressors
from wirebench.comm.launch import end_process
from wirebench.dropin.comm_hook import CommHook
from wirebench.dropin.fsdp import Replicas

STEPS, DENSE_STEPS, RATE, CAP_MB = 6, 2, 0.05, 0.0005


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(Layer(12, 40), nn.ReLU(), Layer(40, 40), nn.ReLU(), Layer(40, 4))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    inputs = torch.randn(16, 12, generator=torch.Generator().manual_seed(1000 * dist.get_rank() + number))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1)).backward()
    optimizer.step()


def through_hook(name: str) -> tuple[nn.Module, CommHook, dict[str, Tensor]]:
    """The trained model, its hook, and the weights after the dense steps."""
    model = network()
    ddp = DistributedDataParallel(model, bucket_cap_mb=CAP_MB)
    hook = wirebench.comm_hook(compressors.build(name), warmup_steps=0)
    ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    begun: dict[str, Tensor] = {}
    for number in range(STEPS):
        if number == DENSE_STEPS:
            begun = {key: each.clone() for key, each in model.state_dict().items()}
        step(ddp, optimizer, number)
    return model, hook, begun


def between_replicas(name: str, begun: dict[str, Tensor]) -> tuple[nn.Module, Replicas]:
    model = network()
    model.load_state_dict(begun)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    for each in model:
        if isinstance(each, Layer):
            fully_shard(each, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    replicas = wirebench.compress_replicas(model, compressors.build(name), mesh["replicate"], warmup_steps=0)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for number in range(DENSE_STEPS, STEPS):
        step(model, optimizer, number)
    return model, replicas


def main() -> None:
    for name in sys.argv[1:]:
        ddp, hook, begun = through_hook(name)
        model, replicas = between_replicas(name, begun)
        assert hook._job is not None
        cut = hook._job._buckets
        theirs = [[tuple(layer[1:]) for layer in cut.layers[group.start : group.stop]] for group in cut.groups]
        assert theirs == [[tuple(layer[1:]) for layer in unit.layers] for unit in replicas._job.units], theirs
        ends = {key: each.full_tensor() for key, each in model.state_dict().items()}
        worst = max(float((ends[key] - each).abs().max()) for key, each in ddp.state_dict().items())
        assert any(not torch.equal(ends[key], each) for key, each in begun.items()), "nothing was learned"
        if dist.get_rank() == 0:
            sent = [report["bytes_per_step"]["payload"] for report in (hook.report(), replicas.report())]
            print(f"{name} {replicas.report()['messages']} {worst:.3e} {sent[0]} {sent[1]}", flush=True)
        hook.close()
        replicas.close()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    end_process(0)
