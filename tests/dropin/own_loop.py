"""What `test_synchronise.py` runs on every rank of either engine: a loop of a user's own, in several ways.

Argument: horovod or torch.
"""

import copy
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import wirebench
from tests.dropin.cases import run
from wirebench import compressors, schedulers
from wirebench.dropin import at_exit
from wirebench.dropin.synchroniser import Sync

STEPS = 24
ENGINE = ""
RATE = 0.05
Rates = Callable[[int], float]
SPARSE: Mapping[str, Any] = {"density": 0.05}
NOTHING: Mapping[str, Any] = {}
RANK, WORLD = 0, 2
hvd: Any = None


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 4))


def batch(step: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(50_000 * RANK + step)
    inputs = torch.randn(16, 12, generator=rng)
    return inputs, inputs[:, :4].argmax(1)


def loss_of(model: nn.Module, step: int) -> Tensor:
    inputs, labels = batch(step)
    return nn.functional.cross_entropy(model(inputs), labels)


def train(
    compressor: str,
    scheduler: str,
    steps: range = range(STEPS),
    rates: Rates = lambda step: RATE,
    model: nn.Module | None = None,
    state: dict[str, Any] | None = None,
    options: Mapping[str, Any] = NOTHING,
) -> tuple[nn.Module, Sync]:
    """Train by these; the sync is left open."""
    model = model or network()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    updates = scheduler in ("dear", "easgd", "outer")
    often: dict[str, Any] = {"every": 3, "delay": 1} if scheduler == "outer" else {}
    sync = wirebench.synchronise(
        model, compressors.build(compressor, **options), schedulers.build(scheduler, **often),
        optimizer=optimizer if updates else None, warmup_steps=2,
    )  # fmt: skip
    if state:
        sync.load_state_dict(state)
    for step in steps:
        optimizer.param_groups[0]["lr"] = rates(step)
        optimizer.zero_grad()
        loss_of(model, step).backward()
        sync.step(optimizer)
    return model, sync


def finished(model: nn.Module, sync: Sync) -> Tensor:
    """All parameters, after the last update."""
    with sync.evaluation_view():
        values = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    sync.close()
    return values


def alike(values: Tensor) -> bool:
    """Whether all ranks have these bits."""
    if ENGINE == "horovod":
        return all(torch.equal(each, values) for each in hvd.allgather(values).chunk(hvd.size()))
    everywhere = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, values)
    return all(torch.equal(each, values) for each in everywhere)


def every_scheduler_trains_alike_on_all_ranks() -> None:
    start = nn.utils.parameters_to_vector(network().parameters()).detach()
    dense = None
    for name in schedulers.available():
        if name == "builtin":
            continue
        values = finished(*train("none", name))
        assert alike(values), name
        assert float((values - start).norm()) > 0.1, name
        if name not in ("easgd", "outer"):  # each worker's steps are its own
            dense = values if dense is None else dense
            assert torch.allclose(values, dense, atol=1e-6), name


def a_delayed_update_has_the_rate_of_its_step() -> None:
    """`dear` updates within the next forward pass, when the loop has moved the learning rate on."""
    falling: Rates = lambda step: RATE * 0.8**step  # noqa: E731
    fused, dear = (finished(*train("none", name, rates=falling)) for name in ("fused", "dear"))
    assert torch.allclose(fused, dear, atol=1e-7)


def residuals_survive_a_restart() -> None:
    cases: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
        ("topk", "wfbp", SPARSE),
        ("gs_sgd", "wfbp", {"momentum": 0.0}),
        ("dgc", "wfbp", SPARSE),
        ("none", "easgd", NOTHING),
        ("topk", "outer", SPARSE),  # a fragment is under way
    )
    for compressor, scheduler, options in cases:
        whole = finished(*train(compressor, scheduler, options=options))
        half = STEPS // 2
        model, sync = train(compressor, scheduler, range(half), options=options)
        state = copy.deepcopy(sync.state_dict())
        assert state["compressor"], "there is a residual"
        with sync.evaluation_view():
            saved = copy.deepcopy(model.state_dict())
        sync.close()
        model = network()
        model.load_state_dict(saved)
        model, sync = train(compressor, scheduler, range(half, STEPS), model=model, state=state, options=options)
        assert sync.steps == STEPS
        assert torch.equal(finished(model, sync), whole), (compressor, scheduler)


