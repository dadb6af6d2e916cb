"""A run of a study: its record, what the study says of it, and the settings in which runs of a table may not differ."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from wirebench.config.plugins import check_type
from wirebench.errors import UserError
from wirebench.utils import user_files

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
    """A run: its path, the study's note, its record, and the files that were kept of its folder.

    files  JSON values by file name; of a file of lines a list of them
    """

    folder: Path
    note: Mapping[str, Any]
    record: dict[str, Any]
    files: Mapping[str, Any] = MappingProxyType({})

    def has(self, *path: str) -> Any:
        """What stands at `path` of the record; None where there is nothing, as in a record of an older version."""
        value: Any = self.record
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    @property
    def composition(self) -> str:
        """Its name without the turn or the seed."""
        return self.folder.name.rpartition("-")[0]

    @property
    def turn(self) -> str:
        """The turn or the seed, with which its name ends."""
        return self.folder.name.rpartition("-")[2]

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


def processor(cpu: Mapping[str, Any]) -> str:
    """A record's CPU by its name, with its widest and newest instructions where they are known.

    A hypervisor gives several generations one name, of which one starts messages in two thirds of another's time.
    """
    widest = next((name for flag, name in WIDEST.items() if flag in (cpu.get("flags") or ())), None)
    return str(cpu["model"]) + (f" ({widest})" if widest else "")


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


def note(path: Path, needs: Mapping[str, Any]) -> dict[str, Any]:
    """A table of JSON that has the keys `needs`; UserError for another, or for a file that cannot be read."""
    table = user_files.read_json(path)
    if not isinstance(table, dict):
        raise UserError(f"{path}: needs a table, got {table!r}")
    check(str(path), table, needs)
    return table


def check(where: str, table: Mapping[str, Any], needs: Mapping[str, Any]) -> None:
    """UserError where a key of `needs` lacks, or is of another type."""
    for key, expected in needs.items():
        check_type(f"{where}: {key}", table.get(key), expected)
