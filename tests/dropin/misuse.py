"""Wrong uses of a loop of one's own, each one line. Argument: horovod or torch."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import wirebench
from tests.dropin import own_loop
from tests.dropin.cases import run, says
from tests.dropin.own_loop import RATE, WORLD, batch, loss_of, network, train
from wirebench import compressors, schedulers
from wirebench.dropin.synchroniser import Sync


def states_of_others_are_refused(state: dict[str, Any]) -> None:
    """state: of `synchronise` with compressor none"""
    sync = wirebench.synchronise(network(), compressors.build("topk"), schedulers.build("wfbp"))
    hook = wirebench.comm_hook(compressors.build("none"))
    says("of compressor 'none', and here is 'topk'", lambda: sync.load_state_dict(state))
    says("a state of sync, whose gradient is cut in another way", lambda: hook.load_state_dict(state))
    wrong: list[Any] = [{}, {"steps": 1}, None, [1]]
    for each in wrong:
        says("needs what sync.state_dict() returned", partial(sync.load_state_dict, each))
        says("needs what comm_hook.state_dict() returned", partial(hook.load_state_dict, each))
    sync.close()
    hook.close()


def wrong_kinds_are_refused(sync: Sync, other: torch.optim.Optimizer) -> None:
    """other: of another model"""
    things: Any = None, 3
    says("needs one optimizer, not a NoneType", lambda: sync.step(things[0]))
    says(
        "optimizer=: needs one optimizer, not a list",
        lambda: wirebench.synchronise(network(), compressors.build("none"), schedulers.build("dear"), optimizer=[]),
    )
    says("LBFGS needs a closure", lambda: sync.step(torch.optim.LBFGS(network().parameters())))
    says("must be a torch.nn.Module, not a int", lambda: wirebench.profile(things[1]))
    says("batch_size: needs a number of samples", lambda: wirebench.profile(network(), things[0]))
    build = compressors.build("none"), schedulers.build("wfbp")
    says("collective: pass a name", lambda: wirebench.synchronise(network(), *build, things[1]))
    says("must be a torch.amp.GradScaler", lambda: wirebench.synchronise(network(), *build, scaler=things[1]))
    for key, value in {"seed": "x", "warmup_steps": -1, "timeout_seconds": -1}.items():
        says(f"{key}: needs", partial(wirebench.synchronise, network(), *build, **{key: value}))
    for none in (None, network):
        says("not a ", partial(wirebench.synchronise, network(), none, build[1]))
    swapped: Any = build[::-1]
    says("compressor: this is the schedule Wfbp", lambda: wirebench.synchronise(network(), *swapped))
    outer = build[0], schedulers.build("dear")
    says("holds no parameter", lambda: wirebench.synchronise(network(), *outer, optimizer=other))
    model = network()
    part = torch.optim.SGD(list(model.parameters())[1:], RATE)
    says("does not hold 0.weight", lambda: wirebench.synchronise(model, *outer, optimizer=part))
    both = [torch.optim.SGD(model.parameters(), RATE) for _ in range(2)]
    dear = wirebench.synchronise(model, *outer, optimizer=both[0])
    loss_of(model, 0).backward()
    says("this scheduler updates the model itself", lambda: dear.step(both[1]))
    dear.close()
    groups = compressors.build("quantised_sum", group=3), schedulers.build("fused")
    says("groups of 3 do not divide the 2 ranks", lambda: wirebench.synchronise(network(), *groups))


def mistakes_are_told() -> None:
    model = network()
    adam = torch.optim.AdamW(model.parameters())
    sync = wirebench.synchronise(model, compressors.build("dgc"), schedulers.build("wfbp"))
    loss_of(model, 0).backward()
    says("momentum of its own", lambda: sync.step(adam))
    sync.close()
    sync = wirebench.synchronise(model, compressors.build("topk"), schedulers.build("wfbp"))
    scaler, plain = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), RATE)
    scaler.scale(loss_of(model, 0)).backward()
    sync.wait()
    says("a GradScaler that it does not know", lambda: scaler.step(plain))
    sync.close()
    sync = wirebench.synchronise(model, compressors.build("none"), schedulers.build("wfbp"))
    model.zero_grad()
    says("there is no gradient", sync.wait)
    empty = network().to("meta")
    says(
        "0.weight has no data",
        lambda: wirebench.synchronise(empty, compressors.build("none"), schedulers.build("wfbp")),
    )
    parts = compressors.build("topk"), schedulers.build("wfbp")
    says("not of float64", lambda: wirebench.synchronise(network().double(), *parts))
    for step in range(2):
        loss_of(model, step).backward()
        sync.wait()
    loss_of(model, 2).backward()
    other = torch.optim.SGD(network().parameters(), RATE)
    says("no parameter of the model", lambda: sync.step(other))
    says("comes before the first step", lambda: sync.load_state_dict({}))
    states_of_others_are_refused(sync.state_dict())
    wrong_kinds_are_refused(sync, other)
    mesh = init_device_mesh("cpu", (WORLD,)) if own_loop.ENGINE == "torch" else None
    if mesh is not None:
        sharded = nn.Linear(8, 8)
        fully_shard(sharded, mesh=mesh)
        says("is sharded", lambda: wirebench.synchronise(sharded, compressors.build("none"), schedulers.build("wfbp")))
        hook = wirebench.comm_hook(compressors.build("topk"))
        says("is for DistributedDataParallel", lambda: hook(None, batch(0)[0]))  # FSDP1 calls it so
        for register in ("set_all_reduce_hook", "set_custom_reduce_scatter"):
            module: Any = fully_shard(nn.Linear(8, 8), mesh=mesh)
            getattr(module, register)(hook)
            says("is for DistributedDataParallel", lambda: module(torch.ones(2, 8)).sum().backward())  # noqa: B023
    sync.close()
    sync.close()
    says("it is closed", sync.wait)


def backward_and_wait(model: nn.Module, sync: Sync) -> None:
    loss_of(model, 2).backward()
    sync.wait()


def what_would_let_ranks_drift_apart_is_refused() -> None:
    """Each on a model that has begun to train, so that the wrong use is the loop's only fault."""

    changes: dict[str, Callable[[Any], object]] = {
        "4.weight is float64 on cpu now": lambda model: model[4].double(),
        "0.weight was frozen": lambda model: model[0].requires_grad_(False),
        "2.bias was unfrozen": lambda model: model[2].bias.requires_grad_(True),
        "5.weight was added": lambda model: model.append(nn.Linear(4, 4)),
        "2.bias was added, removed or replaced": lambda model: setattr(model[2], "bias", nn.Parameter(torch.ones(40))),
    }
    for words, change in changes.items():
        model: Any = network()
        model[2].bias.requires_grad_(False)
        model, sync = train("none", "wfbp", range(2), model=model)
        change(model)
        says(words, partial(backward_and_wait, model, sync))
        sync.close()
    for steps in (0, 2):
        model, sync = train("none", "wfbp", range(steps))
        says("another synchronise", lambda: train("none", "wfbp", model=model))  # noqa: B023
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        loss_of(model, 2).backward()
        says("sync.step(optimizer) in its place", optimizer.step)
        sync.close()
    if own_loop.ENGINE == "torch":
        wrapped = nn.parallel.DistributedDataParallel(network())
        says("averages its gradients already", lambda: train("none", "wfbp", model=wrapped))
    none, wfbp = compressors.build("none"), schedulers.build("wfbp")
    wrong = {
        "the name 'topk'": ("topk", wfbp),
        "the class 'Wfbp'": (none, type(wfbp)),
        "the module": (compressors, wfbp),
    }
    for words, parts in wrong.items():
        says(words, lambda: wirebench.synchronise(network(), *parts))  # noqa: B023


