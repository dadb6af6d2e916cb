"""What `test_synchronise.py` runs on each of four ranks: `synchronise` on two replicas of a model that FSDP2 shards."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wirebench
from tests.dropin import pods as job
from tests.dropin.cases import run, says
from tests.dropin.grouped import alike
from tests.dropin.pods import Net, adamw, apart, loss_of, sgd, sharded, train, whole
from wirebench import compressors, schedulers
from wirebench.dropin.shard_view import local
from wirebench.dropin.synchroniser import Sync

Make = Callable[[Any], torch.optim.Optimizer]


def synchronised(name: str = "none", schedule: Any = "wfbp", model: Any = None, **kept: Any) -> tuple[Any, Sync]:
    wrapped = sharded() if model is None else model
    scheduler = schedulers.build(schedule) if isinstance(schedule, str) else schedule
    group = job.MESH["replicate"].get_group()
    options = kept.pop("options", {})
    build = compressors.build(name, **options), scheduler
    return wrapped, wirebench.synchronise(wrapped, *build, process_group=group, **kept)


def plain(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.02)


def loop(model: Any, sync: Sync, optimizer: Any, steps: range, parts: int = 1, clip: bool = False) -> None:
    for step in steps:
        optimizer.zero_grad()
        for part in range(parts):
            (loss_of(model, step, part) / parts).backward()
        if not clip:
            sync.step(optimizer)
            continue
        sync.wait()
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()


def dense_exchanges_after_backward_end_with_the_weights_of_ddp() -> None:
    kinds: list[tuple[Make, dict[str, Any]]] = [(sgd, {}), (adamw, {"parts": 2, "clip": True})]
    for make, words in kinds:
        ddp = DistributedDataParallel(Net())
        train(ddp, make, 6, **words)
        model, sync = synchronised(schedule="wfbp" if make is sgd else "single")
        loop(model, sync, make(model.parameters()), range(6), **words)
        assert apart(whole(model), whole(ddp.module)) < 1e-6, words
        sync.close()


def every_method_keeps_replicas_alike_and_learns() -> None:
    """Those that return updates, and one that wants the whole model in one bucket."""
    names = [name for name in compressors.available() if compressors.build(name).makes_update]
    assert {"demo", "dion", "lion_sign"} <= set(names)
    start = whole(Net())
    for name in [*names, "fetch_sgd"]:
        schedule = "single" if compressors.build(name).whole_model else "wfbp"
        model, sync = synchronised(name, schedule)
        loop(model, sync, plain(model.parameters()), range(2))
        ends = whole(model)
        assert apart(ends, start) > 1e-4, name
        assert alike(torch.cat([each.flatten() for each in ends.values()]), None), name
        sync.close()


def local_steps_between_pods_are_local_sgd_by_hand() -> None:
    """Each replica trains alone; after every third step the weights are averaged over the replicas."""
    rule: dict[str, Any] = {"every": 3, "rate": 1.0, "momentum": 0.0, "nesterov": False}
    model, hand = sharded(), sharded()
    mine, theirs = plain(model.parameters()), plain(hand.parameters())
    _, sync = synchronised(schedule=schedulers.build("outer", **rule), model=model, optimizer=mine)
    for step in range(6):
        for each, optimizer in ((model, mine), (hand, theirs)):
            optimizer.zero_grad()
            loss_of(each, step).backward()
            assert nn.utils.clip_grad_norm_(each.parameters(), 0.02) > 0.02
        sync.step(mine)
        theirs.step()
        if step == 1:
            assert not same_on_replicas(model), "replicas train alone"
        if step % 3 == 2:
            for parameter in hand.parameters():
                with torch.no_grad():
                    dist.all_reduce(local(parameter), group=job.MESH["replicate"].get_group())
                    local(parameter).div_(2)
    assert apart(whole(model), whole(hand)) < 1e-6 and same_on_replicas(model)
    with sync.evaluation_view():
        assert apart(whole(model), whole(hand)) < 1e-6
    sync.close()


def same_on_replicas(model: nn.Module) -> bool:
    values = torch.cat([local(parameter).flatten() for parameter in model.parameters()])
    return alike(values, job.MESH["replicate"].get_group())


def a_restart_goes_on_to_the_bit() -> None:
    """With an update's momentum, and in the middle of local steps with their optimizer's state."""
    outer: Any = {"every": 3, "delay": 1}
    for name, schedule in (("demo", "wfbp"), ("none", "outer")):
        ends, make = [], adamw if schedule == "outer" else plain
        for cut in (0, 4):
            state: Any = None
            weights: Any = None
            for steps in (range(cut or 6), range(4, 6))[: 1 + bool(cut)]:
                model = sharded()
                if weights is not None:
                    model.load_state_dict(weights)
                optimizer = make(model.parameters())
                rule = schedulers.build("outer", **outer) if schedule == "outer" else schedule
                updates = {"optimizer": optimizer} if schedule == "outer" else {}
                _, sync = synchronised(name, rule, model, **updates)
                if state is not None:
                    sync.load_state_dict(state)
                loop(model, sync, optimizer, steps)
                state = copy.deepcopy(sync.state_dict())
                with sync.evaluation_view():
                    weights = copy.deepcopy(model.state_dict())
                sync.close()
            ends.append({key: each.full_tensor() for key, each in weights.items()})
        assert apart(*ends) == 0, (name, schedule, apart(*ends))


def wrong_uses_are_one_line() -> None:
    build = compressors.build("none"), schedulers.build("wfbp")
    group = job.MESH["replicate"].get_group()
    says('pass the ranks that have the same shard of other replicas: process_group=mesh["replicate"].get_group()',
         lambda: wirebench.synchronise(sharded(), *build))  # fmt: skip
    native = sharded(mesh=job.MESH)
    says("over a mesh of 2 dimensions", lambda: wirebench.synchronise(native, *build, process_group=group))
    says("mesh: shard is", lambda: wirebench.synchronise(sharded(), *build, process_group=dist.group.WORLD))
    clipping = {"options": {"momentum": 0.0, "clip": 0.1}}
    says("synchronise: clip of 'dgc' limits the norm", lambda: synchronised("dgc", "single", **clipping))
    scaler = torch.amp.GradScaler("cpu")
    says("takes no GradScaler", lambda: synchronised(scaler=scaler))
    model = sharded()
    optimizer = plain(model.parameters())
    says("updates layers within the forward pass", lambda: synchronised("none", "dear", model, optimizer=optimizer))
    _, sync = synchronised(model=model)
    says("no gradient since", lambda: sync.step(optimizer))
    says("no gradient since", sync.wait)
    loss_of(model, 0).backward()
    says("before the gradients are averaged", optimizer.step)
    says("no parameter of the model", lambda: sync.step(plain(Net().parameters())))
    sync.step(optimizer)
    says("no gradient since", lambda: sync.step(optimizer))
    sync.close()
    model, sync = synchronised("dgc", options={"momentum": 0.9})
    loss_of(model, 0).backward()
    says("applies a momentum of its own", lambda: sync.step(sgd(model.parameters())))
    sync.close()


def a_model_that_was_evaluated_before_is_averaged() -> None:
    """FSDP has left the parameters of its root gathered; and a closed `compress_replicas` is no hindrance."""
    model = sharded()
    replicas = wirebench.compress_replicas(model, compressors.build("none"), job.MESH["replicate"])
    says("close() its compress_replicas first", lambda: synchronised(model=model))
    replicas.close()
    plain_model = DistributedDataParallel(Net())
    for each in (model, plain_model):
        with torch.no_grad():
            each(job.batch(0)[0])
    wirebench.compress_replicas(model, compressors.build("none"), job.MESH["replicate"]).close()
    with torch.no_grad():
        model(job.batch(0)[0])
    _, sync = synchronised(model=model)
    optimizer = plain(model.parameters())
    loop(model, sync, optimizer, range(3))
    train(plain_model, plain, 3)
    assert apart(whole(model), whole(plain_model.module)) < 1e-6
    sync.close()


def what_the_loop_does_to_the_model_later_is_one_line() -> None:
    """It is seen in the model that trains, not in the shards."""
    model, sync = synchronised()
    optimizer = plain(model.parameters())
    loop(model, sync, optimizer, range(2))
    says("is in another synchronise already", lambda: synchronised(model=model))
    loss_of(model, 2).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    says("a gradient was changed after backward()", lambda: sync.step(optimizer))
    sync.close()
    for learns in (False, True):
        frozen = Net()
        frozen.blocks[0].weight.requires_grad = not learns
        model, sync = synchronised(model=sharded(frozen))
        optimizer = plain(model.parameters())
        loop(model, sync, optimizer, range(2))
        frozen.blocks[0].weight.requires_grad = learns
        loss_of(model, 2).backward()
        said = "unfrozen" if learns else "frozen"
        says(f"blocks.0.weight was {said} after", lambda: sync.step(optimizer))  # noqa: B023
        sync.close()
    model, sync = synchronised()
    model.extra = nn.Linear(2, 2)
    says("was added, removed or replaced", lambda: loss_of(model, 0))
    sync.close()
    model, sync = synchronised()
    loop(model, sync, plain(model.parameters()), range(1))
    weights = {name: each.clone() for name, each in model.state_dict().items()}
    model.load_state_dict(weights, assign=True)
    says("was added, removed or replaced", lambda: loss_of(model, 0))
    sync.close()


if __name__ == "__main__":
    run(job.start())
