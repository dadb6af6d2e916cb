"""The runs of a study: lines of runs.jsonl, and beside it environments.jsonl with what several runs share.

A line of runs.jsonl is a run: its name, a path below the file's folder such as `vgg16_slow/topk-0`; the study's note;
its record; and the files of its folder that were kept. A run that is made again adds a line, and the last line of a
name counts: no line is ever changed. The path of a run is its file's folder with its name, where no folder has to be.

A run's environment and config are shared but for what is the run's own: {"@": id, ...own} stands for the value of the
line {"id": ..., "value": ...} of environments.jsonl with the own keys in it. A list of tables that have the same keys
is {"#": its length, key: [a value of each] or [the one value of all]}, of which long ones without a measured number are
shared too. Numbers have DIGITS digits: a clock's nanoseconds, and all of a 32-bit float.

A file that travels alone has the lines of its environments.jsonl before its own.
"""

import copy
import fcntl
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from wirebench.config.plugins import check_type
from wirebench.errors import UserError
from wirebench.record import notes, schema
from wirebench.record.notes import NotedRun
from wirebench.utils.files import readable
from wirebench.utils.parsing import json_of

RUNS, SHARED = "runs.jsonl", "environments.jsonl"
NOTE = "note.json"
"""In the folder of a run that is no line yet: what the study says of it."""
DIGITS = 10
LONG = 40
"""Characters of JSON from which on a column, or a section of what is shared, is shared for itself."""
OWN = {"config": (("output", "dir"), ("train", "seed")), "environment": (("utc",), ("command",), ("peers",))}
"""Of the shared parts of a record the keys that each run has for itself."""
ID, COUNT = "@", "#"
Values = dict[str, Any]


def below(folder: Path) -> list[NotedRun]:
    """All runs of `folder` and below it, in lines or in run folders of their own, by path.

    Raises UserError for a damaged file. A folder whose name begins with a dot is a run under way.
    """
    whole = folder.resolve()
    files = [*sorted(whole.rglob(RUNS)), *_above(whole)]
    found = {path: run for file in files for path, run in _lines(file).items() if path.is_relative_to(whole)}
    for path in whole.rglob("record.json"):
        if not any(part.startswith(".") for part in path.relative_to(whole).parts):
            found.setdefault(path.parent, _of_folder(path.parent))
    return [found[path]._replace(folder=folder / path.relative_to(whole)) for path in sorted(found)]


def directly_below(folder: Path) -> list[NotedRun]:
    """Those whose path is `folder` with one more name."""
    return [run for run in below(folder) if run.folder.parent == folder]


def noted(folder: Path, needs: Mapping[str, Any]) -> list[NotedRun]:
    """The runs directly below `folder` that have a note, by name; UserError for what is damaged.

    needs  the keys that every note has, and their types
    """
    found = [run for run in directly_below(folder) if run.note]
    for run in found:
        notes.check(f"{run.folder}: note", run.note, needs)
    return found


def finished(folder: Path) -> list[NotedRun]:
    """All finished runs anywhere below `folder`, by path."""
    return [run for run in below(folder) if run.record["status"] == "finished"]


def machine_of(folder: Path) -> str | None:
    """The machine of the first run directly below `folder`; None if there is no run."""
    return next((run.machine for run in directly_below(folder)), None)


def series(folder: Path) -> list[Path]:
    """The folders below `folder` that have runs directly below them."""
    return sorted({run.folder.parent for run in below(folder)} - {folder})


def at(path: Path) -> NotedRun | None:
    """The run of this path; None if it is missing."""
    whole = path.resolve()
    found = next((lines[whole] for lines in map(_lines, _above(whole)) if whole in lines), None)
    if found is None:
        return _of_folder(path) if (path / "record.json").is_file() else None
    return found._replace(folder=path)


def file_of(path: Path) -> Path:
    """The file that has the run of this path."""
    whole = path.resolve()
    return next((file for file in _above(whole) if whole in _lines(file)), path / "record.json")


def read(path: Path) -> dict[str, Any]:
    """The record of a run's folder, of a record.json, or of a line; UserError if it is missing or damaged."""
    found = None if path.exists() else at(path)
    return schema.read(path) if found is None else found.record


def append(folder: Path, name: str, note: Mapping[str, Any], made: Path, keeps: tuple[str, ...] = ()) -> None:
    """Add the run that was made in the folder `made` as the run folder/name: to the file of `folder` or, where there is
    one, of a folder above it.

    keeps  further files of `made` that stay with the run
    """
    files = {name: _file(made / name) for name in keeps if (made / name).is_file()}
    add(folder, NotedRun(Path(name), note, schema.read(made), files))


