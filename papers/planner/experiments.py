"""What is forecast, and then run: the experiments by the folder of their results.

  prediction           forty compositions on emulated clusters; each run forecasts its own step
  (--list FILE)        the compositions that a file names
  ranking/CLUSTER      the planner's ten best compositions on a cluster
  break_even/TRACE     compressors on both sides of the rate below which they pay, beside the best dense composition
  today/order_NETWORK  the methods of today

Any other forecast is made before the first run of its experiment.
"""

import argparse
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from papers.planner.forecast import (
    BEST,
    DENSITY,
    LISTED,
    ORDER,
    SIDES,
    ClusterComposition,
    Expected,
    Forecast,
    composition,
    signed,
)
from papers.runner import ROOT, within
from papers.trainings import OwnCluster, Training
from wirebench import compressors
from wirebench.compose.resolve import PLAIN_SGD, resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.planner import known, ranges
from wirebench.planner.candidate import Candidate
from wirebench.planner.compositions import DENSE
from wirebench.planner.networks import error_of, gbit_of
from wirebench.planner.ranges import Between
from wirebench.planner.rank import Adviser
from wirebench.planner.resimulated import FromOutside, emulated, rates_of
from wirebench.simulation import trace
from wirebench.topology import presets, topology_file
from wirebench.topology.rates import parse_rate
from wirebench.topology.tree import Topology

