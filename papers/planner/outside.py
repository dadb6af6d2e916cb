"""What the simulator says of a list's runs from outside, and the constants that later forecasts take from it.

outside.json has the machine's constants and a line for each run; ranges of forecasts rest on it (planner/ranges.py).
Several folders of one machine's runs share the constants, and the file lies in the first of them.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from papers.planner.measured import Scored
from wirebench.errors import UserError
from wirebench.planner import ranges
from wirebench.planner.resimulated import Resimulated, check_machine, fit, rates_of, replayed
from wirebench.topology import processor
from wirebench.topology.processor import Processor


class OutsideRun(NamedTuple):
    """A run of a folder that was simulated. key: in outside.json; fitted: whether the constants are fitted to it"""

    label: str
    key: str
    run: Resimulated
    fitted: bool
    seconds: float

    @property
    def error(self) -> float:
        """Simulated over measured seconds, less 1."""
        return self.seconds / self.run.measured - 1


class Outside(NamedTuple):
    """The runs of all folders, by folder and label. numbers: the text of outside.json"""

    constants: Processor
    runs: Mapping[Path, Mapping[str, OutsideRun]]
    numbers: str

    @property
    def said(self) -> str:
        """The constants in words."""
        known = ("cores", "gradient_ns_per_byte")
        written = processor.written(self.constants).items()
        folders = "" if len(self.runs) == 1 else f" of {len(self.runs)} folders"
        return (
            f"Simulated from outside, with the machine's constants fitted to every second run{folders} "
            "(docs/topology.md), and what a run measured of loading and of the update: "
            f"{', '.join(f'{key} {value:.3g}' for key, value in written if key not in known)}."
        )


def from_outside(lists: Sequence[Scored]) -> Outside:
    """Every replayed run of an emulated cluster, simulated; UserError where a folder has fewer than four.

    The constants are fitted to every second run of each folder. How long compressors work is what was measured beside
    the first one's runs.
    """
    first = lists[0].folder
    rates = rates_of(first)
    drafts = []
    for each in lists:
        known = replayed(each.folder, "--fit", rates)
        where = "" if each.folder == first else f"{each.folder.name}/"
        labels = [line.row.label for line in each.lines if line.row.label in known]
        drafts += [
            (each.folder, label, where + label, known[label], not place % 2) for place, label in enumerate(labels)
        ]
    check_machine(run for *_, run, _ in drafts)
    machine = _constants(first / ranges.NAME, [(key, run, fitted) for _, _, key, run, fitted in drafts])
    runs: dict[Path, dict[str, OutsideRun]] = {each.folder: {} for each in lists}
    for folder, label, key, run, fitted in drafts:
        runs[folder][label] = OutsideRun(label, key, run, fitted, run.seconds(machine))
    made = [each for those in runs.values() for each in those.values()]
    return Outside(machine, runs, _numbers(made, machine))


def _constants(kept: Path, runs: Sequence[tuple[str, Resimulated, bool]]) -> Processor:
    """What was fitted to the same runs before and is kept, or a fit to them now, to the digits that are kept.

    A search ends elsewhere on a processor that rounds otherwise: where schedulers cut anew, the errors jump. With
    constants that are kept, the same records give the same table on every machine. Without the file they are fitted.
    """
    try:
        before = [(each["run"], each["fitted"], each["measured_seconds"]) for each in ranges.table(kept)["runs"]]
    except (UserError, KeyError, TypeError):
        before = []
    if [(key, fitted, _short(run.measured)) for key, run, fitted in runs] == before:
        return ranges.machine(kept).processor
    found = fit([run for _, run, fitted in runs if fitted])
    return processor.read({key: _short(value) for key, value in processor.written(found).items()})


def _numbers(made: Sequence[OutsideRun], machine: Processor) -> str:
    """outside.json."""
    entries: list[dict[str, object]] = []
    for each in made:
        exchange = each.run.exchange(machine)
        entries.append({
            "run": each.key, "fitted": each.fitted, "measured_seconds": _short(each.run.measured),
            "simulated_seconds": _short(each.seconds), "exposed_seconds": _short(exchange.exposed_seconds),
            "factor": None if exchange.factor is None else _short(exchange.factor),
        })  # fmt: skip
    constants = {key: _short(value) for key, value in processor.written(machine).items()}
    others = {
        str(size): _short(statistics.median(each.run.other for each in made if each.run.topology.size == size))
        for size in sorted({each.run.topology.size for each in made})
    }
    return ranges.written(entries, {"writer": ranges.WRITER, "processor": constants, "other_seconds": others})


def _short(value: float) -> float:
    return float(f"{value:.4g}")