def add(folder: Path, run: NotedRun) -> None:
    """Add a run, whose path is seen from `folder`, as `append` does."""
    path = folder.resolve() / run.folder
    parent = next((file.parent for file in _above(folder.resolve() / RUNS)), folder.resolve())
    parent.mkdir(parents=True, exist_ok=True)
    with (
        (parent / RUNS).open("a+", encoding="utf-8") as lines,
        (parent / SHARED).open("a+", encoding="utf-8") as others,
    ):
        fcntl.flock(lines, fcntl.LOCK_EX)
        _cut(parent / RUNS)
        _cut(parent / SHARED)
        known = _shared(parent)
        shared: Values = {}
        line = encode(_whole(run, path.relative_to(parent)), shared)
        # What the line refers to is on disk before the line.
        others.writelines(_shared_lines({key: value for key, value in shared.items() if key not in known}))
        _sync(others)
        lines.write(f"{_text(line)}\n")
        _sync(lines)


def packed(runs: Iterable[NotedRun]) -> str:
    """A file that has runs and, before them, what they share, for sending from one checkout to another."""
    shared: Values = {}
    lines = [f"{_text(encode(_whole(run, run.folder), shared))}\n" for run in runs]
    return "".join([*_shared_lines(shared), *lines])


def unpacked(file: Path) -> list[NotedRun]:
    """The runs of such a file, whose paths are seen from the file's folder; UserError for another file.

    And for one that would lose a run: its last line has no end, or a run's name is there twice.
    """
    whole = file.resolve()
    lines = _lines(whole)
    content = whole.read_bytes()
    if content and not content.endswith(b"\n"):
        raise UserError(f"{file}: its last line has no end; was the file sent whole?")
    if not lines:
        raise UserError(f"{file}: has no run")
    if sum("run" in line for _, line in _whole_lines(whole)) > len(lines):
        raise UserError(f"{file}: two of its runs have one name")
    return [run._replace(folder=path.relative_to(whole.parent)) for path, run in lines.items()]