CONSTANTS = ROOT / "results" / "prediction"
LINKS = ROOT / "results" / "break_even" / "2x1gbit.toml"
MEASURED_AT = "1gbit"
COUNT = 10
"""The planner's best compositions of each cluster."""
FACTORS = (0.85, 1.15)
"""The links' rate over a break-even."""


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for what is known of the machine that plays the hosts."""
    add = parser.add_argument
    add("--machine", type=Path, metavar="FOLDER", help="of runs of this machine, with outside.json (`report --fit`) "
        "and rates.jsonl (`wirebench bench compressors`) beside them (results/prediction)")  # fmt: skip
    add("--topology", type=Path, metavar="FILE", help="of the emulated hosts of break-evens, by "
        "`wirebench fit` (results/break_even/2x1gbit.toml)")  # fmt: skip
    add("--measured-at", metavar="RATE", help=f"what their links were shaped to then ({MEASURED_AT})")


def links(options: argparse.Namespace) -> str:
    """The file of --topology, as commands name it."""
    path: Path = options.topology or LINKS
    return within(path.resolve()) if path.exists() else str(path)


def measured_at(options: argparse.Namespace) -> str:
    """The rate of --measured-at."""
    return options.measured_at or MEASURED_AT


class KnownMachine:
    """What forecasts rest on: the constants that were fitted to runs of a machine, and how long compressors work there.

    folder  of the runs
    """

    def __init__(self, folder: Path) -> None:
        self.constants, self.rates = folder.resolve() / ranges.NAME, rates_of(folder)
        self.fitted = ranges.machine(self.constants)

    def signed(self, kind: str, rows: Sequence[Expected], **given: Any) -> Forecast:
        """The forecast, signed, with what it rests on: the constants, the file of rates, and when that was measured."""
        given = {"rates": within(self.rates.path.resolve()), "rates_utc": self.rates.utc, **given}
        return signed(kind, rows, self.constants, **given)

    def row(self, training: Training, whole: bool = False) -> Expected:
        """The forecast of a run's step, from the trace, the links' rate, and the copies that its compressor takes.

        whole  with what a step takes for loading and for the update
        """
        assert isinstance(training.place, OwnCluster)
        config = loader.to_dict(resolve(loader.load(ROOT / training.config, list(training.overrides))))
        hosts = training.place.hosts
        other = self.fitted.other_seconds(hosts) if whole else 0.0
        asked = FromOutside(config, hosts, training.place.link, other, self.rates)
        factors = ranges.load(self.constants).factors(self.rates.spread(config["compressor"]["name"]))
        processor = self.fitted.processor
        return Expected(training.folder, asked.seconds(processor), *asked.between(processor, factors))

    def adviser(
        self, config: Path, topology: Callable[[float | None], Topology], density: float | None, network: float = 0.0
    ) -> Adviser:
        """The planner for the config's trace; UserError for a config without.

        network  share by which the fit of the topology's links is off
        """
        given = loader.load(ROOT / config)
        if given.model.name != "replay":
            raise UserError(f"{config}: names no trace to be replayed, and the planner needs one")
        model = trace.load(trace.find(given.model.options["trace"])).faster(1 / (given.network.dilation or 1))
        errors = ranges.load(self.constants, network)
        return Adviser(model, topology, self.rates, self.rates.bytes_per_second, errors, density)


@dataclass(frozen=True)
class Experiment(ABC):
    """The runs of a folder, and what is forecast of them. config, more: what all of them train"""

    config: Path
    more: tuple[str, ...] = ()

    @abstractmethod
    def forecast(self, machine: KnownMachine, options: argparse.Namespace) -> Forecast | None:
        """What is forecast; None: nothing is. UserError for what cannot be. options: by `flags`"""

    def training(self, name: str, composed: str, turn: int) -> Training:
        """The run of a row of the forecast. composed: its composition, by name"""
        each = composition(composed)
        overrides = (*each.overrides(DENSITY), *self.more)
        return Training(f"{name}-{turn}", each.label, OwnCluster(each.link, each.hosts), self.config, overrides)

    @property
    def named(self) -> Sequence[str]:
        """Compositions that are run, once, whatever the planner answers; none: what it forecasts."""
        return ()


@dataclass(frozen=True)
class Listed(Experiment):
    """Compositions of a file. before: whether they are forecast before"""

    compositions: tuple[ClusterComposition, ...] = ()
    before: bool = True

    def forecast(self, machine: KnownMachine, options: argparse.Namespace) -> Forecast | None:
        """See Experiment."""
        if not self.before:
            return None
        rows = [machine.row(self.training(name, name, 0), whole=True) for name in self.named]
        return machine.signed(LISTED, rows)

    def training(self, name: str, composed: str, turn: int) -> Training:
        """See Experiment; it has no turn."""
        return replace(super().training(name, composed, turn), folder=name)

    @property
    def named(self) -> Sequence[str]:
        """See Experiment."""
        return [each.name for each in self.compositions]


@dataclass(frozen=True)
class TenBest(Experiment):
    """The planner's best compositions on as many emulated hosts with links of a rate.

    The order is by the expected steps of `wirebench advise` on such links, with all compressors at one density. What
    was never trained to an end stands below what was.
    """

    hosts: int = 2
    link: str = "1gbit"

    def forecast(self, machine: KnownMachine, options: argparse.Namespace) -> Forecast:
        """See Experiment."""
        topology = emulated(self.link, self.hosts, machine.fitted.processor)
        adviser = machine.adviser(self.config, lambda _: topology, DENSITY)
        advices, _ = adviser.all(compressors.available(), named=False)
        trained = known.load(images=True, numel=adviser.trace.numel)

        def untrained(each: Candidate) -> bool:
            ended = trained.of(each)
            return ended is None or ended.points is None

        rows = []
        for each in sorted(advices, key=untrained)[:COUNT]:
            composed = ClusterComposition(self.hosts, self.link, each.scheduler, each.compressor, each.collective)
            rows.append(_row(composed.name, each.found.step.seconds, each.between))
        return machine.signed(BEST, rows)


@dataclass(frozen=True)
class Sides(Experiment):
    """Compressors on both sides of their break-evens: the best composition of each beside the best dense one."""

    compressors: tuple[str, ...] = ()

    def training(self, name: str, composed: str, turn: int) -> Training:
        """See Experiment; compressors have their own densities."""
        compressor, factor, which = name.split("-")
        overrides = (*composition(composed).overrides(None), *self.more)
        made = super().training(name, composed, turn)
        return replace(made, label=f"{compressor} at {factor}, {which}", overrides=overrides)

    def forecast(self, machine: KnownMachine, options: argparse.Namespace) -> Forecast:
        """See Experiment; UserError for a compressor without a break-even."""
        path = options.topology or LINKS
        topology, shaped = topology_file.resolve(str(path)), parse_rate(measured_at(options), "--measured-at")
        if len(topology.machines) != topology.size:
            raise UserError(f"--topology: {path} has hosts of several ranks; needs one rank a host")
        if not all(branch.links for branch in topology.branches.values()):
            raise UserError(f"--topology: {path} has no link speeds; `wirebench fit` measures them")
        own = gbit_of(topology)

        def at(gbit: float | None) -> Topology:
            return topology if gbit is None else presets.rescaled(topology, gbit / own)

        adviser = machine.adviser(self.config, at, None, error_of(argparse.Namespace(topology=path)))
        limits, rows = {}, []
        for name in self.compressors:
            limits[name] = limit = adviser.break_even(name)
            if limit is None or math.isinf(limit):
                where = "nowhere" if limit is None else "at any rate"
                raise UserError(f"{name!r} pays {where} by the planner, so there are no two sides to run")
            for factor in FACTORS:
                link = f"{round(factor * limit * shaped / own / 1e3)}kbit"
                for which, each in (("dense", DENSE), ("lossy", name)):
                    best = adviser.best(each, factor * limit)
                    composed = ClusterComposition(topology.size, link, best.scheduler, each, best.collective)
                    row = _row(f"{name}-{factor:g}-{which}", best.expected_seconds, best.between)
                    rows.append(replace(row, composition=composed.name))
        given = {"topology": links(options), "links_measured_at": measured_at(options), "break_even_gbit": limits}
        return machine.signed(SIDES, rows, **given)


def _row(name: str, seconds: float, between: Between) -> Expected:
    low, middle, high = (float(f"{each:.4g}") for each in (between.low, seconds, between.high))
    return Expected(name, middle, low, high)


_SPARSE, _OUTER = "compressor.density=0.01", ("scheduler.name=outer", "scheduler.every=30")


def _update(rate: float, *more: str) -> tuple[str, ...]:
    """Of a method that returns updates. Rates change no step's time; they are those of the runs."""
    return (
        *PLAIN_SGD,
        "optimizer.clip=0",
        f"optimizer.lr={rate:g}",
        f"optimizer.weight_decay={1.5e-4 / rate:g}",
        *more,
    )


METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "dense": (DENSE, ()),
    "bf16": ("bf16", ()),
    "topk": ("topk", (_SPARSE,)),
    "dgc": ("dgc", (_SPARSE,)),
    "powersgd": ("powersgd", ()),
    "quantised_sum": ("quantised_sum", ()),
    "demo": ("demo", _update(0.001)),
    "dion": ("dion", _update(0.02)),
    "lion_sign": ("lion_sign", _update(0.001)),
    "gs_sgd": ("gs_sgd", (_SPARSE, "collective.name=tree")),
    # From its second step on every step is a sum of one bit, so that counted steps are alike.
    "zero_one_adam": ("zero_one_adam", _update(
        0.005, "compressor.kappa=1", "compressor.freeze_step=2", "compressor.double_every=1000", "compressor.longest=1"
    )),
    "diloco": (DENSE, _OUTER),
    "sparseloco": (
        "chunk_topk", (*_OUTER, "scheduler.rate=1", "scheduler.momentum=0", "scheduler.nesterov=false")
    ),
    "streaming_diloco": (DENSE, (*_OUTER, "scheduler.fragments=3", "scheduler.delay=5", "scheduler.keep=0.5")),
}  # fmt: skip
"""Methods of today: compressor and further overrides, by label. `local_sgd` sends what `diloco` sends, 1-bit Adam what
0/1 Adam sends here."""
HOSTS, WARMUP, COUNTED = 4, 3, 6


