"""Rows of tables: the runs of a composition, what was measured over their turns, and which runs may stand together."""

import math
import statistics
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from papers import estimate
from papers.estimate import Estimate
from wirebench.errors import UserError
from wirebench.figures.provenance import provenance
from wirebench.record import notes, recorded
from wirebench.record.gpu_use import gpu_use
from wirebench.record.notes import NotedRun
from wirebench.topology.rates import parse_rate

DENSE = ("dense", "dense, one message")
DDP = "DDP"
COMPUTING = ("data", "forward", "backward", "update")
"""Phases in which a step computes."""
NEEDS = {"label": str, "hosts": int, "link": str, "launch": str}
"""Keys of the note of a run on an emulated cluster."""

MAY_DIFFER = ("compressor.", "scheduler.", "collective.", "output.", "train.seed", "optimizer.momentum",
              "optimizer.nesterov")  # fmt: skip
"""Begins of the keys that are a method's own; one that applies the momentum itself takes the optimizer's away."""


@dataclass(frozen=True)
class Row:
    """One composition: its label, and its runs, one for each turn or seed."""

    label: str
    runs: tuple[NotedRun, ...]

    def median(self, *path: str) -> float | None:
        """Median over turns of the number at `path` of the record; None where one has none."""
        values = [run.has(*path) for run in self.runs]
        return None if any(value is None for value in values) else statistics.median(values)

    @property
    def diverged(self) -> bool:
        """Whether a turn did."""
        return any(run.diverged for run in self.runs)

    @property
    def title(self) -> str:
        """The label, and whether it diverged."""
        return f"{self.label} (diverged)" if self.diverged else self.label

    @property
    def step_seconds(self) -> float | None:
        """Median over turns of the median step; None without a counted step."""
        return self.median("step_seconds", "median")

    @property
    def steps_between(self) -> tuple[float, float] | None:
        """The lowest 10th and the highest 90th percentile of the steps of any turn."""
        lows = [run.has("step_seconds", "p10") for run in self.runs]
        highs = [run.has("step_seconds", "p90") for run in self.runs]
        return None if None in lows or None in highs else (min(lows), max(highs))

    @property
    def spread_ms(self) -> tuple[float, float] | None:
        """The same in milliseconds, as bars have it."""
        between = self.steps_between
        return None if between is None else (1e3 * between[0], 1e3 * between[1])

    @property
    def computing(self) -> float | None:
        """Seconds of a step that are neither compression nor the wait for other ranks; None where a run lacks one."""
        parts = [self.median("phases", name) for name in COMPUTING]
        return None if None in parts else sum(part or 0.0 for part in parts)

    def by_turn(self, of: Callable[[NotedRun], float | None]) -> dict[str, float]:
        """A number of each turn that has it, by the turn's number."""
        told = {run.turn: of(run) for run in self.runs}
        return {turn: value for turn, value in told.items() if value is not None}

    @property
    def turns(self) -> dict[str, float]:
        """The median step of each turn that has one, by the turn's number."""
        return self.by_turn(lambda run: run.has("step_seconds", "median"))

    @property
    def mean_steps(self) -> dict[str, float]:
        """The mean of each turn's counted steps: of local steps a median would be of a step without an exchange."""
        return self.by_turn(mean_step)

    @property
    def mean_step(self) -> float | None:
        """Seconds of a counted step, mean over turns; None without one."""
        steps = self.mean_steps
        return statistics.fmean(steps.values()) if steps else None


def mean_step(run: NotedRun) -> float | None:
    """Seconds of a run's mean counted step; None without one."""
    rate, batch = run.has("images_per_second", "mean"), run.has("config", "data", "batch_size")
    return run.record["world_size"] * batch / rate if rate else None


def load(folder: Path, needs: Mapping[str, Any] = NEEDS) -> list[Row]:
    """All rows of the runs below `folder`, the fastest first; UserError for no runs, or runs of several settings.

    needs  the keys of every note, and their types
    """
    measured = recorded.noted(folder, needs)
    if not measured:
        raise UserError(f"{folder}: has no runs METHOD-TURN; measure first")
    notes.refuse_mixed(folder, {run.folder.name: settings(run) for run in measured})
    return sorted(by_label(measured), key=lambda row: math.inf if row.step_seconds is None else row.step_seconds)