def a_state_of_another_schedule_is_refused() -> None:
    states = {}
    for scheduler in ("wfbp", "outer", "easgd"):
        _, sync = train("none", scheduler, range(4))
        states[scheduler] = sync.state_dict()
        sync.close()
    for mine, theirs, words in (
        ("wfbp", "outer", "exchanges weights' differences, and this one exchanges gradients"),
        ("outer", "wfbp", "exchanges gradients, and this one exchanges weights' differences"),
        ("easgd", "outer", "exchanges weights' differences, and this one exchanges weights"),
    ):
        says(words, lambda: train("none", mine, state=states[theirs]))  # noqa: B023
    parts: Any = network()
    optimizer = torch.optim.SGD(parts.parameters(), RATE)
    build = compressors.build("none"), schedulers.build("outer", every=3, delay=1)
    sync = wirebench.synchronise(parts, *build, optimizer=optimizer)
    sync.load_state_dict(states["outer"])
    inputs, labels = batch(4)
    loss = nn.functional.cross_entropy(parts[4](parts[1:4](parts[0](inputs))), labels)
    says("call the model itself there, not its parts", loss.backward)
    sync.close()


def a_synchroniser_that_nobody_keeps_is_told() -> None:
    model = network()
    wirebench.synchronise(model, compressors.build("none"), schedulers.build("wfbp"))
    gc.collect()
    says("the object it returned is gone", lambda: loss_of(model, 0).backward())
    wirebench.synchronise(network(), compressors.build("none"), schedulers.build("wfbp")).close()


def averages_serve_each_optimizer_once() -> None:
    model = network()
    parts = [torch.optim.SGD(part.parameters(), RATE) for part in (model[:2], model[2:])]  # type: ignore[index]
    sync = wirebench.synchronise(model, compressors.build("none"), schedulers.build("wfbp"))
    for step in range(3):
        model.zero_grad()
        loss_of(model, step).backward()
        if step:
            sync.wait()
        for part in parts:
            sync.step(part)
        says("there is no gradient", lambda: sync.step(parts[0]))
    sync.close()


if __name__ == "__main__":
    run(own_loop.start())
