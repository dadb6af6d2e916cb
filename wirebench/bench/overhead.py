"""What the harness costs: steps of ours and of the engine's own data parallelism, interleaved in one run.

  wirebench bench overhead --engine torch   --model resnet20     against DistributedDataParallel
  wirebench bench overhead --engine horovod --model vgg16        against hvd.DistributedOptimizer
  wirebench bench overhead --engine torch   --model resnet20 --ours synchronise

Both sides run the same model, batches, optimizer and machine. Ours is train.py's own step (compressor none, scheduler
fused, collective native, record and guard included) or, with --ours synchronise, the peer's loop with
`wirebench.synchronise` in place of the engine's synchroniser. The peer's is a plain loop. Turns are short and their
order alternates; the ratio of step times is taken turn by turn, so what slows the machine down slows both sides. Both
use the fused SGD, and ResNet-50 runs channels_last. Horovod's tensor fusion is on for its own optimizer; our step has
one message in flight, so fusion does not apply to it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import wirebench
from wirebench import compressors, models, schedulers
from wirebench.cluster.signals import ends_with_parent
from wirebench.comm.engine import Engine, start
from wirebench.comm.launch import launched, needs_gloo
from wirebench.compose.build import compose
from wirebench.config import loader
from wirebench.config.loader import EngineConfig
from wirebench.exchange.builtin import builtin_sync
from wirebench.record import overhead_results
from wirebench.telemetry.environment import capture
from wirebench.telemetry.machines import LoadMeter, hosts
from wirebench.telemetry.timers import HostTimer, timer_for
from wirebench.training.loop import train_step
from wirebench.training.loss import cross_entropy
from wirebench.training.optimizers.build import build_optimizer
from wirebench.training.progress import silent
from wirebench.training.trainer import Trainer
from wirebench.utils.cli import check_outputs, parser_of
from wirebench.utils.files import write_atomically

MODELS: dict[str, dict[str, Any]] = {
    "resnet20": {"model.name": "resnet_cifar", "model.depth": 20, "data.batch_size": 32},
    "vgg16": {"model.name": "vgg_cifar", "model.depth": 16, "data.batch_size": 16},
    "resnet50": {
        "model.name": "resnet50", "data.batch_size": 256, "data.image_size": 224, "data.num_classes": 1000,
        "train.channels_last": True,
    },
}  # fmt: skip
PEERS = {"torch": "DistributedDataParallel", "horovod": "hvd.DistributedOptimizer"}


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line says."""
    return in_turns("overhead", parse(arguments), arguments, measure)


def in_turns(
    tool: str,
    options: argparse.Namespace,
    arguments: Sequence[str],
    measure: Callable[[argparse.Namespace, Engine, Path], None],
) -> int:
    """Launch the processes of `wirebench bench TOOL`, or be one of them, whose run has a folder for a while."""
    if launched().alone:
        check_outputs(json=options.json)
        return launch(tool, options, arguments)
    engine = start(EngineConfig(name=options.engine, device=options.device), fusion_mb=None)
    with tempfile.TemporaryDirectory(prefix=f"wirebench-{tool}-") as folder:
        measure(options, engine, Path(folder) / "run")
    engine.close()
    return 0


