"""The replayed model: its times, its gradients, and the machinery that it must pass for a model in."""

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.forked import fork
from tests.distributed.launch import last_of_each
from wirebench import models
from wirebench.compose import run as train
from wirebench.compose.build import compose
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.gradient.flat import FlatGradient, backward_order
from wirebench.models import replay as replayed
from wirebench.simulation.trace import Trace, TraceLayer
from wirebench.training.loss import cross_entropy

ROOT = Path(__file__).resolve().parents[2]
IMAGE, CLASSES, BATCH = (1, 4, 4), 10, 8
LAYERS = (
    TraceLayer("start", 0, 0.05, 0.05),
    TraceLayer("stem.conv.weight", 3 * 4 * 9, 0.15, 0.10, (3, 4, 3, 3)),
    TraceLayer("stem.conv.bias", 3, 0.0, 0.2, (3,)),
    TraceLayer("pool", 0, 0.05, 0.05),
    TraceLayer("linear.weight", 500, 0.05, 0.3),
)
"""One second in all: 0.3 forward, 0.7 backward."""


def write(folder: Path, seconds: float, layers: tuple[TraceLayer, ...] = LAYERS) -> str:
    """A trace of `seconds` a step."""
    scaled = tuple(
        TraceLayer(x.name, x.numel, x.forward_seconds * seconds, x.backward_seconds * seconds, x.shape) for x in layers
    )
    path = folder / "given.json"
    Trace("given", "none", "none", BATCH, True, "made up", "2", scaled).save(path)
    return str(path)


@pytest.fixture
def replay(tmp_path):
    """Makes a model whose step takes this many seconds."""
    return lambda seconds=0.0: models.build("replay", CLASSES, IMAGE, trace=write(tmp_path, seconds))


class Clock:
    """Time that passes while somebody sleeps, who is woken as late as by Linux, and a little where somebody looks."""

    def __init__(self) -> None:
        self.now = self.slept = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.now += seconds + (replayed.OVERSLEEP_SECONDS if seconds else 0.0)

    def timed(self, call: Callable[[], object]) -> float:
        began = self.now
        call()
        return self.now - began


