"""Run compressors on both sides of the rate below which they pay, by the planner, beside the best dense composition.

wirebench study break_even run --topology FITTED.toml --measured-at 1gbit --compressors topk fp16 --out FOLDER
wirebench study break_even report FOLDER                       afterwards: table.md in it

The topology is of this machine's emulated hosts, one rank each: `wirebench bench collectives` on links of the rate
--measured-at, then `wirebench fit`. The planner asks it what messages cost, and rescales it. What it predicts is kept
beside the runs, and is predicted anew with --again only. The machine should have nothing else to do.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import torch

from papers.break_even.sides import FILE, Predicted, Side, load, save, sides
from papers.runner import RESULTS, ROOT, Launch, Part, measure, within
from papers.trainings import Cluster, Training
from wirebench import compressors
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.planner import ranges
from wirebench.planner.compositions import check_density, check_names, check_positive, density_of
from wirebench.planner.networks import error_of, gbit_of
from wirebench.planner.rank import Adviser
from wirebench.record.rules import TURNS
from wirebench.simulation import trace
from wirebench.simulation.compress_rates import SHIPPED, Rates
from wirebench.telemetry import environment
from wirebench.topology import presets, topology_file
from wirebench.topology.rates import parse_rate
from wirebench.topology.tree import Topology
from wirebench.utils import this_machine
from wirebench.utils.cli import check_outputs

CONFIG = Path("configs/tables/break_even_vgg16.toml")
FACTORS = (0.85, 1.15)
MEASURED = ROOT / "results" / "break_even" / "2x1gbit.toml"
"""The emulated hosts of this suite's own machine, by `make bench-break-even`."""
MEASURED_RATES = MEASURED.with_name("rates.jsonl")
"""How long compressors work on that machine, by the same."""
BOTH = ("dense", "lossy")
SAME_MACHINE = ("model", "flags", "cores")
"""What two machines' descriptions have in common that are one: "AMD EPYC" alone is several generations of it."""


def flags(parser: argparse.ArgumentParser) -> None:
    """Which compressors, on what, by which planner."""
    add = parser.add_argument
    add("--config", type=Path, default=CONFIG, metavar="FILE", help="what is trained (%(default)s)")
    add("--topology", type=Path, required=True, metavar="FILE", help="of the emulated hosts")
    add("--measured-at", required=True, metavar="RATE", help="what their links were shaped to when it was measured")
    add(
        "--rates", type=Path, default=SHIPPED, metavar="FILE", help="what `wirebench bench compressors` measured (ours)"
    )
    add("--compressors", nargs="+", required=True, metavar="NAME")
    add("--density", type=float, help="density of all compressors that have one (each one's own)")
    add("--factors", type=float, nargs="+", default=list(FACTORS), metavar="X", help="of the break-even (%(default)s)")
    add("--turns", type=int, default=TURNS, help="runs of each composition (%(default)s)")
    add("--out", type=Path, default=RESULTS / "break_even", metavar="FOLDER", help="where the results go")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """Every side with and without its compressor, then all of them again."""
    check_positive("--factors", options.factors)
    if options.turns < 1:
        raise UserError(f"--turns: must be positive, got {options.turns}")
    names, factors = list(dict.fromkeys(options.compressors)), list(dict.fromkeys(options.factors))
    check_names("--compressors", names, compressors.PLUGINS)
    check_density(names, options.density)
    shaped = parse_rate(options.measured_at, "--measured-at")
    topology = _topology(options.topology)
    check_outputs(out=options.out / FILE)
    again = options.again or not (options.out / FILE).exists()
    predicted = _predict(options, topology, names, factors, shaped) if again else _earlier(options, names, factors)
    planned = plan(predicted.sides, options, topology.size)
    for each in planned:
        each.check()
    if again:
        save(options.out, predicted)
    return measure({options.out.resolve(): planned}, launch, options.again)


def series(quick: bool) -> list[Part]:
    """Two models with two compressors each, on the topology that was measured; quick: one of each, one turn."""
    measured = ["--topology", str(MEASURED), "--measured-at", "1gbit", "--rates", str(MEASURED_RATES)]
    own = (
        ("vgg16_epyc", "vgg16", ("fp16", "gs_sgd")),
        ("vgg16_gtx1080ti", "vgg16_gtx1080ti", ("gs_sgd", "sketched_sgd")),
    )
    lines = [
        [*measured, "--config", f"configs/tables/break_even_{config}.toml", "--out", str(RESULTS / "break_even" / name),
         "--compressors", *names[: 1 if quick else None]]
        for name, config, names in own
    ]  # fmt: skip
    return [Part(3, [*lines[0], "--turns", "1"])] if quick else [Part(60, line) for line in lines]


