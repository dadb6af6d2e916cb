"""What checkpoints cost: steps of a run that saves one, interleaved with steps of the same run without.

  wirebench bench checkpoint                                     VGG-16, 4 processes, one checkpoint every 50 steps
  wirebench bench checkpoint --compressor topk --every 20        the residual of every rank is saved, too

A turn has as many steps as lie between two checkpoints. In every second turn the run first saves a checkpoint, as
train.py does, and trains while it is written. At the end of the turn it waits for an unfinished write, as the next
checkpoint would. The stall is the time that rank 0 waited for the checkpoint (the record's `stall_seconds`). The ratio
of step times, taken turn by turn, also shows how much the write slows the steps down. Checkpoints go to the folder
for temporary files, which TMPDIR names.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wirebench.bench.overhead import MODELS, PEERS, composition, launch
from wirebench.comm.engine import Engine, start
from wirebench.comm.launch import launched
from wirebench.compose.build import compose
from wirebench.config import loader
from wirebench.config.loader import EngineConfig
from wirebench.data.base import Batch
from wirebench.record import overhead_results
from wirebench.telemetry.environment import capture
from wirebench.telemetry.machines import LoadMeter, hosts
from wirebench.training.loop import train_step
from wirebench.training.progress import silent
from wirebench.training.trainer import Trainer
from wirebench.utils.cli import check_outputs, parser_of
from wirebench.utils.files import write_atomically

SIDES = ("saving", "not saving")


def main(arguments: Sequence[str]) -> int:
    """Launch the processes, or be one of them."""
    options = parse(arguments)
    if launched().alone:
        check_outputs(json=options.json)
        return launch("checkpoint", options, arguments)
    engine = start(EngineConfig(name=options.engine, device=options.device), fusion_mb=None)
    with tempfile.TemporaryDirectory(prefix="wirebench-checkpoint-") as folder:
        measure(options, engine, Path(folder) / "run")
    engine.close()
    return 0


def measure(options: argparse.Namespace, engine: Engine, folder: Path) -> None:
    """Let turns with and without a checkpoint alternate; rank 0 prints the result."""
    run = compose(settings(options, folder, engine.size), engine)
    run.step_log.progress = silent()  # its lines would stand between the results
    batches = [run.workers[0].shard.train(0)]
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    stalls: list[float] = []
    run.start_clock()
    turn(run, batches, options.warmup, saves=True)
    load = LoadMeter()
    for number in range(options.turns):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            before = run.checkpoints.summary()["stall_seconds"]
            seconds[side].append(turn(run, batches, options.every, saves=side == SIDES[0]))
            if side == SIDES[0]:
                stalls.append(run.checkpoints.summary()["stall_seconds"] - before)
    machines = {"load": load.loads(engine), "hosts": hosts(engine)}
    if not engine.is_first:
        return
    size = sum(file.stat().st_size for file in (folder / "checkpoints" / str(run.checkpoints.newest)).iterdir())
    counts = {"every": options.every, "stalls": stalls, "checkpoint_bytes": size, "processes": engine.size}
    result = overhead_results.summary(seconds)
    shares = overhead_results.stalls(stalls, options.every, result[SIDES[1]]["median"])
    _tell(options, engine, result, counts | shares)
    if options.json:
        about = {"environment": {**capture(engine.device), "hosts": machines["hosts"]}, "load": machines["load"]}
        what = {"backend": engine.backend, "model": options.model, "compressor": options.compressor}
        record = {"kind": overhead_results.CHECKPOINT, **result, "turns": seconds, **counts, **shares, **about, **what}
        write_atomically(options.json, json.dumps(record, indent=1) + "\n")


def _tell(options: argparse.Namespace, engine: Engine, result: Mapping[str, Any], counts: Mapping[str, Any]) -> None:
    """The result, for people."""
    ratio, stall = result["ratio"], statistics.fmean(counts["stalls"])
    size, share = counts["checkpoint_bytes"] / 1e6, counts["stall_share"]
    print(f"{options.model}, {options.compressor}, {engine.size} processes, {engine.backend}: {size:.0f} MB")
    print(f"  step, no checkpoint {result[SIDES[1]]['median'] * 1e3:9.2f} ms")
    print(f"  stall a checkpoint  {stall * 1e3:9.2f} ms, {share:.2%} of {options.every} steps")
    print(f"  ratio of steps with / without, {options.turns} turns: median {ratio['median']:.4f}", end="")
    print(f"  [{ratio['p10']:.4f} - {ratio['p90']:.4f}]")


def turn(run: Trainer, batches: list[Iterator[Batch]], steps: int, *, saves: bool) -> float:
    """Mean seconds per step over `steps` steps, which a checkpoint precedes where the turn `saves`."""
    begin = time.perf_counter()
    if saves:
        run.pause_clock()
        run.save()
        run.start_clock()
    for _ in range(steps):
        train_step(run, 0, batches)
    with run.checkpoints.standing_still():
        run.checkpoints.wait()
    return (time.perf_counter() - begin) / steps


def settings(options: argparse.Namespace, folder: Path, size: int) -> loader.Config:
    """The run for `size` processes: one epoch has the steps of all turns, the warm-up included."""
    steps = options.warmup + 2 * options.turns * options.every
    return composition(options, folder, size, steps, {"compressor.name": options.compressor})


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = parser_of("bench checkpoint", __doc__)
    parser.add_argument("--engine", choices=list(PEERS), default="torch")
    parser.add_argument("--model", choices=list(MODELS), default="vgg16")
    parser.add_argument("--compressor", default="none", help="whose state is saved with the model's (%(default)s)")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--batch", type=int, default=0, help="images per process (default: the model's)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints (%(default)s)")
    parser.add_argument("--warmup", type=int, default=5, help="steps before measuring")
    parser.add_argument("--turns", type=int, default=5, help="turns with and as many without a checkpoint")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result and its environment to this file")
    options = parser.parse_args(arguments)
    if min(options.processes, options.warmup, options.every) < 1 or options.batch < 0:
        parser.error("--processes, --warmup and --every need at least 1, --batch at least 0")
    if options.turns < 2:
        parser.error("--turns needs at least 2: their spread is reported")
    return options
