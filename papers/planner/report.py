"""Forecast beside measured steps, of each folder of runs: table.md and a figure in it.

wirebench study planner report                               of all experiments, and lists
wirebench study planner report results --print               of any runs of several processes: what they forecast
wirebench study planner report --fit results/prediction results/prediction-100
                                                             also what the simulator says of each run, from outside:
                                                             the first folder gets the constants (outside.json)
"""

import argparse
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from papers import trust
from papers.findings import Finding, claims_table
from papers.page import Page
from papers.planner import figures
from papers.planner.experiments import EXPERIMENTS, FORTY
from papers.planner.figures import plugin
from papers.planner.forecast import BEST, DENSITY, FILE, KINDS, LISTED, ORDER, SIDES
from papers.planner.measured import NEAR, Compared, Scored, Side, near, over_shortest, own_errors
from papers.planner.outside import Outside, OutsideRun, from_outside
from papers.planner.repeats import STEADY, another_time, repeats_to, steady
from papers.rows import ms, size
from papers.runner import RESULTS, ROOT
from papers.significance import tau_of
from wirebench.errors import UserError
from wirebench.figures.provenance import counted
from wirebench.figures.style import Figure
from wirebench.planner import ranges
from wirebench.planner.candidate import WORTHWHILE
from wirebench.planner.networks import rate
from wirebench.planner.ranges import Between
from wirebench.record import recorded
from wirebench.record.notes import commits
from wirebench.topology.rates import parse_rate
from wirebench.utils.markdown import table

SHARED = ((FORTY, f"{FORTY}-100"), (f"{FORTY}-60",))
"""Lists whose runs one machine made: the constants are fitted to runs of all, and lie in the first folder."""
AFTERWARDS = ("naive", "sync_easgd")
"""Schedules whose messages wait for the end of the backward pass."""
TITLES = {LISTED: "Predicted and measured steps", BEST: "What the planner ranks first",
          SIDES: "Below which rate compressors pay", ORDER: "The planner's order of the methods of today"}  # fmt: skip
ABOUT = {
    LISTED: "A run predicts its own step by messages and computation that it timed apart before (docs/record.md). "
    "Every composition was run once. Repeats to: where 19 of 20 medians of such runs would lie, by one run's steps.",
    BEST: f"Compressors that have a density work at {DENSITY:g}. The order is by (least + 4 x predicted + most) / 6. "
    "An error is over the measured step without loading and the update, as it was predicted.",
    SIDES: f"A compressor pays where its best step is below {WORTHWHILE:g} of the best dense one's. x: the links' rate "
    "over the predicted break-even. An error is over the measured step without loading and the update.",
    ORDER: "Links and trace are slowed down, workers are not. The order is by (least + 4 x predicted + most) / 6. A "
    "step is the mean over whole rounds of local steps. An error is over all of it, of which loading and the update "
    "were not predicted.",
}  # fmt: skip
"""How to read a table; docs/studies.md has the rest."""
BEFORE = "predicted before the runs"
SUMMARY = ("errors of", "steps", f"within {100 * NEAR:.0f} %", "median", "mean", "largest", "in the range",
           "tau of the order", "off both times")  # fmt: skip
AGAIN = ("another time", "runs", f"within {100 * STEADY:.0f} %", "half of all within", "all within", "tau of the order")
LIMITS = ("compressor", "pays below, by the planner", "measured, on a line between two rates", "ratio")


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the runs, and for the constants."""
    add = parser.add_argument
    add("folders", type=Path, nargs="*", metavar="FOLDER", help="of runs (all that `run` makes)")
    add("--fit", action="store_true", help="simulate the runs of these lists from outside, too; the constants that are "
        "fitted to every second run go to the first folder")  # fmt: skip


def pages(options: argparse.Namespace) -> list[Page]:
    """One page for each folder."""
    if options.fit and not options.folders:
        raise UserError("--fit: which folders? The first one gets the constants (results/prediction)")
    lists: dict[Path, Outside] = {}
    found = []
    for folder in _folders(options):
        shared = [each.resolve() for each in options.folders] if options.fit else _shared(folder)
        if shared and shared[0] not in lists:
            lists[shared[0]] = from_outside([Scored(each) for each in shared])
        found.append(Shown(Scored(folder), lists[shared[0]] if shared else None).page)
    return found


def findings(options: argparse.Namespace) -> list[Finding]:
    """The claims on each folder."""
    return [found for folder in _folders(options) for found in Scored(folder).findings()]


def committed() -> list[list[str]]:
    """List the arguments that report all committed experiments; none where there are none."""
    return [[]] if _there() else []


def _folders(options: argparse.Namespace) -> list[Path]:
    return list(dict.fromkeys(options.folders or _there()))


def _shared(folder: Path) -> list[Path]:
    """The folders whose runs share constants with this one's, first the one that has them; none without constants."""
    names = next((names for names in SHARED if folder.resolve().name in names), ())
    found = [each for name in names if recorded.directly_below(each := folder.resolve().with_name(name))]
    return found if found and (found[0] / ranges.NAME).is_file() else []