def load_alike(
    folder: Path, setting: Callable[[NotedRun], Mapping[str, object]], needs: Mapping[str, Any] = NEEDS
) -> dict[str, Row]:
    """The rows of the runs in `folder` by label, empty where there is no run; UserError for runs of several settings.

    setting  what all runs have to share
    """
    runs = recorded.noted(folder, needs)
    notes.refuse_mixed(folder, {run.folder.name: setting(run) for run in runs})
    return {row.label: row for row in by_label(runs)}


def cluster(rows: Sequence[Row]) -> str:
    """What was trained on which emulated cluster, for a figure's title."""
    run = rows[0].runs[0]
    model, dilation = run.record["config"]["model"], run.has("config", "network", "dilation") or 1
    slowed = f", slowed down {dilation:g} times" if dilation != 1 else ""
    rate = parse_rate(run.note["link"])
    link = f"{rate / 1e9:g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:g} Mbit/s"
    return f"{model.get('trace', model.get('name', '?'))} on {run.note['hosts']} hosts, links of {link}{slowed}"


Key = TypeVar("Key", bound=Hashable)


def grouped(runs: Iterable[NotedRun], key: Callable[[NotedRun], Key]) -> dict[Key, tuple[NotedRun, ...]]:
    """The runs by what `key` says of each, in the order in which they come."""
    found: dict[Key, list[NotedRun]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return {each: tuple(those) for each, those in found.items()}


def by_label(measured: Iterable[NotedRun]) -> list[Row]:
    """A row for each composition, by the label in its runs' notes."""
    return [Row(label, those) for label, those in grouped(measured, lambda run: run.note["label"]).items()]


def provenance_of(runs: Iterable[NotedRun]) -> str:
    """The machines and commits of runs, for a figure's note."""
    return provenance(run.has("environment") or {} for run in runs)


def fastest(rows: Sequence[Row], labels: Sequence[str]) -> Row | None:
    """The fastest of the rows with these labels; none that diverged or that has no counted step."""
    timed = [row for row in rows if row.label in labels and row.step_seconds and not row.diverged]
    return min(timed, key=lambda row: row.step_seconds or math.inf, default=None)


def times_faster(row: Row, rival: Row) -> Estimate | None:
    """How many times as fast as `rival` the row is, by the median steps of turns; None for one without a time."""
    return estimate.ratio_of_turns(rival.turns, row.turns)


def settings(run: NotedRun, but: tuple[str, ...] = MAY_DIFFER) -> dict[str, object]:
    """What all runs of a table share: the cluster, and the config but for what is a method's own."""
    shared = {key: value for key, value in flat(run.record["config"]) if not key.startswith(but)}
    # The engine that ran; older configs only have what was asked for.
    ran = {"engine.name": run.record["engine"]}
    return {**shared, **ran, "hosts": run.note.get("hosts"), "link": run.note.get("link")}


def flat(table: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of nested tables, by section.key."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{within}{key}.")
        else:
            yield within + key, value


def made_by(study: str, runs: Iterable[NotedRun]) -> str:
    """Which commits made the runs of a table, by which command, and what that ran for the first of them."""
    runs = list(runs)
    commits = ", ".join(sorted({run.commit for run in runs}))
    launch = runs[0].note["launch"]
    return f"Commits: {commits}. Made by `wirebench study {study} run`, which runs `{launch}` and the like."


def emulated_setting(run: NotedRun) -> dict[str, object]:
    """What runs on emulated hosts have to share to be compared, if they are not of one config."""
    config = run.record["config"]
    return {
        "machine": run.machine, "hosts": run.note["hosts"], "link": run.note["link"],
        "trace": config["model"].get("trace"), "batch size": config["data"].get("batch_size"),
        "dilation": run.has("config", "network", "dilation"),
    }  # fmt: skip


def ms(seconds: float | None, digits: int = 1) -> str:
    """Milliseconds in a cell; a dash for what a record does not have."""
    return "-" if seconds is None else f"{1e3 * seconds:.{digits}f}"


def spread(values: Sequence[float], digits: int = 4) -> str:
    """A mean over seeds, and the standard deviation where there are several; a dash without any."""
    if not values:
        return "-"
    deviation = f" +- {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def size(count: float | None) -> str:
    """Bytes as reports write them, in kB or MB."""
    if count is None:
        return "-"
    return f"{count / 1e6:.3g} MB" if abs(count) >= 1e6 else f"{count / 1e3:.3g} kB"


HEAD = ("joules per sample", "joules per point of top-1")


def with_energy(
    head: Sequence[str], cells: Sequence[Sequence[str]], rows: Sequence[Row]
) -> tuple[tuple[str, ...], list[list[str]]]:
    """A table's head and cells, a line for each of `rows`, with HEAD's columns where a run has a GPU.

    Numbers are means over a row's runs. A run of which only rank 0's GPU was sampled is marked.
    """
    told = [_cells(row) for row in rows]
    if not any(told):
        return tuple(head), [list(line) for line in cells]
    lines = [[*line, *(more or ["-"] * len(HEAD))] for line, more in zip(cells, told, strict=True)]
    return (*head, *HEAD), lines


def _cells(row: Row) -> list[str]:
    """[] for a row without a GPU."""
    uses = [use for use in (gpu_use(run.record) for run in row.runs) if use is not None]
    if not uses:
        return []
    partly = dict.fromkeys(use.partly for use in uses if use.partly)
    mark = f" ({', '.join(partly)})" if partly else ""
    values = ([use.per_sample for use in uses], [use.per_point for use in uses])
    return [_mean(each, mark) for each in values]


def _mean(values: Sequence[float | None], mark: str) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.mean(known):.4g}{mark}" if known else "-"