def local_steps_clip_each_ranks_own_gradient() -> None:
    """Local SGD by hand: clip, step, and average the weights after every third step."""
    model, plain = network(), network()
    mine, theirs = (torch.optim.SGD(each.parameters(), RATE) for each in (model, plain))
    every = schedulers.build("outer", every=3, rate=1.0, momentum=0.0, nesterov=False)
    sync = wirebench.synchronise(model, compressors.build("none"), every, optimizer=mine)
    for step in range(6):
        for each, optimizer in ((model, mine), (plain, theirs)):
            optimizer.zero_grad()
            loss_of(each, step).backward()
            assert nn.utils.clip_grad_norm_(each.parameters(), 0.1) > 0.1
        sync.step(mine)
        theirs.step()
        if step % 3 == 2:
            nn.utils.vector_to_parameters(mean(nn.utils.parameters_to_vector(plain.parameters())), plain.parameters())
    expected = nn.utils.parameters_to_vector(plain.parameters())
    assert torch.allclose(finished(model, sync), expected, atol=1e-6)


def mean(values: Tensor) -> Tensor:
    """Over all ranks."""
    if ENGINE == "horovod":
        return torch.stack(hvd.allgather(values.detach()).chunk(hvd.size())).mean(0)
    total = values.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def an_overflow_on_one_rank_skips_the_step_on_all_and_spoils_no_residual() -> None:
    results = []
    for scaled in (False, True):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5) if scaled else None
        compressor = compressors.build("topk", density=0.05)
        sync = wirebench.synchronise(model, compressor, schedulers.build("wfbp"), scaler=scaler)
        for step in range(STEPS):
            if not scaled and step == 6:
                continue
            optimizer.zero_grad()
            loss = loss_of(model, step)
            if scaler is None:
                loss.backward()
                sync.step(optimizer)
                continue
            (scaler.scale(loss) * (torch.inf if step == 6 and RANK == 1 else 1.0)).backward()
            sync.step(optimizer, scaler)
            scaler.update()
        results.append(finished(model, sync))
        assert alike(results[-1])
        assert all(bool(t.isfinite().all()) for t in compressor.state_dict().values())
    assert torch.allclose(results[0], results[1], atol=1e-6), float((results[0] - results[1]).abs().max())


def evaluation_between_steps_is_no_step() -> None:
    sync = wirebench.synchronise(
        model := network(),
        compressors.build("none"),
        schedulers.build("easgd"),
        optimizer=torch.optim.SGD(model.parameters(), RATE),
    )
    start = nn.utils.parameters_to_vector(model.parameters())
    with sync.evaluation_view():  # before the first step, too
        assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), start)
    sync.close()
    began = time.perf_counter()
    model, sync = train("topk", "wfbp", options=SPARSE)
    model.eval()
    with torch.no_grad():
        loss_of(model, 0)
    model.train()
    report = sync.report()
    assert report["steps"] == STEPS - 2, report["steps"]
    elapsed = time.perf_counter() - began
    phases = report["phases"]
    assert all(value >= 0 for value in phases.values()) and phases["forward"] > 0 and phases["update"] > 0
    exposed = sum(phases[name] for name in ("data", "forward", "backward", "exchange_exposed", "update"))
    assert report["step_seconds"]["median"] > 0 and exposed * report["steps"] <= elapsed
    assert 0 < report["bytes_per_step"]["wire"] < report["bytes_per_step"]["dense"]
    assert report["messages"] >= 1 and report["requests"]
    sync.close()


def values_that_come_from_elsewhere_stay() -> None:
    """As `vector_to_parameters` puts them: a compressor that reads weights sees these, and training goes on."""
    other, after = {name: 9 * value for name, value in network().state_dict().items()}, []
    for moved in (False, True):
        model, sync = train("iwp", "wfbp", range(2))
        if moved:
            nn.utils.vector_to_parameters(torch.cat([each.flatten() for each in other.values()]), model.parameters())
        else:
            model.load_state_dict(other)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        loss_of(model, 2).backward()
        sync.step(optimizer)
        after.append(finished(model, sync))
    assert torch.equal(*after)


def gloo_threads() -> int:
    """How many threads of process groups this process has."""
    found = 0
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found += (thread / "comm").read_text().startswith("pt_gloo")
    return found


def what_is_left_open_leaves_no_thread_of_ours_at_the_end() -> None:
    """One that comes back from C++ while the interpreter ends would abort the process (SIGABRT)."""
    at_exit._close_all()
    before = gloo_threads()
    for scheduler in ("wfbp", "dear"):
        model, sync = train("none", scheduler, range(2))
        assert gloo_threads() > before or ENGINE == "horovod"
        at_exit._close_all()
        deadline = time.monotonic() + 60
        while gloo_threads() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert gloo_threads() == before, scheduler
        assert alike(nn.utils.parameters_to_vector(model.parameters()).detach()), "dear's last update is made"
        sync.close()


def start() -> int:
    """Join the job; returns this rank. A fork server may have imported this file with other arguments."""
    global ENGINE, RANK, hvd
    ENGINE = sys.argv[-1]
    if ENGINE == "torch":
        dist.init_process_group("gloo")
        RANK = dist.get_rank()
    else:
        hvd = import_module("horovod.torch")
        hvd.init()
        RANK = hvd.rank()
    return RANK


if __name__ == "__main__":
    run(start())
