"""What `test_synchronise.py` runs on each of four ranks beside `pods.py`: models that are not plain, and wrong uses."""

import os
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import wirebench
from tests.dropin import pods as job
from tests.dropin.cases import run, says
from tests.dropin.grouped import alike
from tests.dropin.pods import Layer, Net, apart, batch, gradients, loss_of, pods, sgd, sharded, train, whole
from wirebench import compressors, schedulers
from wirebench.errors import PeerLost


def replicas_begin_alike() -> None:
    """With the first replica's weights and buffers, whatever each of them brought."""
    model = Net()
    model.register_buffer("mean", torch.full((3,), float(job.RANK)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(job.RANK // 2)
    wrapped, replicas = pods(model=model)
    assert apart(whole(wrapped), whole(Net())) == 0
    assert torch.equal(wrapped.mean, torch.full((3,), float(job.RANK % 2)))
    replicas.close()


def what_differs_between_replicas_is_named() -> None:
    first, second = job.RANK % 2, job.RANK % 2 + 2
    pod = job.RANK // 2
    words = f"compressor.density is 0.01 on rank {first} but 0.02 on rank {second}"
    says(words, lambda: pods("topk", density=0.01 * (1 + pod)))
    model = Net()
    model.blocks[0].bias.requires_grad = not pod
    says(f"on rank {first} but", lambda: pods(model=model))
    every = init_device_mesh("cpu", (4,))
    says("mesh: shard is", lambda: wirebench.compress_replicas(sharded(), compressors.build("none"), every))


def the_dimension_of_shards_is_refused_in_place_of_replicas() -> None:
    """Also with one shard, where its ranks are alone and would average nothing."""
    dense, rule = compressors.build("none"), schedulers.build("wfbp")
    for mesh in (job.MESH, init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard"))):
        model, group = sharded(mesh=mesh["shard"]), mesh["shard"].get_group()
        words = ", ".join(map(str, dist.get_process_group_ranks(group)))
        says(
            f'pass the dimension of the replicas, mesh["replicate"]; in this one are the ranks that share the model, '
            f"{words}",
            partial(wirebench.compress_replicas, model, dense, mesh["shard"]),
        )
        says(
            'process_group: pass mesh["replicate"].get_group(); in this one',
            partial(wirebench.synchronise, model, dense, rule, process_group=group),
        )


def frozen_parameters_have_no_gradient_and_no_residual() -> None:

    def frozen() -> Net:
        model = Net()
        model.blocks[0].weight.requires_grad = model.blocks[2].bias.requires_grad = False
        for parameter in model.scale.parameters():  # a module without anything that learns
            parameter.requires_grad = False
        return model

    job.beside_ddp(frozen, lambda trained: train(trained, sgd, 6))
    _, replicas = pods(model=frozen())
    assert len(replicas._job.units) == 4 and "scale.weight" not in replicas._job.layout()
    replicas.close()


SENDS_ZEROS = hasattr(FSDPModule, "set_reduce_scatter_unused_params")
"""Whether FSDP reduces zeros for a parameter without a gradient: torch 2.15 does, and 2.11 leaves it out."""


class Even(nn.Module):
    """Layers that two ranks share evenly, and three parameters of one size, each of which may learn."""

    def __init__(self, learning: str = "abc") -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.last = Layer(12, 20), Layer(20, 4)
        self.a, self.b, self.c = (nn.Parameter(torch.ones(4, 2), requires_grad=name in learning) for name in "abc")

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x))) * (self.a + 2 * self.b + 3 * self.c).sum()


def learn(model: Any) -> None:
    model(batch(0)[0]).square().mean().backward()


def what_learns_later_is_one_line() -> None:
    """A module in which nothing learned, which has no exchange; parameters that change places in one message; and a
    module that was frozen, which residuals would move on.
    """
    model = Net()
    for parameter in model.scale.parameters():
        parameter.requires_grad = False
    wrapped, replicas = pods("topk", model=model)
    loss_of(wrapped, 0).backward()
    model.scale.weight.requires_grad = True
    says("scale was unfrozen after compress_replicas was called", lambda: loss_of(wrapped, 1).backward())
    replicas.close()
    wrapped, replicas = pods("topk", model=Even("ab"))
    learn(wrapped)
    wrapped.b.requires_grad, wrapped.c.requires_grad = False, True
    says("has other gradients, or in another order", lambda: learn(wrapped))
    replicas.close()
    wrapped, replicas = pods("topk")
    loss_of(wrapped, 0).backward()
    wrapped.blocks[1].requires_grad_(False)
    says("blocks.1 has other gradients", lambda: loss_of(wrapped, 1).backward())
    replicas.close()


def gradients_of_several_dtypes_are_one_line() -> None:
    """Those of one module, which torch 2.15 packs by dtype, and those of several, which messages may hold together."""
    model = Net()
    fully_shard(model.blocks[0], mesh=job.MESH["shard"], mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    wrapped: Any = fully_shard(model, mesh=job.MESH["shard"])
    replicas = wirebench.compress_replicas(wrapped, compressors.build("none"), job.MESH["replicate"])
    says("reduces blocks.0 in bfloat16 and other modules in float32", lambda: loss_of(wrapped, 0).backward())
    replicas.close()
    if not SENDS_ZEROS:
        return
    even: Any = Even().bfloat16()
    even.b.grad_dtype = torch.float32
    wrapped, replicas = pods(model=even, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    says("give all of them one grad_dtype", lambda: wrapped(batch(0)[0].bfloat16()).sum().backward())
    replicas.close()


def a_state_of_another_shard_is_refused() -> None:
    """Its layers may be as long; that of another replica of the shard is taken."""
    group, rule = job.MESH["replicate"].get_group(), schedulers.build("wfbp")
    for kind in ("replicas", "sync"):
        made: list[Any] = []
        for _ in range(2):
            model = sharded(Even())
            build = compressors.build("topk", density=0.1)
            if kind == "replicas":
                made.append(wirebench.compress_replicas(model, build, job.MESH["replicate"]))
            else:
                made.append(wirebench.synchronise(model, build, rule, process_group=group))
            if len(made) == 1:
                learn(model)
                if kind == "sync":
                    made[0].wait()
        states: list[Any] = [None] * 4
        dist.all_gather_object(states, made[0].state_dict())
        says(
            f"the state is of shard [{1 - job.RANK % 2}] of [2], and this rank has shard [{job.RANK % 2}] of [2]",
            partial(made[1].load_state_dict, states[job.RANK ^ 1]),
        )
        made[1].load_state_dict(states[job.RANK ^ 2])
        for each in made:
            each.close()


class Scaled(nn.Module):
    """A parameter of the model's own that some ranks use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.last = Layer(12, 20), Layer(20, 5)
        self.scale = nn.Parameter(torch.ones(4, 2))
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        logits = self.last(torch.relu(self.first(x)))
        return logits * self.scale.sum() if self.step == 0 or job.RANK == 1 else logits


def a_module_that_one_rank_of_a_pod_leaves_out_is_averaged_all_the_same() -> None:
    """FSDP sums what the others have of it, and this rank's part of that sum is no zero."""
    if SENDS_ZEROS:
        job.beside_ddp(Scaled, lambda trained: steps(trained, 4), find_unused_parameters=True)


def steps(trained: Any, count: int) -> None:
    """Steps of a model that knows which one it is in."""
    optimizer = torch.optim.SGD(trained.parameters(), 0.02)
    for step in range(count):
        (trained.module if isinstance(trained, DistributedDataParallel) else trained).step = step
        optimizer.zero_grad()
        loss_of(trained, step).backward()
        optimizer.step()


class Branching(nn.Module):
    """A layer that one replica alone uses, in steps that both of its ranks know; and a parameter that no rank uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.other, self.last = Layer(12, 20), Layer(20, 20), Layer(20, 5)
        self.idle = nn.Parameter(torch.ones(4, 2), requires_grad=SENDS_ZEROS)
        self.used = nn.Parameter(torch.ones(4, 2))
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        if self.step % 3 == job.RANK // 2:
            hidden = torch.relu(self.other(hidden))
        return self.last(hidden) * self.used.sum()


def a_module_that_one_replica_leaves_out_is_averaged_all_the_same() -> None:
    """And a parameter that has no gradient on any rank, where torch can send zeros for it."""
    job.beside_ddp(Branching, lambda trained: steps(trained, 6), find_unused_parameters=True)
    trained, replicas = pods("topk", model=Branching())
    steps(trained, 6)
    assert alike(torch.cat([each.flatten() for each in whole(trained).values()]), None)
    replicas.close()
    if not SENDS_ZEROS:
        model = Branching()
        model.idle.requires_grad_()
        trained, replicas = pods(model=model)
        says("a parameter had none, or was frozen or unfrozen", lambda: loss_of(trained, 0).backward())
        replicas.close()


def a_layout_that_changes_is_refused() -> None:
    model, replicas = pods("topk")
    loss_of(model, 0).backward()
    model.blocks[1].bias.requires_grad = False
    says("a parameter had none, or was frozen or unfrozen", lambda: loss_of(model, 1).backward())
    replicas.close()


def two_passes_that_both_reduce_average_twice() -> None:
    """As under DDP without no_sync; also of checkpointed blocks, whose passes are not reentrant."""

    def twice(trained: Any) -> None:
        for part in range(2):
            loss_of(trained, 0, part).backward()

    for made in (Net, partial(Checkpointed, False)):
        job.beside_ddp(made, twice, of=gradients)


def a_nested_backward_pass_is_one_line() -> None:
    """After it nothing of the outer pass comes; its gradients are not added to those of the next step."""
    model, replicas = pods(model=Checkpointed(nested=True), scheduler=schedulers.build("single"))
    loss_of(model, 0).backward()
    says("use_reentrant=False", lambda: loss_of(model, 1).backward())
    replicas.close()


class Checkpointed(nn.Module):
    """Layers, and nothing of the model's own."""

    def __init__(self, nested: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.last, self.nested = Layer(12, 20), Layer(20, 5), nested

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        hidden = checkpoint(self.first, x, use_reentrant=self.nested)
        return checkpoint(self.last, hidden, use_reentrant=self.nested)


def wrong_uses_are_one_line() -> None:
    none, between = compressors.build("none"), job.MESH["replicate"]
    wrap = wirebench.compress_replicas
    says("call fully_shard(module", lambda: wrap(Net(), none, between))
    says('over the other one alone: fully_shard(module, mesh=mesh["shard"])',
         lambda: wrap(sharded(mesh=job.MESH), none, between))  # fmt: skip
    wrapped: Any = replicate(Net(), mesh=job.MESH["replicate"])
    says("is wrapped by replicate()", lambda: wrap(wrapped, none, between))
    says("this mesh has replicate, shard", lambda: wrap(sharded(), none, job.MESH))
    wrong: Any = 3
    named: Any = "none"
    says("not a int", lambda: wrap(sharded(), none, wrong))
    says("must be a torch.nn.Module", lambda: wrap(wrong, none, between))
    says("pass an object", lambda: wrap(sharded(), named, between))
    for name in compressors.available():
        compressor = compressors.build(name)
        if compressor.makes_update:
            says("returns updates", lambda: wrap(sharded(), compressor, between))  # noqa: B023
        elif compressor.whole_model:
            says("pass scheduler=schedulers.build('single')", lambda: wrap(sharded(), compressor, between))  # noqa: B023
    for name in ("outer", "dear", "builtin"):
        rule = schedulers.build(name)
        says(f"'{name}' does not only merge", lambda: wrap(sharded(), none, between, scheduler=rule))  # noqa: B023
    partly = Net()
    fully_shard(partly.blocks[0], mesh=job.MESH["shard"])
    says("learn its own; call fully_shard(model), too", lambda: wrap(partly, none, between))
    says("is in no module of fully_shard, so that", lambda: wirebench.synchronise(
        partly, none, schedulers.build("wfbp"), process_group=between.get_group()))  # fmt: skip
    with torch.device("meta"):
        empty = sharded(Net())
    says("has no data (device meta)", lambda: wrap(empty, none, between))
    model, replicas = pods()
    says("no step is done yet", replicas.report)
    says("has an all-reduce hook already", lambda: wrap(model, none, between))
    says("needs what compress_replicas.state_dict() returned", lambda: replicas.load_state_dict({}))
    for layers in ({"layers": {"head": 3}}, {"layers": None}):
        state = {**replicas.state_dict(), **layers}
        says("of another model, or of another number of shards", lambda: replicas.load_state_dict(state))  # noqa: B023
    model.set_requires_all_reduce(False)
    says("set_requires_gradient_sync(False)", lambda: loss_of(model, 0).backward())
    replicas.close()
    model, replicas = pods()
    model.set_gradient_divide_factor(2.0)
    says("set it before", lambda: loss_of(model, 0).backward())
    replicas.close()
    model, replicas = pods()
    replicas.close()
    replicas.close()
    says("it is closed", lambda: loss_of(model, 0).backward())
    model, replicas = pods()
    replicas.close()
    again = wrap(model, none, between)
    loss_of(model, 0).backward()
    again.close()
    doubled = sharded(Net().double())
    topk = wrap(doubled, compressors.build("topk"), between)
    says("not of float64", lambda: doubled(batch(0)[0].double()).sum().backward())
    topk.close()


def a_parameter_that_fsdp_ignores_is_averaged_by_its_loop() -> None:
    """As the refusal says, which comes while it learns; then all gradients are those of DDP."""
    model, between, none = Net(), job.MESH["replicate"], compressors.build("none")
    wrapped = sharded(model, ignored_params={model.head, *model.blocks[1].parameters()})
    call = partial(wirebench.compress_replicas, wrapped, none, between)
    says("head was in ignored_params of fully_shard, or came after that call", call)
    says("leave it out of ignored_params, or freeze it during this call and average its gradients yourself", call)
    says("leave it out of ignored_params", lambda: wirebench.synchronise(
        wrapped, none, schedulers.build("wfbp"), process_group=between.get_group()))  # fmt: skip
    ignored = [model.head, *model.blocks[1].parameters()]
    for parameter in ignored:
        parameter.requires_grad_(False)
    replicas = call()
    for parameter in ignored:
        parameter.requires_grad_(True)
    plain = DistributedDataParallel(Net())
    for step in range(2):
        for trained in (wrapped, plain):
            trained.zero_grad()
            loss_of(trained, step).backward()
        for parameter in ignored:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(dist.get_world_size())
        assert apart(gradients(model), gradients(plain.module)) < 1e-6, step
    replicas.close()


def a_norm_of_the_whole_gradient_is_one_line() -> None:
    """A rank knows the norm of its shard; with one shard that is the whole."""
    build = partial(compressors.build, "dgc", momentum=0.0, clip=0.1)
    rule = schedulers.build("single")
    says(
        "a rank has its shard alone; build it with clip=0",
        lambda: wirebench.compress_replicas(sharded(), build(), job.MESH["replicate"], scheduler=rule),
    )
    mesh = init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard"))
    wirebench.compress_replicas(sharded(mesh=mesh["shard"]), build(), mesh["replicate"], scheduler=rule).close()


def a_hook_that_comes_later_is_one_line() -> None:
    model, replicas = pods()
    late = [each.register_post_accumulate_grad_hook(print) for each in model.parameters()]
    says("step the optimizer after backward()", lambda: loss_of(model, 0).backward())
    replicas.close()
    assert late


def a_compressor_serves_one_model() -> None:
    wrap, between = wirebench.compress_replicas, job.MESH["replicate"]
    topk = compressors.build("topk")
    replicas = wrap(sharded(), topk, between)
    group, fused = between.get_group(), schedulers.build("wfbp")
    one = "build one for each model"
    says(one, lambda: wrap(sharded(), topk, between))
    says(one, lambda: wirebench.synchronise(sharded(), topk, fused, process_group=group))
    replicas.close()


def a_divide_factor_of_the_users_counts() -> None:
    sums = []
    for factor in (None, 1.0):
        model = sharded()
        for module in [each for each in model.modules() if isinstance(each, FSDPModule)]:
            if factor is not None:
                module.set_gradient_divide_factor(factor)
        replicas = wirebench.compress_replicas(model, compressors.build("none"), job.MESH["replicate"])
        loss_of(model, 0).backward()
        sums.append(gradients(model))
        replicas.close()
    assert all(torch.allclose(2 * sums[0][name], total) for name, total in sums[1].items())


def compressors_are_made_ready_before_training() -> None:
    """A C compiler takes seconds, for which no step should wait."""
    wrap = wirebench.compress_replicas
    for make in (lambda build: wrap(sharded(), build, job.MESH["replicate"]),
                 lambda build: wirebench.compress_shards(sharded(), build)):  # fmt: skip
        build: Any = compressors.build("quantised_sum", feedback=False)
        seen: list[torch.device] = []
        build.prepare = seen.append
        made: Any = make(build)
        assert seen == [torch.device("cpu")]
        made.close()


def a_report_counts_what_goes_between_replicas() -> None:
    model, replicas = pods("topk", density=0.05)
    train(model, sgd, 14)
    report = replicas.report()
    assert report["steps"] == 3, report["steps"]  # of 10 the times do not count, and the last one has not ended
    assert report["world_size"] == 2 and report["shards"] == 2 and report["messages"] == 5
    assert 0 < report["bytes_per_step"]["wire"] < report["bytes_per_step"]["dense"] / 5
    assert report["bytes_per_step"]["dense"] <= 4.2 * report["parameters"]
    assert report["phases"]["compress"] > 0 and report["phases"]["exchange_exposed"] > 0
    assert report["phases"]["backward"] is None
    replicas.close()


def fewer_replicas_keep_the_residuals() -> None:
    """Four replicas of one shard become two: each takes over two, and their part in the average stays."""
    four = init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard"))
    two = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("job", "replicate", "shard"))
    model = sharded(mesh=four["shard"])
    replicas = wirebench.compress_replicas(model, compressors.build("topk"), four["replicate"])
    for step in range(3):
        loss_of(model, step).backward()
    mine, states = replicas.state_dict(), [None] * 4
    dist.all_gather_object(states, mine)
    saved: Any = states
    replicas.close()
    model = sharded(mesh=two["shard"])
    replicas = wirebench.compress_replicas(model, compressors.build("topk"), two["replicate"])
    place = two["replicate"].get_local_rank()
    says("take_over(states)", lambda: replicas.load_state_dict(saved[0]))
    says("needs a state", lambda: replicas.take_over([]))
    replicas.take_over([saved[place], saved[place + 2]])
    before = [each["compressor"]["residual"] for each in saved]
    after = replicas.compressor.state_dict()["residual"]
    assert torch.equal(after, (before[place] + before[place + 2]) / 2) and after.any() and replicas.steps == 3
    says("comes before the first step", lambda: replicas.take_over(saved))
    replicas.close()


def a_rank_that_dies_is_named_by_its_replica() -> None:
    """The last case: ranks 3 and 2 are gone then. Rank 0 waits for rank 2 until its time is over."""
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(4)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    model, _ = pods("topk", timeout_seconds=10.0)
    loss_of(model, 0).backward()
    if job.RANK == 3:
        os._exit(0)
    if job.RANK == 2:  # its partner in FSDP's own collectives is gone
        os._exit(0)
    for _ in range(2):  # the second time, too
        try:
            loss_of(model, 1).backward()
        except PeerLost as error:
            assert f"lost rank {job.RANK + 2} (pid {pids[job.RANK + 2].item()} on " in str(error), error
        else:
            raise AssertionError("nobody missed a replica")


if __name__ == "__main__":
    run(job.start())