def ticking(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the model looks at from now on."""
    made = Clock()
    monkeypatch.setattr(replayed, "time", made)
    return made


clock = pytest.fixture(ticking)


def batch(images: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(images, *IMAGE), torch.zeros(images, dtype=torch.int64)


def gradients(model: torch.nn.Module, seed: int) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(seed)
    images, labels = batch()
    cross_entropy(model(images), labels).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def timed(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def arguments(folder: Path, *overrides: str) -> list[str]:
    """A run of the local engine on a trace in `folder`."""
    short = ["train.max_steps=3", "train.warmup_steps=0", "engine.name=local", "output.tensorboard=false"]
    name = next((word for word in overrides if word.startswith("output.dir=")), f"output.dir={folder}/run")
    data = [f"data.batch_size={BATCH}", "data.test_size=16", "data.train_size=64", "optimizer.lr=0.1"]
    config_file = str(ROOT / "configs/replay/resnet20.toml")
    return last_of_each([config_file, f"model.trace={folder}/given.json", *data, *short, name, *overrides])


def test_every_gradient_comes_at_its_time(replay, clock):
    model, (images, labels) = replay(0.1), batch()
    arrivals: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _parameter, name=name: arrivals.update({name: clock.perf_counter()})
        )
    took = clock.timed(lambda: cross_entropy(model(images), labels).backward())
    found = [arrivals[name] for name in ("linear.weight", "stem.conv.bias", "stem.conv.weight")]
    assert found == pytest.approx([0.06, 0.085, 0.095], abs=1e-4)
    assert took == pytest.approx(0.1, abs=1e-5), "the end of a pass is exact"


@pytest.mark.parametrize("hook", [0.0, 0.05])
def test_what_comes_late_makes_the_next_wait_shorter(replay, clock, hook):
    """30 ms before the backward pass are made up for; of what `linear` waits for in a hook, nothing can be."""
    model, (images, labels) = replay(0.1), batch()
    model.linear.register_forward_pre_hook(lambda _module, _inputs: clock.sleep(hook))

    def step() -> None:
        loss = cross_entropy(model(images), labels)
        clock.sleep(0.03)
        loss.backward()

    assert clock.timed(step) == pytest.approx(0.1 + hook, abs=1e-4)


def test_times_follow_batch_and_dilation_and_evaluation_only_goes_forward(replay, clock):
    model = replay(0.04)
    images, _ = batch(BATCH * 2)
    with torch.no_grad():
        assert clock.timed(lambda: model(images)) == pytest.approx(0.024, abs=1e-5)
        model.dilation = 0.5
        assert clock.timed(lambda: model(images)) == pytest.approx(0.012, abs=1e-5)
        assert clock.timed(lambda: model(images[:0])) < 2e-5


def test_the_processor_is_free_while_it_waits(replay, clock):
    model, (images, labels) = replay(0.2), batch()
    cross_entropy(model(images), labels).backward()
    assert clock.slept > 0.99 * 0.2


def test_gradients_have_the_trace_s_names_shapes_and_order(replay):
    model, (images, labels) = replay(), batch()
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes == {"stem.conv.weight": (3, 4, 3, 3), "stem.conv.bias": (3,), "linear.weight": (500,)}
    order = backward_order(copy.deepcopy(model), lambda probe: cross_entropy(probe(images), labels))
    assert order.names == ["linear.weight", "stem.conv.bias", "stem.conv.weight"]
    assert order.unused == []
    assert list(model.state_dict()) == list(shapes) and not list(model.buffers())


def test_gradients_look_like_gradients(replay):
    found = gradients(replay(), 1)
    values = torch.cat([each.flatten() for each in found.values()])
    assert values.std().item() == pytest.approx(1e-4, rel=0.15)
    assert abs(values.mean().item()) < 2e-5
    assert len(values.unique()) == len(values), "no two layers send the same numbers"


def test_the_seed_decides_the_gradients_so_ranks_and_steps_differ(replay):
    one, two, again = (gradients(replay(), seed) for seed in (1, 2, 1))
    for name, gradient in one.items():
        assert torch.equal(gradient, again[name])
        assert not torch.equal(gradient, two[name])


def test_gradients_are_nobody_else_s(replay):
    """Whoever works on a gradient in place, as Horovod and DDP do, must not reach the noise it was made of."""
    model = replay()
    first = gradients(model, 1)
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.fill_(7)
    second = gradients(model, 1)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_micro_batches_add_up(replay):
    model, (images, labels) = replay(), batch()
    flat = FlatGradient(model, [name for name, _ in model.named_parameters()][::-1])
    single = gradients(model, 1)["linear.weight"]
    for part in range(2):
        torch.manual_seed(1)
        cross_entropy(model(images.chunk(2)[part]), labels.chunk(2)[part]).backward()
    assert torch.allclose(flat.parameters[0].grad, 3 * single)  # type: ignore[arg-type]


def test_channels_last_weights_get_channels_last_gradients(replay):
    model = replay()
    plain = gradients(model, 1)
    model.to(memory_format=torch.channels_last)
    gradients(model, 1)
    weight = model.get_parameter("stem.conv.weight")
    assert weight.grad is not None and weight.grad.stride() == weight.stride() != plain["stem.conv.weight"].stride()
    assert torch.equal(weight.grad.flatten().sort().values, plain["stem.conv.weight"].flatten().sort().values)


def test_the_backward_probe_waits_for_two_images_only(replay, clock):
    model, (images, labels) = replay(0.4), batch(2)
    probe = copy.deepcopy(model)
    assert clock.timed(lambda: cross_entropy(probe(images), labels).backward()) == pytest.approx(0.1, abs=1e-5)


def test_distributed_data_parallel_takes_it(replay):
    model, (images, labels) = replay(), batch()
    alone = gradients(model, 5)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(model)
        for _ in range(3):
            model.zero_grad()
            torch.manual_seed(5)
            cross_entropy(wrapped(images), labels).backward()
    finally:
        dist.destroy_process_group()
    assert all(torch.equal(alone[name], p.grad) for name, p in model.named_parameters() if p.grad is not None)


@pytest.mark.parametrize(
    "override",
    [
        "compressor.name=powersgd",
        "scheduler.name=dear",
        "scheduler.name=outer",
        "train.accumulation=2",
        "train.precision=bf16",
        "train.channels_last=true",
        "optimizer.weight_decay=0.1",
    ],
)
def test_it_runs_as_any_model_does(tmp_path, override):
    write(tmp_path, 0.001)
    assert train.main(arguments(tmp_path, "engine.workers=2", override)) == 0
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert (record["status"], record["steps_done"], record["parameters"]) == ("finished", 3, 611)
    assert record["final"]["loss"] == pytest.approx(2.302585, rel=1e-5)


def test_a_resumed_run_ends_as_the_unbroken_one(tmp_path):
    write(tmp_path, 0.001)
    every = ["engine.workers=2", "compressor.name=topk", "optimizer.momentum=0.9", "train.checkpoint_every_steps=2"]
    ends = []
    for name, stops in (("whole", [4]), ("broken", [2, 4])):
        for steps in stops:
            more = [f"output.dir={tmp_path}/{name}", f"train.max_steps={steps}", "train.resume=auto"]
            assert train.main(arguments(tmp_path, *every, *more)) == 0
        ends.append(load_file(tmp_path / name / "checkpoints/step-00000004/model.safetensors"))
    assert ends[0].keys() == ends[1].keys() and len(ends[0]) == 6
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())
    rank = load_file(tmp_path / "whole/checkpoints/step-00000004/rank-0001.safetensors")
    assert not [name for name in rank if name.startswith("buffer.")]


def test_a_step_waits_for_the_straggler_which_is_the_last_rank(tmp_path):
    """A wait has no upper bound on a busy machine, but it cannot be shorter than what the last rank replays."""
    write(tmp_path, 0.04)
    more = ["engine.name=torch", "network.straggler=6", "train.max_steps=4"]
    done = fork("torch", 2, arguments(tmp_path, *more), tmp_path)
    assert done.code == 0, done.said
    record = json.loads((tmp_path / "run/record.json").read_text())
    first, last = (rank["compute_seconds"] for rank in record["ranks"])
    assert first < 0.2 < 0.23 < last and record["step_seconds"]["median"] > 0.23
    with pytest.raises(UserError, match=r"network\.straggler: virtual workers take turns in one process"):
        compose(loader.load(arguments(tmp_path)[0], arguments(tmp_path, "network.straggler=6")[1:]))


def test_dilation_reaches_the_model(tmp_path, monkeypatch):
    """The last passes that make gradients are the steps'."""
    factors: list[float] = []
    draw = replayed._Pass.draw

    def noting(passing: replayed._Pass, *arguments: Any) -> None:
        factors.append(passing._factor)
        draw(passing, *arguments)

    monkeypatch.setattr(replayed._Pass, "draw", noting)
    write(tmp_path, 0.001)
    assert train.main(arguments(tmp_path, "engine.workers=1", "engine.threads=1", "network.dilation=3")) == 0
    assert factors[-3:] == [3.0] * 3


@pytest.mark.slow
@pytest.mark.clock
def test_the_systems_clock_is_followed(replay):
    """Not the one of the tests above. Lateness is a busy machine's, so that the best of some steps counts."""
    model, (images, labels) = replay(0.1), batch()
    seconds = [timed(lambda: cross_entropy(model(images), labels).backward()) for _ in range(9)]
    assert 0.1 <= min(seconds) < 0.104
    before = time.process_time()
    cross_entropy(model(images), labels).backward()
    assert time.process_time() - before < 0.05