@dataclass(frozen=True)
class MethodsOrder(Experiment):
    """The methods of today on a network.

    Four workers share the machine's cores, so everything is slowed down alike, links and trace (`more`). What workers
    compute themselves (compressing, sums, updates) is not slowed down. It counts as the work of a device that is as
    many times as fast as their share of this machine's cores.
    """

    link: str = "1gbit"

    def training(self, name: str, composed: str, turn: int) -> Training:
        """See Experiment: on a ring unless its paper names another collective, in whole rounds of local steps."""
        compressor, more = METHODS[name]
        own = ("collective.name=ring", f"compressor.name={compressor}", *more)
        words = {word.partition("=")[0]: word for word in own}
        every = int(words.get("scheduler.every", "=0").partition("=")[2])
        before, counted = (every, every) if every else (WARMUP, COUNTED)
        steps = (f"train.warmup_steps={before}", f"train.max_steps={before + counted}")
        overrides, place = (*words.values(), *self.more, *steps), OwnCluster(self.link, HOSTS)
        return Training(f"{name}-{turn}", name, place, self.config, overrides, may_diverge=False)

    def forecast(self, machine: KnownMachine, options: argparse.Namespace) -> Forecast:
        """See Experiment. A method whose compressor was not timed is left out, and told."""
        rows = []
        for label in METHODS:
            try:
                rows.append(replace(machine.row(self.training(label, "", 0)), name=label))
            except UserError as error:
                print(f"{label}: is not forecast: {error}", file=sys.stderr)
        rows.sort(key=lambda row: Between(row.low or 0.0, row.high or 0.0).expected(row.seconds))
        return machine.signed(ORDER, rows)


def listed(path: Path, before: bool = True) -> Listed:
    """The compositions that a file names, a line each; UserError, with the line that is wrong, for anything else."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"--list: {path}: cannot be read: {error.strerror}") from error
    found: list[ClusterComposition] = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            try:
                each = composition(line.strip())
            except ValueError as error:
                raise UserError(f"--list: {path}:{number}: {error}") from error
            if each in found:
                raise UserError(f"--list: {path}:{number}: {each.name} stands there twice")
            found.append(each)
    if not found:
        raise UserError(f"--list: {path}: names no composition")
    return Listed(RESNET20, (), tuple(found), before)


FORTY = "prediction"
RESNET20, VGG, VGG_SLOW, REPLAYED = (
    Path(f"configs/tables/{name}.toml")
    for name in ("prediction_resnet20", "break_even_vgg16_gtx1080ti", "break_even_vgg16", "today_speed")
)
MORE = ("train.max_steps=42",)
"""Thirty counted steps instead of twelve, since steps of a large model vary more."""
EXPERIMENTS: dict[str, Experiment] = {
    FORTY: listed(Path(__file__).with_name("forty.txt"), before=False),
    "ranking/resnet20_2x100mbit": TenBest(RESNET20, (), 2, "100mbit"),
    "ranking/resnet20_4x500mbit": TenBest(RESNET20, (), 4, "500mbit"),
    "ranking/resnet20_8x1gbit": TenBest(RESNET20, (), 8, "1gbit"),
    "ranking/vgg16_2x1gbit": TenBest(VGG, MORE, 2, "1gbit"),
    "ranking/vgg16_4x500mbit": TenBest(VGG, MORE, 4, "500mbit"),
    "ranking/vgg16_8x1gbit": TenBest(VGG, MORE, 8, "1gbit"),
    "break_even/vgg16_epyc": Sides(VGG_SLOW, (), ("fp16", "gs_sgd")),
    "break_even/vgg16_gtx1080ti": Sides(VGG, (), ("gs_sgd", "sketched_sgd")),
    # 1 Gbit/s: a pass takes 0.34 s, a dense exchange 2.8 s.
    "today/order_1gbit": MethodsOrder(REPLAYED, ("network.dilation=5", "data.batch_size=32"), "200mbit"),
    # 100 Gbit/s: a pass takes 0.86 s, a dense exchange 0.6 s.
    "today/order_100gbit": MethodsOrder(REPLAYED, ("network.dilation=100", "data.batch_size=4"), "1gbit"),
}
"""By the folder of their results, below results/."""
