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
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wirebench.bench.overhead import composition, in_turns, measured_on, parsed
from wirebench.comm.engine import Engine
from wirebench.compose.build import compose
from wirebench.config import loader
from wirebench.data.base import Batch
from wirebench.record import overhead_results
from wirebench.telemetry.machines import LoadMeter
from wirebench.training.loop import train_step
from wirebench.training.progress import silent
from wirebench.training.trainer import Trainer
from wirebench.utils.cli import parser_of
from wirebench.utils.files import write_atomically

SIDES = ("saving", "not saving")


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line says."""
    return in_turns("checkpoint", parse(arguments), arguments, measure)


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
    where = measured_on(engine, load)
    if not engine.is_first:
        return
    size = sum(file.stat().st_size for file in (folder / "checkpoints" / str(run.checkpoints.newest)).iterdir())
    counts = {"every": options.every, "stalls": stalls, "checkpoint_bytes": size}
    result = overhead_results.summary(seconds)
    shares = overhead_results.stalls(stalls, options.every, result[SIDES[1]]["median"])
    _tell(options, engine, result, counts | shares)
    if options.json:
        what = {**counts, **shares, **where, "model": options.model, "compressor": options.compressor}
        record = {"kind": overhead_results.CHECKPOINT, **result, "turns": seconds, **what}
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
    parser.set_defaults(model="vgg16", turns=5)
    parser.add_argument("--compressor", default="none", help="whose state is saved with the model's (%(default)s)")
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints (%(default)s)")
    return parsed(parser, arguments, "every")
