"""method.json, what a study says of a run beside its record: written, read together with it, and compared."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.config.plugins import check_type
from wirebench.errors import UserError
from wirebench.record import schema
from wirebench.utils.files import write_atomically
from wirebench.utils.parsing import json_of

NOTE = "method.json"
IMAGENET = 1_200_000
"""Training images: of ImageNet's 1,281,167 some copies lack a few."""
WIDEST = {
    "amx_tile": "AMX",
    "avx512_vp2intersect": "AVX-512 VP2INTERSECT",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
    "sve": "SVE",
}
"""Instructions by the kernel's flag, widest and newest first."""


class NotedRun(NamedTuple):
    """A run of a study: its folder, the study's note, and its record."""

    folder: Path
    note: dict[str, Any]
    record: dict[str, Any]

    def has(self, *path: str) -> Any:
        """What stands at `path` of the record; None where there is nothing, as in a record of an older version."""
        value: Any = self.record
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    @property
    def machine(self) -> str:
        """The processor it ran on, with its cores."""
        return machine(self.has("environment", "cpu") or {})

    @property
    def commit(self) -> str:
        """The commit of the code that made it, and whether there were uncommitted changes."""
        git = self.has("environment", "git")
        return "unknown" if git is None else git["commit"][:10] + (" and changes" if git["dirty"] else "")

    @property
    def is_whole(self) -> bool:
        """Whether it trained for all its epochs; the accuracy of a run with train.max_steps says nothing."""
        return not self.has("config", "train", "max_steps")

    @property
    def on_imagenet(self) -> bool:
        """Whether it trained on an image folder as large as ImageNet; a part of it is another task."""
        return self.has("config", "data", "name") == "imagefolder" and (self.has("samples", "train") or 0) >= IMAGENET

    @property
    def diverged(self) -> bool:
        """Whether training ended before its time because of numbers that were not finite, or of its own guard."""
        return self.record["status"] == "diverged"


def machine(cpu: Mapping[str, Any]) -> str:
    """A record's CPU in words, with its cores."""
    return f"{processor(cpu)} with {cpu.get('cores')} cores" if cpu.get("model") else "an unknown machine"


def machine_of(folder: Path) -> str | None:
    """The machine of the first run directly below `folder`; None if there is no run."""
    path = next(iter(sorted(folder.glob("*/record.json"))), None)
    return None if path is None else NotedRun(path.parent, {}, schema.read(path)).machine


def processor(cpu: Mapping[str, Any]) -> str:
    """A record's CPU by its name, with its widest and newest instructions where they are known.

    A hypervisor gives several generations one name, of which one starts messages in two thirds of another's time.
    """
    widest = next((name for flag, name in WIDEST.items() if flag in (cpu.get("flags") or ())), None)
    return str(cpu["model"]) + (f" ({widest})" if widest else "")


def write(folder: Path, note: Mapping[str, Any]) -> None:
    """Write the note beside the record: only now do reports see the run."""
    write_atomically(folder / NOTE, json.dumps(note, indent=1) + "\n")


def read(folder: Path, needs: Mapping[str, Any]) -> list[NotedRun]:
    """All runs below `folder`, by name; UserError for a note or a record that is damaged.

    needs  the keys that every note has, and their types
    """
    return [NotedRun(path.parent, note(path, needs), schema.read(path.parent)) for path in _notes(folder)]


def finished(folder: Path) -> list[NotedRun]:
    """All finished runs anywhere below `folder`, by their path; a run without a note file has an empty note."""
    folders = (path.parent for path in sorted(folder.rglob("record.json")) if not path.parent.name.startswith("."))
    found = (
        NotedRun(each, note(each / NOTE, {}) if (each / NOTE).exists() else {}, schema.read(each)) for each in folders
    )
    return [run for run in found if run.record["status"] == "finished"]


def commits(runs: Iterable[NotedRun]) -> str:
    """The commits of the code that made the runs, in words."""
    known = sorted({run.commit for run in runs})
    return f"{'commit' if len(known) == 1 else 'commits'} {', '.join(known)}"


def refuse_mixed(folder: Path, settings: Mapping[str, Mapping[str, object]]) -> None:
    """UserError where the runs of one table differ in a setting, by the run's name; None says nothing of a setting."""
    first: dict[str, tuple[str, object]] = {}
    for name, values in settings.items():
        for key, value in values.items():
            if value is None:
                continue
            other, known = first.setdefault(key, (name, value))
            if value != known:
                raise UserError(f"{folder}: mixes settings: {key} is {known!r} in {other} and {value!r} in {name}")


def _notes(folder: Path) -> list[Path]:
    # Where a run is made, its folder has a name with a dot until it is whole.
    return [path for path in sorted(folder.glob(f"*/{NOTE}")) if not path.parent.name.startswith(".")]


def note(path: Path, needs: Mapping[str, Any]) -> dict[str, Any]:
    """A table of JSON that has the keys `needs`; UserError for another, or for a file that cannot be read."""
    try:
        table = json_of(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(table, dict):
        raise UserError(f"{path}: needs a table, got {table!r}")
    for key, expected in needs.items():
        check_type(f"{path}: {key}", table.get(key), expected)
    return table