def launch(tool: str, options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run `wirebench bench TOOL` under the launcher of the engine, with as many processes, as `options` say."""
    if options.engine == "horovod":
        needs_gloo("--engine horovod")
    bin_folder = Path(sys.executable).parent
    # Ranks would come by the host's own name, which leads nowhere on some machines.
    where = ["--standalone", "--local-addr", "127.0.0.1"]
    command = {
        "torch": [
            sys.executable, "-m", "torch.distributed.run", *where, "--nproc-per-node", str(options.processes),
        ],
        "horovod": [
            str(bin_folder / "horovodrun"), "-np", str(options.processes), "-H", f"127.0.0.1:{options.processes}",
            "--gloo", "--network-interface", "lo", "--disable-cache", sys.executable,
        ],
    }[options.engine]  # fmt: skip
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}
    words = [*command, "-m", "wirebench", "bench", tool, *arguments]
    return subprocess.run(words, env=environment, check=False, preexec_fn=ends_with_parent()).returncode


def measure(options: argparse.Namespace, engine: Engine, folder: Path) -> None:
    """Let both sides take turns; rank 0 prints the result."""
    run = compose(settings(options, folder, engine.size), engine)
    sides = {"ours": OURS[options.ours](run), "peer": peer(run)}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    timer = timer_for(engine.device)
    for side in sides.values():
        turn(side, options.warmup, timer)
    load = LoadMeter()
    for number in range(options.turns):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for name in order:
            seconds[name].append(turn(sides[name], options.steps, timer))
    where = measured_on(engine, load)
    if not engine.is_first:
        return
    result = overhead_results.summary(seconds)
    print(f"{options.model}, {engine.size} processes, {engine.backend}, batch {run.config.data.batch_size} each")
    for name, label in (("ours", LABELS[options.ours]), ("peer", PEERS[options.engine])):
        print(f"  {label:28} {result[name]['median'] * 1e3:9.2f} ms a step")
    ratio = result["ratio"]
    spread = f"[{ratio['p10']:.4f} - {ratio['p90']:.4f}]"
    print(f"  ratio ours / peer, {options.turns} turns: median {ratio['median']:.4f}  {spread}")
    if options.json:
        record = {"kind": overhead_results.KIND, **result, "turns": seconds, **where}
        write_atomically(options.json, json.dumps(record, indent=1) + "\n")


def measured_on(engine: Engine, load: LoadMeter) -> dict[str, Any]:
    """What measured, and how busy it was meanwhile; every rank calls it."""
    loads = load.loads(engine)
    environment = {**capture(engine.device), "hosts": hosts(engine)}
    return {"environment": environment, "load": loads, "backend": engine.backend, "processes": engine.size}


def settings(options: argparse.Namespace, folder: Path, size: int) -> loader.Config:
    """The composition under test for `size` processes: one epoch has all steps of a side."""
    return composition(options, folder, size, steps_of_a_side(options), {})


def composition(
    options: argparse.Namespace, folder: Path, size: int, steps: int, more: Mapping[str, object]
) -> loader.Config:
    """What `size` processes train on synthetic images, in one epoch of `steps` steps, with `more` settings."""
    table = {
        "engine.name": options.engine, "engine.device": options.device, "data.name": "synthetic",
        "data.image_size": 32, "data.num_classes": 10, "scheduler.name": "fused", "output.dir": str(folder),
        "train.precision": options.precision, **MODELS[options.model], **more,
    }  # fmt: skip
    batch = options.batch or MODELS[options.model]["data.batch_size"]
    table |= {"data.batch_size": batch, "data.train_size": batch * size * steps}
    nested: dict[str, dict[str, object]] = {}
    for key, value in table.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
    return loader.from_dict(nested, f"bench-{options.model}")


def steps_of_a_side(options: argparse.Namespace) -> int:
    """Steps that each side does, the warm-up included."""
    return int(options.warmup + options.turns * options.steps)


def ours(run: Trainer) -> Callable[[], None]:
    """One step of train.py."""
    batches = [run.workers[0].shard.train(0)]
    run.step_log.progress = silent()  # its lines would stand between the results
    run.start_clock()

    def step() -> None:
        train_step(run, 0, batches)

    return step


def dropped_in(run: Trainer) -> Callable[[], None]:
    """One step of a plain loop with `synchronise` in it."""
    model, optimizer = fresh(run)
    sync = wirebench.synchronise(model, compressors.build("none"), schedulers.build("fused"))
    return _plain_step(run, model, optimizer, lambda: sync.step(optimizer))


def _plain_step(
    run: Trainer, model: nn.Module, optimizer: torch.optim.Optimizer, update: Callable[[], None]
) -> Callable[[], None]:
    """One step of a plain loop, which ends with `update`."""
    batches, layout, device = run.workers[0].shard.train(0), memory_format(run), run.engine.device.type
    narrow = run.config.train.precision == "bf16"

    def step() -> None:
        images, labels = next(batches)
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=narrow):
            output = model(images.contiguous(memory_format=layout))
        cross_entropy(output, labels).backward()
        update()

    return step


OURS = {"train": ours, "synchronise": dropped_in}
LABELS = {"train": "train.py", "synchronise": "wirebench.synchronise"}


def fresh(run: Trainer) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model with the weights of the run's, nothing of ours in it, and its optimizer."""
    settings, worker = run.config, run.workers[0]
    dataset = worker.shard.dataset
    model = models.build(settings.model.name, dataset.num_classes, dataset.image_shape, **settings.model.options)
    model.load_state_dict({name: tensor.clone() for name, tensor in worker.model.state_dict().items()})
    model = model.to(run.engine.device).to(memory_format=memory_format(run))
    return model, build_optimizer(model, settings.optimizer)


def memory_format(run: Trainer) -> torch.memory_format:
    """How the run's images lie in memory."""
    return torch.channels_last if run.config.train.channels_last else torch.contiguous_format


def peer(run: Trainer) -> Callable[[], None]:
    """One step of a plain loop with the engine's own synchroniser."""
    model, optimizer = fresh(run)
    synchroniser = builtin_sync(run.engine, model, optimizer, bucket_cap_mb=0.0, accumulation=1, unused=())

    def update() -> None:
        synchroniser.finish()
        with synchroniser.stepping():
            synchroniser.optimizer.step()

    return _plain_step(run, synchroniser.module, synchroniser.optimizer, update)


def turn(step: Callable[[], None], steps: int, timer: HostTimer) -> float:
    """Mean seconds per step over `steps` steps, from a device that has nothing to do to one that has done them."""
    timer.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    timer.synchronize()
    return (time.perf_counter() - begin) / steps


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = parser_of("bench overhead", __doc__)
    parser.set_defaults(model="resnet20", turns=20)
    parser.add_argument("--ours", choices=list(OURS), default="train", help="whose step is compared (%(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="steps per turn")
    return parsed(parser, arguments, "steps")


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str], span: str) -> argparse.Namespace:
    """The command line of two sides that take turns. span: which of the parser's own options has a turn's steps."""
    parser.add_argument("--engine", choices=list(PEERS), default="torch")
    parser.add_argument("--model", choices=list(MODELS), help="(%(default)s)")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--batch", type=int, default=0, help="images per process (default: the model's)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--warmup", type=int, default=5, help="steps before measuring (%(default)s)")
    parser.add_argument("--turns", type=int, help="turns of each side (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result and its environment to this file")
    options = parser.parse_args(arguments)
    if min(options.processes, options.warmup, getattr(options, span)) < 1 or options.batch < 0:
        parser.error(f"--processes, --warmup and --{span} need at least 1, --batch at least 0")
    if options.turns < 2:
        parser.error("--turns needs at least 2: their spread is reported")
    return options
