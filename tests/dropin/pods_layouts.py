"""What `test_synchronise.py` runs on four ranks: parameters of few rows, modules in one group, unused ones."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import wirebench
from tests.dropin import pods as job
from tests.dropin.cases import run, says
from tests.dropin.pods import Layer, Net, apart, batch, full, gradients, loss_of, pods, resumable, whole
from tests.dropin.pods_misuse import SENDS_ZEROS
from tests.dropin.pods_sums import few_bits
from tests.dropin.pods_view import same_on_replicas
from wirebench import compressors, schedulers


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
        for mine, theirs in zip(gradients(model).values(), gradients(plain).values(), strict=True):
            assert float((mine - theirs).norm() / theirs.norm()) < (0.02 if policy else 1e-5), (name, policy)
        replicas.close()


def modules_of_one_group_are_one_unit() -> None:
    """`fully_shard([a, b])`, also for the sums within a pod, which end with close()."""
    plain = DistributedDataParallel(Net())
    loss_of(plain, 0).backward()
    model = Net()
    fully_shard([model.blocks[1], model.blocks[2]], mesh=job.MESH["shard"])
    for module in (model.blocks[0], model.scale, model):
        fully_shard(module, mesh=job.MESH["shard"])
    replicas = wirebench.compress_replicas(model, compressors.build("none"), job.MESH["replicate"])
    loss_of(model, 0).backward()
    assert apart(gradients(model), gradients(plain.module)) < 1e-6
    whole_model = sum(parameter.numel() for parameter in Net().parameters())
    assert len(replicas._job.units) == 4 and replicas._job.numel < 0.6 * whole_model
    sums = wirebench.compress_shards(model, few_bits())
    loss_of(model, 1).backward()
    assert sums.report()["calls"] == 4
    sums.close()
    loss_of(model, 2).backward()
    assert sums.report()["calls"] == 4
    replicas.close()


def gradients_of_inputs_alone_exchange_nothing() -> None:
    """`torch.autograd.grad` of them leaves residuals and gradients as they are, and the next pass is averaged."""
    model, replicas = pods("topk", density=0.05)
    loss_of(model, 0).backward()
    model.zero_grad()
    before = replicas.compressor.state_dict()["residual"].clone()
    inputs, labels = batch(1)
    inputs.requires_grad_()
    (found,) = torch.autograd.grad(nn.functional.cross_entropy(model(inputs), labels), inputs)
    assert found.any() and replicas.steps == 1
    assert before.any() and torch.equal(before, replicas.compressor.state_dict()["residual"])
    assert not any(full(each.grad).any() for each in model.parameters() if each.grad is not None)
    loss_of(model, 2).backward()
    assert replicas.steps == 2 and any(each.any() for each in gradients(model).values())
    replicas.close()


def merged_modules_share_an_exchange() -> None:
    """Dense gradients have the same bits in however many messages; what a compressor chooses differs."""
    small = {"bucket_cap_mb": 0.0022, "first_bucket_mb": 0.0022}
    cuts = [(5, None), (2, schedulers.build("fused", **small)), (1, schedulers.build("single"))]
    for name, options in (("none", {}), ("topk", {"density": 0.05})):
        ends = []
        for messages, scheduler in cuts:
            model, replicas = pods(name, scheduler=scheduler, **options)
            resumable(model, 0, 3)
            assert replicas.report()["messages"] == messages and same_on_replicas(model)
            ends.append(whole(model))
            replicas.close()
        assert [apart(ends[0], each) > 0 for each in ends[1:]] == [name == "topk"] * 2, name
    model, replicas = pods("fetch_sgd", scheduler=schedulers.build("single"))
    resumable(model, 0, 2)
    assert same_on_replicas(model) and replicas.steps == 2
    replicas.close()


def a_cut_is_learned_in_the_first_steps_and_kept_over_a_restart() -> None:
    for name in ("optimal", "mg_wfbp"):
        model, replicas = pods("topk", density=0.05, scheduler=schedulers.build(name))
        assert not replicas.state_dict()["cut"] and replicas._job.cut.steps == 6
        resumable(model, 0, 7)
        state, weights = copy.deepcopy(replicas.state_dict()), copy.deepcopy(model.state_dict())
        bounds = [range(*each) for each in state["cut"]["bounds"]]
        assert [place for run in bounds for place in run] == list(range(5)) and replicas._job.cut.steps == 0
        resumable(model, 7, 9)
        assert same_on_replicas(model) and replicas.report()["messages"] == len(bounds)
        replicas.close()
        again, replicas = pods("topk", density=0.05, scheduler=schedulers.build(name))
        again.load_state_dict(weights)
        replicas.load_state_dict(state)
        resumable(again, 7, 9)
        assert apart(whole(model), whole(again)) == 0 and replicas._job.cut.groups == bounds
        replicas.close()


def a_model_that_is_called_twice_before_a_backward_pass_is_averaged() -> None:
    """By a schedule whose exchanges all begin after the pass."""

    def learn(trained: Any) -> None:
        optimizer = job.sgd(trained.parameters())
        for step in range(3):
            optimizer.zero_grad()
            (loss_of(trained, step) + loss_of(trained, step, 1)).backward()
            optimizer.step()

    job.beside_ddp(Net, learn, single_steps=3)
    if not SENDS_ZEROS:
        return
    model, replicas = pods()  # zeros come when the first half of the pass is over, and the gradients later
    says("take scheduler=schedulers.build('single')", (loss_of(model, 0) + loss_of(model, 0, 1)).backward)
    replicas.close()


class Columns(nn.Module):
    """Matrices whose columns two ranks share evenly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.last = Layer(12, 16), Layer(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


def shards_of_all_kinds_end_with_the_weights_of_ddp() -> None:
    """Kept after the forward pass, offloaded, compiled, of columns."""
    plain = DistributedDataParallel(Columns())
    job.train(plain, job.sgd, 3, parts=2, clip=True)
    kinds: list[dict[str, Any]] = [
        {"reshard_after_forward": False, "offload_policy": CPUOffloadPolicy(pin_memory=False)},
        {"shard_placement_fn": lambda parameter: Shard(parameter.ndim - 1)},
    ]
    for words in kinds:
        model = job.sharded(Columns(), **words)
        replicas = wirebench.compress_replicas(model, compressors.build("none"), job.MESH["replicate"])
        model.compile(backend="aot_eager")
        job.train(model, job.sgd, 3, parts=2, clip=True)
        assert apart(whole(model), whole(plain.module)) < 1e-6, words
        replicas.close()


def replicas_of_a_tensor_parallel_model_are_averaged() -> None:
    """A third dimension of the mesh, whose ranks have the same samples."""
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("replicate", "shard", "tensor"))
    plain, model = (nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5)) for _ in range(2))
    model.load_state_dict(plain.state_dict())
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["shard"])
    replicas = wirebench.compress_replicas(model, compressors.build("none"), mesh["replicate"])
    for replica in range(2):
        inputs = torch.randn(8, 12, generator=torch.Generator().manual_seed(replica))
        (plain(inputs).square().mean() / 2).backward()
        if mesh["replicate"].get_local_rank() == replica:
            model(inputs).square().mean().backward()
    assert apart(gradients(model), gradients(plain)) < 5e-7
    replicas.close()


if __name__ == "__main__":
    run(job.start())
