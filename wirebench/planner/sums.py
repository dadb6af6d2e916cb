"""`wirebench advise --wire`: dense gradients by wire format and way to sum: bytes, the error of the sum, and times.

One plan gives all of it: its messages' bytes, what it codes (the law of docs/sums.md), and its price with the coding at
each hop. data/sums.json has what `wirebench bench sums` measured on gradients, as `wirebench study publish` writes it.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from rich.table import Table

from wirebench import collectives
from wirebench.bench.sum_ways import ITEMS, WAYS, Way, group_of
from wirebench.collectives.wire import Formatted
from wirebench.compressors.bits.coded import Coded, code_of
from wirebench.compressors.bits.narrow import Form
from wirebench.costmodel.coding import Coding
from wirebench.costmodel.played_exchange import RequestSize
from wirebench.costmodel.request_cost import Pricer
from wirebench.costmodel.sum_error import MOST_RANKS, CodedEnergy, coded_energy
from wirebench.errors import UserError
from wirebench.gradient.requests import Sum
from wirebench.planner.answer import Judge
from wirebench.planner.candidate import Speedup, overrides
from wirebench.planner.rank import Adviser
from wirebench.simulation.compress_rates import WITHOUT_FORM
from wirebench.topology.tree import Topology
from wirebench.utils.console import columns
from wirebench.utils.parsing import json_of

SHIPPED = Path(__file__).parent / "data" / "sums.json"
EXACT = "fp32"
BAR = "without loss"
"""The way of the row that every lossy one has to beat."""
HEADS = ("format", "way", "MB a step", "x fp32", "error", "measured", "sum ms", "of it coding", "speed-up")


@dataclass(frozen=True)
class KnownSums:
    """What was measured of a model's gradients.

    words     the model, for a sentence
    alike     correlation of two ranks' gradients
    lost      by format, the share of a gradient's energy that it cuts off
    errors    by format, way and number of ranks in decimal digits, the error of the sum
    lossless  by format, fp32 and bf16, how many times as long as a code of exponents a gradient's numbers are: with the
              best such code (bound), and with ours (ratio)
    """

    words: str
    alike: float
    lost: Mapping[str, float]
    errors: Mapping[str, Mapping[str, Mapping[str, float]]]
    lossless: Mapping[str, Mapping[str, float]]

    def expected(self, energy: CodedEnergy, form: str, within: str) -> float | None:
        """The law's relative error of a sum whose plan codes so much; None for a format that was not measured."""
        between, inside = (0.0 if each == EXACT else self.lost.get(each) for each in (form, within))
        return None if between is None or inside is None else energy.error(between, inside)

    def measured(self, form: str, way: str, ranks: int) -> float | None:
        """The measured error; None where it was not measured so."""
        return self.errors.get(form, {}).get(way, {}).get(str(ranks))

    def entry(self) -> dict[str, Any]:
        """What loses nothing, as JSON values."""
        return {"of": self.words, **self.lossless}

    @property
    def bar(self) -> str:
        """A sentence on what a lossy method has to beat."""
        share = 1 / self.lossless[EXACT]["ratio"]
        return (
            f"without loss: a code of exponents sends {share:.2f} times the bytes of dense gradients, measured on "
            f"{self.words}; it is not simulated"
        )


@functools.cache
def load(unit: str) -> KnownSums:
    """The shipped measurements of a model whose samples are `unit`: images, or else of a language model's gradients."""
    return KnownSums(**json_of(SHIPPED.read_text(encoding="utf-8"))["images" if unit == "images" else "language"])


@dataclass(frozen=True)
class SumRow:
    """A format on a way to sum.

    sent_bytes   that a rank sends in a step; share: of what it sends with fp32 numbers in a ring
    error        of the sum, expected; measured: by `wirebench bench sums`; None: not known
    seconds      of one sum of the whole gradient; coding_seconds: what coding adds to it; None: not measured
    speedup      of a training step over dense training as DDP has it, at the way's best schedule
    overrides    of a config that does it; none where no config does
    untimed      formats whose coding was not measured, so that there are no times
    """

    form: str
    way: str
    sent_bytes: float
    share: float
    error: float | None
    measured: float | None = None
    seconds: float | None = None
    coding_seconds: float | None = None
    speedup: Speedup | None = None
    scheduler: str = ""
    overrides: tuple[str, ...] = ()
    untimed: tuple[str, ...] = ()

    def entry(self) -> dict[str, Any]:
        """The row as JSON values."""
        gain = self.speedup
        return asdict(self) | {"speedup": gain and gain.expected, "speedup_range": gain and [gain.low, gain.high]}


def check_forms(forms: Sequence[str]) -> None:
    """Raise UserError, naming --wire, for a name that is no wire format's."""
    for form in forms:
        code_of(form, "--wire")
    if "" in forms:
        raise UserError(f"--wire: needs a wire format; there are {', '.join(get_args(Form))}")