def plan(chosen: Sequence[Side], options: argparse.Namespace, hosts: int) -> list[Training]:
    """The runs, in the order of their turns."""
    return [
        Training(
            side.folder(which, turn),
            f"{side.compressor} at {side.factor:g}, {which}",
            Cluster(side.link, hosts),
            options.config,
            side.overrides(which, density_of(side.compressor, options.density)),
        )
        for turn in range(options.turns)
        for side in chosen
        for which in BOTH
    ]


def _earlier(options: argparse.Namespace, names: Sequence[str], factors: Sequence[float]) -> Predicted:
    """What was predicted before the runs that are there; UserError where it was something else."""
    predicted = load(options.out)
    known = {(side.compressor, side.factor) for side in predicted.sides}
    asked = {(name, factor) for name in names for factor in factors}
    if known != asked or predicted.given.get("density") != options.density:
        raise UserError(
            f"{options.out / FILE}: predicts other compressors, factors or densities than are asked for; --again "
            "predicts and runs all of them anew, --out names another folder"
        )
    return predicted


def _predict(
    options: argparse.Namespace, topology: Topology, names: Sequence[str], factors: Sequence[float], shaped: float
) -> Predicted:
    """The sides by the planner, and what its answers rest on. shaped: bits per second of the links measured."""
    # As a rank has: one thread.
    torch.set_num_threads(1)
    rates = Rates(options.rates)
    speed, told_by = memory(rates)
    adviser = _adviser(options, topology, rates, speed)
    predicted = sides(adviser, names, factors, shaped / gbit_of(adviser.topology(None)))
    given = {
        "trace": adviser.trace.name,
        "topology": str(options.topology),
        "links_measured_at": options.measured_at,
        "rates": within(options.rates),
        "memory_bytes_per_second": round(speed),
        "memory_told_by": told_by,
        "density": options.density,
    }
    return Predicted(predicted, given)


def _topology(file: Path) -> Topology:
    """The emulated hosts; UserError where they have several ranks each, or no link speeds."""
    topology = topology_file.resolve(str(file))
    if len(topology.machines) != topology.size:
        raise UserError(f"--topology: {file} has hosts of several ranks; needs one rank a host")
    if not all(branch.links for branch in topology.branches.values()):
        raise UserError(f"--topology: {file} has no link speeds; `wirebench fit` measures them")
    return topology


def memory(rates: Rates) -> tuple[float, str]:
    """Bytes per second of the memory that compresses here, and the source of that figure.

    Compressors are counted in copies that were timed beside them. On the machine of that measurement these copies, and
    not a probe's, make seconds of the count again. A probe is the best of five copies with nothing beside them, up to
    1.4 times as fast: with it compressing would be predicted too short.
    """
    here = environment.cpu()
    if math.isfinite(rates.bytes_per_second) and all(rates.cpu.get(key) == here[key] for key in SAME_MACHINE):
        return rates.bytes_per_second, "rates"
    return this_machine.copy_bytes_per_second(), "probe"


def _adviser(options: argparse.Namespace, topology: Topology, rates: Rates, bytes_per_second: float) -> Adviser:
    """The planner for the config's trace. bytes_per_second: of the memory that compresses"""
    own = gbit_of(topology)
    trained = loader.load(ROOT / options.config)
    if trained.model.name != "replay" or "trace" not in trained.model.options:
        raise UserError(f"--config: {options.config} names no trace to be replayed, and the planner needs one")
    model = trace.load(trace.find(trained.model.options["trace"]))
    if trained.data.batch_size != model.batch_size or trained.network.dilation != 1:
        raise UserError(f"--config: {options.config}: needs the trace's {model.batch_size} images and no dilation")
    return Adviser(
        model,
        lambda gbit: topology if gbit is None else presets.rescaled(topology, gbit / own),
        rates,
        bytes_per_second,
        ranges.load(network=error_of(options)),
        options.density,
    )
