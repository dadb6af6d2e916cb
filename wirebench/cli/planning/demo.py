"""See in two minutes what compression costs and brings: four methods on a small CNN, at three link rates.

wirebench demo        no root, network or download

A CNN (configs/demo.toml) learns the digits that ship inside scikit-learn, on 4 virtual workers, with three seeds a
method. Bytes and accuracy are measured. The speed-ups are simulated: from the CNN's time per layer on this machine, and
from a nominal Ethernet. The figure and the records lie in --out.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from wirebench.cluster.signals import ends_with_parent
from wirebench.config import loader
from wirebench.costmodel.played_exchange import one_thread
from wirebench.errors import UserError
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.files import save
from wirebench.figures.style import Figure, around, finished
from wirebench.planner import ranges
from wirebench.planner.candidate import Speedup, speedup
from wirebench.planner.networks import WIDTH
from wirebench.planner.probe import probe
from wirebench.planner.rank import Adviser
from wirebench.record import schema
from wirebench.simulation.compress_rates import Rates
from wirebench.topology import presets
from wirebench.topology.tree import Topology
from wirebench.traces import inputs
from wirebench.utils import extras, this_machine
from wirebench.utils.cli import check_outputs, parser_of
from wirebench.utils.console import columns, console, say, with_room
from wirebench.utils.own import ours
from wirebench.utils.package import CONFIGS

CONFIG = CONFIGS / "demo.toml"
ALONE = ("engine.name=local", "output.tensorboard=false")
DENSE, DENSITY = "dense", 0.05
METHODS: dict[str, tuple[str, ...]] = {
    DENSE: (),
    "bf16": ("compressor.name=bf16",),
    "quantised_sum": ("compressor.name=quantised_sum",),
    "topk": ("compressor.name=topk", f"compressor.density={DENSITY}"),
}
"""Settings for train.py, by the method's name in the table."""
GBIT = (0.1, 1.0, 10.0)
WORKERS, SEEDS = 4, 3
NOTE = f"Speed-ups over dense training of a CNN on {WORKERS} workers, each a core of this machine, on simulated links"
PROBE_SECONDS = 2.0
COLOURS = (colours.INK, colours.BLUE, colours.GREEN, colours.VERMILLION, colours.PINK)


SpeedUps = dict[str, list[Speedup]]
"""Steps per second over dense training's on the same link, of a method, one for each rate of GBIT."""


def main(arguments: Sequence[str]) -> int:
    """Train, compare, print the table, draw the figure."""
    options = _parse(arguments)
    path = options.out / "demo.png"
    extras.check(extras.FIGURES)
    check_outputs(out=path)
    records = _trained(options.out)
    speed_ups = _simulated()
    rows = table(records, speed_ups)
    with_room(shown := console(WIDTH), rows).print(rows)
    save(draw(speed_ups, GBIT, f"{NOTE}."), path)
    ranges_of = f"Ranges of speed-ups: how far past predictions were off; of top-1: {SEEDS} seeds."
    say(shown, ["", f"{NOTE}. {ranges_of}", f"figure: {path}   records: wirebench show {options.out}/*/"])
    return 0


def _trained(out: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of every method's seeds, as many trained at a time as there are cores: their times are not used."""
    runs = [(name, seed) for seed in range(SEEDS) for name in METHODS]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    several = this_machine.cores()
    for first in range(0, len(runs), several):
        group = runs[first : first + several]
        begun = [_begin(name, seed, out / f"{name}-{seed}") for name, seed in group]
        for (name, seed), process in zip(group, begun, strict=True):
            said = process.communicate()[0]
            if process.returncode:
                raise UserError(f"{name}, seed {seed}: exit code {process.returncode}: {said.strip()[-500:]}")
            found[name].append(schema.read(out / f"{name}-{seed}"))
        _tell(f"trained {first + len(group)} of {len(runs)} runs")
    return found


def _begin(name: str, seed: int, folder: Path) -> "subprocess.Popen[str]":
    """Start a training on virtual workers."""
    words = [*METHODS[name], f"train.seed={seed}", f"output.dir={folder}", f"engine.workers={WORKERS}"]
    return subprocess.Popen(
        ours(["wirebench", "train", str(CONFIG), *ALONE, *words]),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=ends_with_parent(),
    )


def _simulated() -> SpeedUps:
    """Each method with its fastest schedule and collective, from the CNN's times per layer on this machine."""
    _tell(f"timing the CNN's layers for {PROBE_SECONDS:g} s")
    config = loader.load(CONFIG, [])
    given = inputs.chosen(config.data.name, config.data.batch_size, None, None, {})
    with one_thread():  # each worker has a core, and threads that wait for a busy one would be timed
        model = probe(config.model.name, {}, given, PROBE_SECONDS)
    rates, memory = Rates.shipped(on_gpu=False), this_machine.copy_bytes_per_second()
    adviser = Adviser(model, _cluster, rates, memory, ranges.load(), DENSITY)
    found: SpeedUps = {DENSE: [Speedup(1.0, 1.0, 1.0) for _ in GBIT]}
    for name in list(METHODS)[1:]:
        found[name] = [speedup(adviser.best(name, gbit), adviser.best("none", gbit)) for gbit in GBIT]
    return found


def _cluster(gbit: float | None) -> Topology:
    """WORKERS machines on a switch, with a nominal Ethernet's start-up time."""
    network = presets.find("1gbe")
    rate = network.bytes_per_second if gbit is None else gbit * 1e9 / 8
    return presets.cluster(network._replace(bytes_per_second=rate), WORKERS)


def table(records: dict[str, list[dict[str, Any]]], speed_ups: SpeedUps) -> Table:
    """A row for each method: its speed-up at each rate, its accuracy, its bytes."""
    heads = ("method", *(f"{gbit:g} Gbit/s" for gbit in GBIT), "top-1, %", "kB a step", "fewer bytes")
    made = columns(heads, left=("method",))
    whole = records[DENSE][0]["bytes_per_step"]["wire"]
    for name, runs in records.items():
        points = [100 * float(each["final"]["top1"]) for each in runs]
        sent = runs[0]["bytes_per_step"]["wire"]
        gains = [f"{one.expected:.2f}x [{one.low:.2f} to {one.high:.2f}]" for one in speed_ups[name]]
        accuracy = f"{statistics.fmean(points):.1f} [{min(points):.1f} to {max(points):.1f}]"
        made.add_row(
            name,
            *(["1"] * len(GBIT) if name == DENSE else gains),
            accuracy,
            f"{sent / 1e3:.1f}",
            f"{whole / sent:.1f}x",
        )  # fmt: skip
    return made


def draw(speed_ups: SpeedUps, gbit: Sequence[float], note: str) -> Figure:
    """Speed-up against the links' rate, in Gbit/s, with its range as a band."""
    lines = [
        Curve(
            name, colour, gbit, [each.expected for each in found], [each.low for each in found],
            [each.high for each in found],
        )
        for (name, found), colour in zip(speed_ups.items(), COLOURS, strict=False)
    ]  # fmt: skip
    heights = [height for found in speed_ups.values() for each in found for height in each]
    across = around("links, Gbit/s", gbit, log=True, values=gbit)
    up = around("steps per second over dense training's", heights, log=True)
    return finished(curves(lines, across, up, "What compression brings, by link", note, height=260))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of("demo", __doc__)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results/runs/demo"),
        metavar="FOLDER",
        help="for records and figure (%(default)s)",
    )
    return parser.parse_args(arguments)