def _there() -> list[Path]:
    """The experiments that have runs, and after the forty the lists that were forecast before."""
    lists = sorted(path.parent for path in RESULTS.glob(f"{FORTY}-*/{FILE}"))
    folders = [*lists, *(RESULTS / name for name in EXPERIMENTS if name != FORTY)]
    return [folder for folder in (RESULTS / FORTY, *folders) if recorded.directly_below(folder)]


class Shown:
    """A folder's page. outside: its runs, and others of their machine, simulated"""

    def __init__(self, scored: Scored, outside: Outside | None) -> None:
        self.scored, self.outside = scored, outside
        folder, listed = scored.folder.resolve(), scored.kind == LISTED
        self.simulated = outside.runs.get(folder, {}) if outside else {}
        self.is_first = outside is not None and next(iter(outside.runs)) == folder
        self.steady = steady(scored) if listed else set()
        self.again = another_time(scored) if listed else None
        self.sides = {id(side.lossy): side for side in scored.sides} if scored.kind == SIDES else {}
        self.by_time = sorted(scored.lines, key=lambda line: line.measured)

    @property
    def page(self) -> Page:
        """Table and figure."""
        name, draw = FIGURES.get(self.scored.kind, FIGURE)
        found = self.scored.findings()
        files = {ranges.NAME: self.outside.numbers} if self.outside and self.is_first else {}
        return Page(
            self.scored.folder, self._text(found, name), {name: draw(self.scored)},
            "; ".join(each.here for each in found), files,
            leads=self.scored.folder.resolve() == RESULTS / FORTY,
        )  # fmt: skip

    def _text(self, found: Sequence[Finding], figure: str) -> str:
        """table.md."""
        scored, by_label = self.scored, {line.row.label: line.row.runs for line in self.scored.lines}
        columns = [(head, cell) for head, kinds, cell in COLUMNS if scored.kind in kinds]
        cells = [[cell(self, line) for _, cell in columns] for line in scored.lines]
        lines = [
            f"# {TITLES[scored.kind]}: {scored.about}",
            "",
            self._made(),
            "",
            ABOUT[scored.kind],
            "",
            *([f"{self.outside.said}", ""] if self.outside and self.simulated else []),
            *self._decided(),
            *claims_table(found),
            *_filled(SUMMARY, list(self._summary())),
            *(table(AGAIN, [self.again.cells]) if self.again else []),
            *_filled([head for head, _ in columns], cells),
            *(table(LIMITS, list(self._limits())) if self.sides else []),
            *trust.note(by_label, "" if scored.kind == LISTED else "turns"),
            f"![predicted against measured]({figure})",
            "",
        ]
        return "\n".join(lines)

    def _made(self) -> str:
        """Where and by which code the runs were made, and when and of what they were forecast."""
        scored, before = self.scored, self.scored.forecast
        machines, run = sorted({each.machine for each in scored.runs}), scored.runs[0]
        said = [f"Measured on {', '.join(machines)}; {commits(scored.runs)}."]
        if before is not None:
            given = (f"{key} {value}" for key, value in before.given.items() if not isinstance(value, dict))
            said.append(
                f"Predicted before the runs, {before.made}, from the trace, the links' rate and the constants of "
                f"{'; '.join((before.constants, *given))}."
            )
            theirs = recorded.machine_of((ROOT / before.constants).parent)
            if theirs not in (None, *machines):
                said.append(f"The constants are another machine's: {theirs}.")
        if scored.kind != LISTED:
            turns = counted((len(line.row.runs) for line in scored.lines), "turn")
            said.append(
                f"{run.record['world_size']} workers, {turns} of each. Made by `wirebench study planner run`, which "
                f"runs `{run.note['launch']}` and the like."
            )
        if scored.missing:
            said.append(f"Without a forecast, or a time since it: {'; '.join(scored.missing)}.")
        return " ".join(said)

    def _decided(self) -> list[str]:
        """How many pairs all turns put in one order, and how many of these the planner puts in the same."""
        lines, turns = self.scored.lines, self.scored.common
        if not self.scored.ranked or len(turns) < 2 or len(lines) < 2:
            return []
        pairs = list(combinations(lines, 2))
        later = [[second.turns[turn] > first.turns[turn] for turn in turns] for first, second in pairs]
        alike, right = sum(len(set(each)) == 1 for each in later), sum(all(each) for each in later)
        tau = f", a tau of {2 * right / alike - 1:.2f}" if alike else ""
        return [
            f"Of the {len(pairs)} pairs {alike} are in the same order in all {len(turns)} turns; the planner has "
            f"{right} of these the right way round{tau}.",
            "",
        ]

    def _summary(self) -> Iterator[list[str]]:
        """How near forecasts come: of all steps, and of those that repeat themselves."""
        lines = self.scored.lines
        if self.scored.kind == LISTED:
            own = own_errors(lines)
            overlapping = {line.row.label for line in lines if _overlaps(line)}
            yield self._errors("the run's own prediction", own)
            yield self._errors("the same, where messages overlap computation", own, overlapping)
            yield from self._repeated("the same", own)
        if self.simulated:
            held = {label: each.error for label, each in self.simulated.items() if not each.fitted}
            yield self._errors("simulated", {label: each.error for label, each in self.simulated.items()})
            yield self._errors("the same, not fitted to", held)
            yield from self._repeated("the same, not fitted to", held)
        before = {line.row.label: line.error for line in lines if line.error is not None}
        if before:
            yield self._errors(BEFORE, before)
            yield from self._repeated("the same", before)

    def _repeated(self, what: str, errors: Mapping[str, float]) -> Iterator[list[str]]:
        """Of the steps that repeat themselves within the run, from one time to another, and both."""
        steadily = f"repeat themselves to {100 * STEADY:.0f} %"
        if self.scored.kind == LISTED:
            yield self._errors(f"{what}, steps that {steadily}", errors, self.steady)
        if self.again and self.again.agreeing & errors.keys():
            yield self._errors(f"{what}, steps that agree with another time", errors, self.again.agreeing)
            both = self.again.agreeing & self.again.steady
            yield self._errors(f"{what}, steps that do both", errors, both)

    def _errors(self, what: str, errors: Mapping[str, float], among: Collection[str] | None = None) -> list[str]:
        """A line of the summary. among: labels of the runs that count; None: all"""
        chosen = {label: each for label, each in errors.items() if among is None or label in among}
        if not chosen:
            return [what, "0", *["-"] * (len(SUMMARY) - 2)]
        lines = [line for line in self.scored.lines if line.row.label in chosen]
        seconds, sizes = [line.own for line in lines], [abs(error) for error in chosen.values()]
        predicted = [float(f"{(1 + chosen[line.row.label]) * line.own:.12g}") for line in lines]
        tau = self.scored.tau if self.scored.ranked else tau_of(predicted, seconds)
        worst = max(chosen, key=lambda label: abs(chosen[label]))
        ranges = [Between(row.low, row.high) for line in lines if (row := line.forecast) and row.low and row.high]
        inside = sum(low <= line.own <= high for (low, high), line in zip(ranges, lines, strict=False))
        twice = "-"
        if self.again and among is None:
            known = [each for each in chosen.items() if each[0] in self.again.steps]
            twice = str(sum(self.again.twice_off(*each) for each in known))
        return [
            what,
            str(len(chosen)),
            str(sum(map(near, chosen.values()))),
            f"{100 * statistics.median(sizes):.1f} %",
            f"{100 * statistics.fmean(sizes):.1f} %",
            f"{100 * chosen[worst]:+.1f} % ({worst})",
            str(inside) if what == BEFORE and ranges else "-",
            "-" if math.isnan(tau) else f"{tau:.2f}",
            twice,
        ]

    def _limits(self) -> Iterator[list[str]]:
        """The rates below which compressors pay."""
        for name, (forecast, crossing) in self.scored.limits().items():
            found = ["not between these rates", "-"]
            if crossing is not None:
                found = [rate(crossing), f"{crossing / forecast:.2f}"]
            yield [name, rate(forecast), *found]


