"""What failures cost: table.md and a figure, from the trials, the runs that lost a host, and the checkpoints.

wirebench study failures report                          of results/failures
wirebench study failures report results/runs/failures    of another folder
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from papers import benchmarks, published
from papers.failures import checkpoints, faults, stragglers, worlds
from papers.failures.checkpoints import Cost
from papers.failures.faults import ELASTIC, MINUTELY, PLAIN, FaultTrials
from papers.failures.worlds import ComparedWorlds
from papers.findings import Finding, claims_table, with_unrun
from papers.page import Page
from papers.runner import RESULTS
from wirebench.chaos.faults import FAULTS
from wirebench.chaos.figures import UNDISTURBED, calm_rate, cost, goodput, percentile
from wirebench.chaos.job import BATCH_SIZE
from wirebench.errors import UserError
from wirebench.figures import colours
from wirebench.figures.bars import Bar, Look, stacked
from wirebench.figures.provenance import provenance
from wirebench.figures.style import Figure, around, finished
from wirebench.record.notes import processor
from wirebench.utils.markdown import table

FIGURE = "pauses.svg"
CLAIMS = published.load(Path(__file__).parent).claims
TITLES = {
    ELASTIC: ("An elastic job", "`train.elastic`, `train.mirror=1`: ranks go on with what is in their memory."),
    PLAIN: ("A job with checkpoints in its place", "The baseline: a checkpoint every ten steps, and the world waits."),
}


class MeasuredFailures:
    """All that is below a folder; UserError where nothing is, or a file is damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trials: list[FaultTrials] = [found for name in TITLES if (found := faults.load(folder, name))]
        each = (faults.load(folder / faults.FOLDER / method, ELASTIC) for method in MINUTELY)
        self.minutely: list[FaultTrials] = [found for found in each if found]
        self.slowed = stragglers.load(folder / stragglers.FOLDER)
        self.worlds: list[ComparedWorlds] = [worlds.load(folder / worlds.FOLDER.name, name) for name in worlds.ENGINES]
        self.costs: list[Cost] = checkpoints.load(folder)
        runs = self.slowed or any(each.broken or each.unbroken for each in self.worlds)
        if not (self.trials or self.minutely or self.costs or runs):
            raise UserError(f"{folder}: has no trials and no runs; measure first (wirebench study failures run)")

    def findings(self) -> Iterator[Finding]:
        """Findings on the elastic job, on a slow host, on both engines' runs, and on checkpoints."""
        for trials in self.trials:
            if trials.path.name == ELASTIC:
                yield from trials.findings(CLAIMS)
        yield from (trials.goodput(CLAIMS["minutely"]) for trials in self.minutely)
        yield from stragglers.findings(self.slowed, CLAIMS["straggler"])
        for compared in self.worlds:
            found = compared.finding(CLAIMS[f"worlds_{compared.engine}"])
            if found is not None:
                yield found
        yield from (cost.finding(CLAIMS["stall"]) for cost in self.costs)


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the runs of the report."""
    parser.add_argument(
        "folder", type=Path, nargs="?", default=RESULTS / "failures", metavar="FOLDER",
        help="where `run --out` put the results (results/failures)",
    )  # fmt: skip


def committed() -> list[list[str]]:
    """The one, once something was measured."""
    return [[]] if any((RESULTS / "failures").rglob("*.json*")) else []


def findings(options: argparse.Namespace) -> list[Finding]:
    """Findings on every claim with a measurement."""
    return list(MeasuredFailures(options.folder).findings())


def pages(options: argparse.Namespace) -> list[Page]:
    """One."""
    measured = MeasuredFailures(options.folder)
    shown = figure(measured.trials) if measured.trials else None
    return [Page(options.folder, document(measured), {FIGURE: shown})]


def document(measured: MeasuredFailures) -> str:
    """table.md."""
    lines = ["# What failures cost", "", "Made by `wirebench study failures run`.", ""]
    lines += claims_table(with_unrun(list(measured.findings()), CLAIMS.values()))
    for trials in measured.trials:
        title, about = TITLES[trials.path.name]
        lines += [f"## {title}", "", f"{about} {_made_by(trials)} `docs/chaos.md` says what each is.", ""]
        lines += trials.table()
        lines += [f"Broken rules (docs/studies.md): {', '.join(trials.rules)}.", ""] if trials.rules else []
    if measured.trials:
        lines += [f"![longest pause by fault]({FIGURE})", ""]
    heads = (
        "method",
        "kills",
        "s between",
        "hangs",
        "longest pause p95, s",
        "steps a kill costs",
        "most steps made again",
        "kills that lost some twice",
        "goodput",
    )
    kills = table(heads, [_minutely(each) for each in measured.minutely]) if measured.minutely else []
    place = stragglers.PLACE
    for title, about, rows in (
        ("A rank is killed every minute",
         "By `wirebench study failures run --parts minutely`: elastic jobs, by their method. Goodput is measured at "
         "that rate. A killed rank costs the pause and the steps since the last commit, which are made again. The "
         "table has the most of one kill, and the number of kills that lost steps which the kill before had cost.",
         kills),
        ("A host at half speed",
         "By `wirebench study failures run --parts straggler`: ResNet-20 replayed, ten times slower than life, on "
         f"{place.hosts} hosts with links of {place.link}, of which one computes twice as long. Local steps are 32 a "
         "round. Goodput is steps per second over those without the slow host. Every exchange waits for the slowest "
         "host, after local steps too: they hide no host that is always slow. In the last column a step takes one "
         "pass's computing longer, and its exchange as long as before.", stragglers.lines(measured.slowed)),
        ("A host is lost, and another comes", "By `wirebench study failures run --parts worlds`.",
         worlds.lines(measured.worlds)),
        ("Checkpoints", "By `wirebench bench checkpoint`: VGG-16, 4 processes, 16 images each.",
         checkpoints.lines(measured.costs)),
    ):  # fmt: skip
        lines += [f"## {title}", "", about, "", *rows] if rows else []
    return "\n".join(lines).rstrip() + "\n"


def _minutely(trials: FaultTrials) -> list[str]:
    lines, rate = trials.lines, calm_rate(trials.lines)
    pauses = [line["pause_seconds"] for line in lines if not line["hang"]] or [float("inf")]
    images = trials.header["hosts"] * BATCH_SIZE
    step = images / rate
    return [
        trials.path.parent.name, str(len(lines)), f"{sum(line['seconds'] for line in lines) / len(lines):.0f}",
        str(sum(line["hang"] for line in lines)), f"{percentile(pauses, 0.95):.1f}",
        f"{statistics.fmean(cost(line, rate) for line in lines) / step:.0f}",
        f"{max(line['images_redone'] for line in lines) / images:.0f}", str(trials.lost_twice),
        f"{100 * goodput(lines, rate):.1f} %",
    ]  # fmt: skip


def _made_by(trials: FaultTrials) -> str:
    """On which machines, and by which commits."""
    begun: dict[int, str] = {}
    for call in trials.header["calls"]:
        cpu, git = call["environment"]["cpu"], call["environment"]["git"]
        commit = "an unknown commit" if git is None else f"commit {git['commit'][:10]}{' and changes' * git['dirty']}"
        where = f"on {processor(cpu)} with {cpu['cores']} cores, {commit}"
        if where != next(reversed(begun.values()), None):
            begun[call["first"]] = where
    ends = [first - 1 for first in [*begun, len(trials.lines)][1:]]
    told = [f"trials {first} to {end} {where}" for (first, where), end in zip(begun.items(), ends, strict=True)]
    return f"Faults {trials.header['mtbf_seconds']:g} s apart, or as soon as the job is whole again: {'; '.join(told)}."


def figure(all_of: Sequence[FaultTrials]) -> Figure:
    """A bar for each kind of fault and job: the median of the longest pause, up to 95 % of them."""
    bars = [bar for kind in FAULTS for trials in all_of if (bar := _bar(trials, kind)) is not None]
    across = around("longest pause, s", [0.0, *(bar.end for bar in bars)])
    jobs = {_job(trials): colours.BLUE if trials.header["elastic"] else colours.GREY for trials in all_of}
    look = Look(jobs, spread="5 % to 95 % of trials", width=300)
    counts = sorted({len(_pauses(trials, kind)) for trials in all_of for kind in trials.header["kinds"]})
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    hung = sum(line["hang"] for trials in all_of for line in trials.lines)
    many += f" trials of a kind{f', without {hung} that hung' if hung else ''}"
    calls = [call["environment"] for trials in all_of for call in benchmarks.calls(trials.header)]
    note = f"Bars: medians of {many}; thin lines: 5 % to 95 % of them. {provenance(calls)}."
    return finished(stacked(bars, across, look, "How long a job pauses after a fault", note))


def _pauses(trials: FaultTrials, kind: str) -> list[float]:
    """Seconds, of the trials that did not hang."""
    return [line["pause_seconds"] for line in trials.of_kind(kind) if not line["hang"]]


def _job(trials: FaultTrials) -> str:
    return "elastic" if trials.header["elastic"] else "with checkpoints"


def _bar(trials: FaultTrials, kind: str) -> Bar | None:
    pauses = _pauses(trials, kind)
    if not pauses:
        return None
    job = _job(trials)
    middle, ends = statistics.median(pauses), (percentile(pauses, 0.05), percentile(pauses, 0.95))
    name = kind if kind != UNDISTURBED else "no fault"
    return Bar(f"{name}, {job}", {job: middle}, ends, words=f"{middle:.1f}")