OF_NO_MATTER = (
    *MAY_DIFFER, "name", "asked.", "expected.", "data.root", "data.workers", "engine.", "train.resume", "train.keep",
    "train.checkpoint_every_epochs",
)  # fmt: skip
"""Begins of keys in which the runs of a table differ by their method, or that say how a run was made."""
Setting = dict[str, object]


def alike(runs: Sequence[NotedRun], worlds: bool = False) -> list[NotedRun]:
    """The runs of the most common setting, of runs that would be compared; runs of other settings are named on stderr.

    worlds  whether they may differ in their numbers of workers and machines
    """
    groups = grouped(runs, lambda run: repr(sorted(_setting(run, worlds).items())))
    if not groups:
        return []
    most = max(groups.values(), key=len)
    for group in groups.values():
        if group is not most:
            differs = _difference(_setting(most[0], worlds), _setting(group[0], worlds))
            print(
                f"left out, of another setting: {len(group)} runs such as {group[0].folder}: {differs}", file=sys.stderr
            )
    return list(most)


def machines(run: NotedRun) -> int:
    """On how many machines it ran: hosts that one machine plays are one."""
    return len(run.has("load") or ())


def refuse_twice(label: str, runs: Sequence[NotedRun]) -> None:
    """UserError where two runs of a row are of the same seed, or of the same turn by their folders' names.

    The seed is in the note, and has to be the record's or a whole training's.
    """
    seen: dict[object, NotedRun] = {}
    for run in runs:
        known = run.has("config", "train", "seed")
        seed = run.note.get("seed", known if run.is_whole else None)
        if seed is not None and known not in (seed, None):
            raise UserError(f"{run.folder}: its note says seed {seed}, its record {known}")
        key = run.turn if seed is None else seed
        if key in seen:
            what = "turn" if seed is None else "seed"
            raise UserError(f"{label}: {seen[key].folder} and {run.folder} are both {what} {key}; name a folder of one")
        seen[key] = run


def _setting(run: NotedRun, worlds: bool) -> Setting:
    world = {} if worlds else {"workers": run.record["world_size"], "machines": machines(run)}
    return {**settings(run, OF_NO_MATTER), **world}


def _difference(most: Setting, other: Setting) -> str:
    """The first few settings in which they differ."""
    keys = [key for key in {**most, **other} if most.get(key) != other.get(key)]
    said = [f"{key} is {other.get(key)!r}, not {most.get(key)!r}" for key in keys[:3]]
    return ", ".join(said) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