def _overlaps(line: Compared) -> bool:
    """Whether messages overlap computation."""
    return _own(line)["messages"] > 1 and plugin(line, "scheduler") not in AFTERWARDS


def _filled(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table without the columns that say nothing."""
    kept = [place for place in range(len(head)) if any(row[place] not in ("", "-") for row in rows)]
    return table([head[place] for place in kept], [[row[place] for place in kept] for row in rows])


def _ms(shown: Shown, seconds: float | None) -> str:
    """Milliseconds: a list's steps are shorter, and are compared with each other's."""
    return ms(seconds, 2 if shown.scored.kind == LISTED else 1)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.1f} %"


def _own(line: Compared) -> Mapping[str, float]:
    """The run's prediction of its own step."""
    return line.run.record["prediction"]


def _measured(shown: Shown, line: Compared) -> str:
    turns = line.turns.values()
    between = f" [{_ms(shown, min(turns))} - {_ms(shown, max(turns))}]" if len(turns) > 1 else ""
    return _ms(shown, line.measured) + between


def _most_steps(shown: Shown, line: Compared) -> str:
    between = line.row.steps_between
    return "-" if between is None else f"{_ms(shown, between[0])} - {_ms(shown, between[1])}"


def _repeats_to(shown: Shown, line: Compared) -> str:
    share = repeats_to(line.run.record)
    return "-" if share is None else f"{100 * share:.1f} %"


def _another_time(shown: Shown, line: Compared) -> str:
    both = shown.again.steps.get(line.row.label) if shown.again else None
    return _ms(shown, both[1] if both else None)


def _range(shown: Shown, line: Compared) -> str:
    before = line.forecast
    return "-" if before is None or before.low is None else f"{_ms(shown, before.low)}-{_ms(shown, before.high)}"


def _over_shortest(shown: Shown, line: Compared) -> str:
    over = over_shortest(shown.scored, line) if shown.scored.kind == BEST else None
    return "-" if over is None else over.words("{:.3f}x", "{:.3f}")


def _outside(shown: Shown, line: Compared) -> OutsideRun | None:
    return shown.simulated.get(line.row.label)


def _of_side(cell: Callable[[Side], str]) -> Callable[[Shown, Compared], str]:
    """A cell of the compressed composition's line."""
    return lambda shown, line: cell(shown.sides[id(line)]) if id(line) in shown.sides else "-"


RANKED, TURNS = (BEST, ORDER), (BEST, SIDES, ORDER)
COLUMNS: tuple[tuple[str, tuple[str, ...], Callable[[Shown, Compared], str]], ...] = (
    ("planner's place", RANKED, lambda shown, line: str(shown.scored.lines.index(line) + 1)),
    ("run", KINDS, lambda shown, line: line.row.title),
    ("engine", (LISTED,), lambda shown, line: f"{line.run.record['engine']} x {line.run.record['world_size']}"),
    ("scheduler", (LISTED, SIDES), lambda shown, line: plugin(line, "scheduler")),
    ("compressor", (LISTED, SIDES), lambda shown, line: plugin(line, "compressor")),
    ("collective", (LISTED, SIDES), lambda shown, line: plugin(line, "collective")),
    ("links", (SIDES,), lambda shown, line: rate(parse_rate(line.run.note["link"]) / 1e9)),
    ("messages", (LISTED,), lambda shown, line: f"{_own(line)['messages']:.0f}"),
    ("predicted ms", KINDS, lambda shown, line: _ms(shown, line.forecast.seconds if line.forecast else None)),
    ("range", KINDS, _range),
    ("turns", TURNS, lambda shown, line: str(len(line.turns))),
    ("measured ms", (LISTED,), lambda shown, line: _ms(shown, line.measured)),
    ("measured ms [least - most of the turns]", TURNS, _measured),
    ("10 % - 90 % of all steps", (BEST, SIDES), _most_steps),
    ("error", KINDS, lambda shown, line: _percent(line.error)),
    ("place", RANKED, lambda shown, line: str(shown.by_time.index(line) + 1)),
    ("over the shortest [95 % interval]", (BEST,), _over_shortest),
    ("x", (SIDES,), _of_side(lambda side: f"{side.factor:g}")),
    ("faster than dense by", (SIDES,), _of_side(lambda side: side.faster)),
    ("faster, predicted", (SIDES,), _of_side(lambda side: _percent(side.forecast - 1))),
    ("repeats to", (LISTED,), _repeats_to),
    ("another time ms", (LISTED,), _another_time),
    ("predicted by the run ms", (LISTED,), lambda shown, line: _ms(shown, _own(line)["step_seconds"])),
    ("the run's error", (LISTED,), lambda shown, line: _percent(_own(line)["error"])),
    (
        "simulated ms",
        (LISTED,),
        lambda shown, line: _ms(shown, run.seconds if (run := _outside(shown, line)) else None),
    ),
    ("simulated error", (LISTED,), lambda shown, line: _percent(run.error if (run := _outside(shown, line)) else None)),
    ("fitted", (LISTED,), lambda shown, line: "yes" if (run := _outside(shown, line)) and run.fitted else "-"),
    ("compressing ms", (ORDER,), lambda shown, line: _ms(shown, line.row.median("phases", "compress"))),
    ("waiting ms", (ORDER,), lambda shown, line: _ms(shown, line.row.median("phases", "exchange_exposed"))),
    ("bytes of a step", (ORDER,), lambda shown, line: size(line.row.median("bytes_per_step", "wire_mean"))),
)
"""What tables show of a composition: the head, of which kinds of forecasts, and the cell."""
FIGURE = ("errors.svg", figures.errors)
FIGURES: dict[str, tuple[str, Callable[[Scored], Figure]]] = {SIDES: ("break_even.svg", figures.break_evens)}
"""Name of the figure, and what draws it, by the kind of forecast."""