def rows_of(adviser: Adviser, forms: Sequence[str], known: KnownSums, judge: Judge) -> list[SumRow]:
    """A row for each format and way, after dense gradients' best composition and the bar of what loses nothing."""
    topology, numel = adviser.topology(None), sum(layer.numel for layer in adviser.trace.layers)
    whole = RequestSize(Sum, 4.0 * numel, 4.0 * numel)
    base, best, shorter = whole.sent(topology.size), judge.dense, 1 / known.lossless[EXACT]["ratio"]
    seconds = Pricer(collectives.build(best.collective), topology).seconds(whole)
    gain, run = judge.gain(best), tuple(overrides(best, None))
    return [
        SumRow(EXACT, best.collective, base, 1.0, 0.0, None, seconds, 0.0, gain, best.scheduler, run),
        SumRow(EXACT, BAR, base * shorter, shorter, 0.0),
        *(
            _row(adviser, _Summed(name, form, topology, whole), known, judge)
            for form in dict.fromkeys(forms)
            for name, way in WAYS.items()
            if not way.within or 1 < len(topology.machines) < topology.size
        ),
    ]


class _Summed(NamedTuple):
    """One sum of the whole gradient, `whole`, on a way in a format."""

    name: str
    form: str
    topology: Topology
    whole: RequestSize

    @property
    def way(self) -> Way:
        return WAYS[self.name]

    @property
    def collective(self) -> Formatted:
        return self.way.formatted(Coded(self.form))  # type: ignore[arg-type]

    @property
    def forms(self) -> tuple[str, str]:
        """Between machines, and within them."""
        return self.form, self.way.within or self.form

    def sent_bytes(self) -> float:
        """Return the bytes that a rank sends."""
        sent = Pricer(self.collective, self.topology).sent(self.whole)
        return sent if self.way.gathers else sent / 2

    def seconds(self, coding: Coding | None) -> float:
        """Seconds of the sum; without `coding` the seconds of its messages alone, since decoding adds."""
        topology = self.topology if coding else replace(self.topology, reduce_seconds_per_byte=0.0)
        pricer = Pricer(self.collective, topology, coding=coding)
        return pricer.seconds(self.whole) if self.way.gathers else pricer.halves(self.whole).seconds

    def measured(self, known: KnownSums) -> float | None:
        """The measured error, of as many ranks on machines as large."""
        each = max(map(len, self.topology.machines))
        alike = not self.way.within or each == group_of(self.topology.size)
        return known.measured(self.form, self.name, self.topology.size) if alike else None


def _row(adviser: Adviser, summed: _Summed, known: KnownSums, judge: Judge) -> SumRow:
    sent, error = summed.sent_bytes(), None
    if (energy := _energy(summed.name, summed.topology, known.alike)) is not None:
        error = known.expected(energy, *summed.forms)
    row = SumRow(
        summed.form, summed.name, sent, sent / summed.whole.sent(summed.topology.size), error, summed.measured(known)
    )
    untimed = tuple(form for form in dict.fromkeys(summed.forms) if not adviser.rates.codes(form))
    if untimed:
        return replace(row, untimed=untimed)
    seconds = summed.seconds(adviser.coding)
    row = replace(row, seconds=seconds, coding_seconds=seconds - summed.seconds(None))
    found = adviser.summed(summed.collective, summed.name) if summed.way.gathers else None
    if found is None:
        return row
    run = (*overrides(found, None)[:-1], *summed.way.overrides(summed.form))
    return replace(row, speedup=judge.gain(found), scheduler=found.scheduler, overrides=run)


@functools.lru_cache(maxsize=64)
def _energy(name: str, topology: Topology, alike: float) -> CodedEnergy | None:
    """What a way codes, whatever the format; None where there are too many ranks to look at each message."""
    if topology.size > MOST_RANKS:
        return None
    # Formats within machines and between them have to differ to be told apart.
    return coded_energy(WAYS[name].on(topology, Coded("int8")), alike)


def error_of(collective: Formatted, topology: Topology, known: KnownSums) -> float | None:
    """The law's error of a collective's sum; None for a format that was not measured, and for too many ranks."""
    if not 1 < topology.size <= MOST_RANKS:
        return None
    energy = coded_energy(collective.plan(topology, ITEMS * topology.size), known.alike)
    return known.expected(energy, collective.between.name, collective.within.name)


def table(rows: Sequence[SumRow]) -> Table:
    """A line for each row."""
    made = columns(HEADS, left=HEADS[:2])
    for row in rows:
        errors = ("-" if each is None else f"{100 * each:.3g} %" for each in (row.error, row.measured))
        times = ("-" if each is None else f"{1e3 * each:.2f}" for each in (row.seconds, row.coding_seconds))
        gain = "-"
        if row.speedup is not None:
            gain = f"{row.speedup.expected:.2f}x [{row.speedup.low:.2f}-{row.speedup.high:.2f}]"
        made.add_row(row.form, row.way, f"{row.sent_bytes / 1e6:.4g}", f"{row.share:.3f}", *errors, *times, gain)
    return made


def notes(rows: Sequence[SumRow], known: KnownSums) -> list[str]:
    """What the columns mean, and which formats' coding was not measured."""
    untimed = ", ".join(dict.fromkeys(form for row in rows for form in row.untimed))
    return [
        f"sums: error by the law of docs/sums.md, of gradients like {known.words}; measured: theirs. MX formats and 4 "
        "bits lose more than that on many hops. scatter: the reduce-scatter of FSDP",
        *[f"sums: no times: {WITHOUT_FORM.format(untimed)}"] * bool(untimed),
    ]
