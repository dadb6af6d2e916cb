"""The runs of a study: lines of runs.jsonl, and environments.jsonl, beside it or in a folder above, with their shapes.

A line of runs.jsonl is a run: its name, a path below the file's folder such as `vgg16_slow/topk-0`; the study's note;
its record; and the files of its folder that were kept. A run that is made again adds a line, and the last line of a
name counts: no line is ever changed. The path of a run is its file's folder with its name, where no folder has to be.

wirebench/record/lines.py says how a line is written. Shapes are read from the environments.jsonl of a file's folder and
of all folders above, and added to the nearest. So the studies of results/ have one file of shapes in common.

A file that travels alone has its shapes before its lines.
"""

import fcntl
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from wirebench.config.plugins import check_type
from wirebench.errors import UserError
from wirebench.record import notes, schema
from wirebench.record.lines import Shapes, Values, decode, encode
from wirebench.record.notes import NotedRun
from wirebench.utils.files import readable
from wirebench.utils.json_lines import json_text
from wirebench.utils.parsing import json_of

RUNS, SHARED = "runs.jsonl", "environments.jsonl"
NOTE = "note.json"
"""In the folder of a run that is no line yet: what the study says of it."""
MALFORMED = (AttributeError, KeyError, TypeError, IndexError, ValueError, StopIteration, RuntimeError)
"""What the decoding of a line raises that is none."""


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
    file = next(_above(folder.resolve() / RUNS), folder.resolve() / RUNS)
    beside = next(_above(file, SHARED), file.with_name(SHARED))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="utf-8") as lines, beside.open("a+", encoding="utf-8") as others:
        for each in (lines, others):
            fcntl.flock(each, fcntl.LOCK_EX)
            _cut(Path(each.name))
        known = shapes(file.parent)
        try:
            shared = Shapes((line for _, line in _whole_lines(file) if _is_run(line)), known)
        except (UserError, *MALFORMED):  # which the next reader is told; this run has ended, and shall not be lost
            shared = Shapes(known=known)
        line = encode(_whole(run, path.relative_to(file.parent)), shared)
        # What the line refers to is on disk before the line.
        others.writelines(_shared_lines({key: value for key, value in shared.items() if key not in known}))
        _sync(others)
        lines.write(f"{json_text(line)}\n")
        _sync(lines)


def rewritten(files: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[list[str], str]:
    """The texts of files of runs, and of one file with the shapes of all, as this version writes them.

    Runs and shapes stay in their order. UserError for a text that cannot be read.

    files  the text of each file of runs, and the shapes to which it refers, by their ids
    """
    texts: list[str] = []
    needed: Values = {}
    for runs, known in files:
        shared = Shapes(known=needed)
        texts.append("".join([f"{json_text(encode(run, shared))}\n" for run in _runs(runs, known)]))
        needed |= shared
    order = dict.fromkeys([*(key for _, known in files for key in known if key in needed), *needed])
    return texts, "".join(_shared_lines({key: needed[key] for key in order}))


def canonical(runs: str, *shapes: str) -> list[str]:
    """A text for each run of a file: the same for runs that are equal in all digits that lines keep.

    shapes  texts of the files that have its shapes
    """
    try:
        known = dict(_entry(json_of(line)) for text in shapes for line in filter(None, text.split("\n")))
    except MALFORMED as error:
        raise UserError(f"a shape cannot be read: {error!r}") from error
    found = []
    for run in _runs(runs, known):
        own = Shapes()
        found.append(json_text([encode(run, own), own]))
    return found


def _runs(runs: str, known: Mapping[str, Any]) -> Iterator[Values]:
    try:
        yield from (decode(json_of(line), known) for line in filter(None, runs.split("\n")))
    except MALFORMED as error:
        raise UserError(f"a line of runs cannot be read: {error!r}") from error


def packed(runs: Iterable[NotedRun]) -> str:
    """A file that has runs and, before them, what they share, for sending from one checkout to another."""
    shared = Shapes()
    lines = [f"{json_text(encode(_whole(run, run.folder), shared))}\n" for run in runs]
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
    if sum(_is_run(line) for _, line in _whole_lines(whole)) > len(lines):
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
    shared = Shapes()
    line = encode(_whole(run, Path()), shared)
    return decode(line, shared)


def _whole(run: NotedRun, name: Path) -> Values:
    return {"run": name.as_posix(), "note": dict(run.note), "record": run.record, "files": dict(run.files)}


def _shared_lines(shared: Values) -> Iterator[str]:
    return (f"{json_text({key: value})}\n" for key, value in shared.items())


def _entry(line: Mapping[str, Any]) -> tuple[str, Any]:
    """The id and the shape of a line of SHARED; older lines have keys for both."""
    if line.keys() == {"id", "value"}:
        return line["id"], line["value"]
    [entry] = line.items()
    return entry


def _is_run(line: Any) -> bool:
    return not isinstance(line, dict) or "run" in line


def _above(path: Path, name: str = RUNS) -> Iterator[Path]:
    """The files in which the line of a path, or a shape of it, may be, the nearest first."""
    return (above / name for above in path.parents if (above / name).is_file())


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
    # Lines first: what a line that another call adds now refers to is on disk before it.
    lines, known = list(_whole_lines(file)), shapes(file.parent)
    found: dict[Path, NotedRun] = {}
    for number, line in lines:
        try:
            if not _is_run(line):
                known.update([_entry(line)])
                continue
            run = decode(line, known)
            name, note, record, files = run["run"], run["note"], run["record"], run.get("files", {})
        except MALFORMED as error:
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


def shapes(folder: Path) -> Values:
    """The shapes, by their ids, to which a file of runs in this folder can refer: the nearest counts."""
    known: Values = {}
    for file in _above(folder.resolve() / RUNS, SHARED):
        known = _shapes(file, *_state(file)) | known
    return known


@functools.lru_cache(maxsize=64)
def _shapes(file: Path, *state: int) -> Values:
    """Those of a file; UserError where an id has two shapes, as after a merge by hand."""
    known: Values = {}
    for number, line in _whole_lines(file):
        try:
            key, shape = _entry(line)
        except MALFORMED as error:
            raise UserError(f"{file}:{number}: no line of a shape: {error!r}") from error
        if json_text(known.setdefault(key, shape)) != json_text(shape):
            raise UserError(f"{file}:{number}: another shape has the id {key}, too")
    return known


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