def check_below(where: str, name: str) -> None:
    """UserError, naming `where`, unless `name` is a path that leads below the folder from which it is seen."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise UserError(f"{where}: needs a path below a folder of results, got {name!r}")


def same(one: NotedRun, other: NotedRun) -> bool:
    """Whether two runs say the same, as lines keep it, whatever their paths."""
    return _kept(one) == _kept(other)


def _kept(run: NotedRun) -> Any:
    shared: Values = {}
    line = encode(_whole(run, Path()), shared)
    return decode(line, shared)


def _whole(run: NotedRun, name: Path) -> Values:
    return {"run": name.as_posix(), "note": dict(run.note), "record": run.record, "files": dict(run.files)}


def _shared_lines(shared: Values) -> Iterator[str]:
    return (f"{_text({'id': key, 'value': value})}\n" for key, value in shared.items())


def encode(run: Mapping[str, Any], shared: Values) -> Values:
    """A run as its line has it; `shared` gets what it shares, by id."""
    record = dict(run["record"])
    for name, own in OWN.items():
        if isinstance(record.get(name), dict):
            record[name] = _without_shared(record[name], own, shared)
    if "launch" in run["note"]:
        # The launch names the run's own place; the command of the process named one for the time of the run.
        record.get("environment", {}).pop("command", None)
    rest = {key: value if key in OWN else _packed(value, shared) for key, value in record.items()}
    files = {"files": _packed(run["files"], shared)} if run.get("files") else {}
    return {"run": run["run"], "note": run["note"], "record": rest, **files}


def decode(value: Any, shared: Mapping[str, Any]) -> Any:
    """What `encode` was given, but for digits that no clock measured."""
    if isinstance(value, list):
        return [decode(each, shared) for each in value]
    if not isinstance(value, dict):
        return value
    if COUNT in value:
        columns = {key: decode(each, shared) for key, each in value.items() if key != COUNT}
        count = value[COUNT]
        whole = {key: each * count if len(each) == 1 else each for key, each in columns.items()}
        return [{key: copy.copy(each[place]) for key, each in whole.items()} for place in range(count)]
    own = {key: decode(each, shared) for key, each in value.items() if key != ID}
    return own if ID not in value else _merged(decode(shared[value[ID]], shared), own)


def _merged(base: Any, own: Mapping[str, Any]) -> Any:
    if not own:
        return base
    merged = dict(base)
    for key, value in own.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _without_shared(table: Mapping[str, Any], own: tuple[tuple[str, ...], ...], shared: Values) -> Values:
    base: Values = copy.deepcopy(dict(table))
    kept: Values = {}
    for *above, last in own:
        inner, place = base, kept
        for key in above:
            inner = inner.get(key, {})
        if last in inner:
            for key in above:
                place = place.setdefault(key, {})
            place[last] = inner.pop(last)
    sections = {
        key: {ID: _id(each, shared)} if isinstance(each, dict | list) and len(_text(each)) > LONG else each
        for key, each in base.items()
    }
    return {ID: _id(sections, shared), **kept}


def _packed(value: Any, shared: Values) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _packed(each, shared) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    tables = len(value) > 1 and all(isinstance(each, dict) and each for each in value)
    if tables and all(each.keys() == value[0].keys() and not {ID, COUNT} & each.keys() for each in value):
        columns = {key: _column([each[key] for each in value], shared) for key in value[0]}
        return {COUNT: len(value), **columns}
    return [_packed(each, shared) for each in value]


def _column(values: list[Any], shared: Values) -> Any:
    """The packed values of a column, one where all are equal; a reference where they are long and nothing measured."""
    packed = [_packed(values[0], shared)] if all(_text(each) == _text(values[0]) for each in values) else None
    if packed is None:
        packed = _packed(values, shared)
    measured = isinstance(packed, dict) or any(isinstance(each, float | dict) for each in packed)
    return packed if measured or len(_text(packed)) < LONG else {ID: _id(packed, shared)}


def _id(value: Any, shared: Values) -> str:
    key = hashlib.sha256(_text(value).encode()).hexdigest()[:10]
    shared[key] = value
    return key


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _above(path: Path) -> Iterator[Path]:
    """The files in which the line of a path may be, the nearest first."""
    return (above / RUNS for above in path.parents if (above / RUNS).is_file())


def _of_folder(folder: Path) -> NotedRun:
    note = notes.note(folder / NOTE, {}) if (folder / NOTE).is_file() else {}
    return NotedRun(folder, note, schema.read(folder), _Files(folder))


class _Files(Mapping[str, Any]):
    """The files of a run's folder, each read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Any:
        if not (self._folder / name).is_file():
            raise KeyError(name)
        return _file(self._folder / name)

    def __iter__(self) -> Iterator[str]:
        return (path.name for path in self._folder.iterdir() if path.suffix in (".json", ".jsonl"))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _file(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    return [json_of(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json_of(text)


def _lines(file: Path) -> Mapping[Path, NotedRun]:
    return _decoded(file, *_state(file))


def _state(file: Path) -> tuple[int, int]:
    try:
        told = readable(file).stat()
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error
    return told.st_mtime_ns, told.st_size


@functools.lru_cache(maxsize=64)
def _decoded(file: Path, *state: int) -> Mapping[Path, NotedRun]:
    """The runs of a file, by path: reports ask many times."""
    shared = _shared(file.parent)
    found: dict[Path, NotedRun] = {}
    for number, line in _whole_lines(file):
        try:
            if line.keys() == {"id", "value"}:
                shared[line["id"]] = line["value"]
                continue
            run = decode(line, shared)
            name, note, record, files = run["run"], run["note"], run["record"], run.get("files", {})
        except (AttributeError, KeyError, TypeError, IndexError) as error:
            raise UserError(f"{file}:{number}: no line of a run: {error!r}") from error
        for key, value, expected in (("run", name, str), ("note", note, dict), ("files", files, dict)):
            check_type(f"{file}:{number}: {key}", value, expected)
        check_below(f"{file}:{number}: run", name)
        try:
            schema.validate(record)
        except UserError as error:
            raise UserError(f"{file}:{number}: {name}: not a run's record: {error}") from error
        found[file.parent / name] = NotedRun(file.parent / name, note, record, files)
    return found


def _shared(folder: Path) -> Values:
    file = folder / SHARED
    return {line["id"]: line["value"] for _, line in _whole_lines(file)} if file.is_file() else {}


def _whole_lines(file: Path) -> Iterator[tuple[int, Any]]:
    """The lines with their numbers; one without an end was being written when the machine stopped, and is none."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: is no text: {error}") from error
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            yield number, json_of(line)
        except ValueError as error:
            raise UserError(f"{file}:{number}: not valid JSON: {error}") from error


def _sync(file: IO[str]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _cut(file: Path) -> None:
    """Take away a line without an end."""
    content = file.read_bytes()
    if content and not content.endswith(b"\n"):
        os.truncate(file, content.rfind(b"\n") + 1)
