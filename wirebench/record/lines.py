"""A run as a line of runs.jsonl: its own values, and references to what it shares with other runs.

A line is [name, [id, value, ...], ...]: the run's name, and a list for each of PARTS. Each part of a run is the shape
of that id with the line's values in the places of HOLE, in order, and the run's name in the places of RUN. A shape
stands once, as {id: shape} in environments.jsonl. A shape that is {ID: id, key: ..., ...} is the one of that id with
these keys changed. Among the shapes of the same file of runs it is the one that leaves least to change. So keys, names
and settings are written once, and a line has what was measured:

- Numbers are values, in a list together. Numbers of a record's config and environment, and under a key of ALIKE,
  belong to the shape.
- A number of a record that follows from others of it (FOLLOWING) is SAME in the shape, and no value.
- Texts belong to the shape; a study's note has its own. Of a text under a key of WORDED, such as a command, the
  run's name, numbers and what follows a "=" are values.
- Tables of a list that have the same keys are columns: {COUNT: their number, key: [a value of each, or one for all]}.
  So are rows of equal length, whose keys are ROW and the place.
- Other lists of tables, such as the events of a trace, are {PICKED: [a place in the second list of each], OF: [the
  shapes, each once]}, where that is shorter.
- Nulls of a column belong to the shape.
- A long column without a measured number, such as bytes by request, is {ID: id} in place of the value. Where it is
  shorter such a column is {STEPS: [difference, times, difference, times, ...]}: how far each number is from the former.

Numbers have ten digits, under keys of FEWER and in lists of files fewer; settings keep all theirs.
"""

import base64
import copy
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, groupby, pairwise
from typing import Any

from wirebench.telemetry.step_stats import PHASES
from wirebench.utils.json_lines import DIGITS, json_text, rounded
from wirebench.utils.parsing import json_of

Values = dict[str, Any]
ID, COUNT, HOLE, RUN, ROW, SAME = "@", "#", "?", "{}", "row ", "="
PICKED, OF, STEPS = "*", "of", "+"
FILE_DIGITS = 6
FEWER = {
    "requests": 6, "load": 4, "ranks": 4, "startup_seconds": 6, "history.seconds": 6, "history.eval_seconds": 6,
    "history.seconds_total": 6,
}  # fmt: skip
"""Digits of the numbers below these keys of a record, which no table shows with more. The run's own `seconds_total` has
all: it tells a run from a copy."""
ID_LENGTH = 6
"""Of 64 characters each: among five thousand shapes the risk that two have the same id is 1 in 5,000. Then the later
one has a longer id."""
LONG = 40
"""Characters of JSON from which on a part of a shape, or a column, is a line for itself."""
MOST = 2**24
"""Tables of a list: a damaged line asks for no more memory than that."""
SETTINGS = ("config", "environment")
"""Parts of a record that many runs have alike."""
OWN = ("seed", "dir", "utc")
"""Keys of these parts whose values are a run's own."""
ALIKE = (
    "schema", "world_size", "parameters", "train", "test", "steps", "steps_done", "saved", "dense", "epoch", "rank",
    "ranks", "cores", "threads", "ranks_on_host", "pid", "tid", COUNT,
)  # fmt: skip
"""Keys of a record and of files with whole numbers that many runs share."""
NOTE = "note"
PARTS = (NOTE, *SETTINGS, "record", "files")
"""What a line has after the name; null for a part that the run lacks, unless no other follows."""
VALUE = re.compile(r"((?<==)(?!\S*\{\})[^\s=]+|\d+(?:\.\d+)?)")
WORDED = dict.fromkeys(("command", "launch", "settings", "warnings"), VALUE) | {
    "peers": re.compile(r"((?<=pid )\d+)"),
    "utc": re.compile(r"((?<=^\d{4}-\d\d-)\S+(?=\+00:00$))"),
}
"""Keys of texts of which a part is a value, and what finds the parts."""


class Shapes(Values):
    """The shapes by their ids to which lines of one file refer, and what `encode` adds for further ones.

    lines  of the file
    known  other shapes with ids, the lines' own among them
    """

    def __init__(self, lines: Iterable[Any] = (), known: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._known = known or {}
        self._alike: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}
        parts = [part for line in lines for part in named(line).values()]
        asked = [part[0] for part in parts if isinstance(part, list)] + list(_referred(parts))
        while asked:
            if (key := asked.pop()) in self._known and key not in self:
                self[key] = self._known[key]
                asked.extend(_referred(self[key]))
        for key, shape in self.items():
            if isinstance(shape, dict):
                whole = _changed(shape, self)
                self._alike.setdefault(tuple(whole), {})[tuple(map(json_text, whole.values()))] = key

    def refer(self, value: Any) -> str:
        """The id of a value, which stands there whole."""
        text = json_text(value)
        whole = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode()
        keys = (whole[:length] for length in range(ID_LENGTH, len(whole) + 1))
        return next(key for key in keys if json_text(self.setdefault(key, self._known.get(key, value))) == text)

    def of(self, shape: Values) -> str:
        """The id of a shape, which stands there by what it changes of another one, where that is shorter."""
        texts = tuple(map(json_text, shape.values()))
        alike = self._alike.setdefault(tuple(shape), {})
        if texts not in alike:
            ways = [shape]
            for others, key in alike.items():
                changed = (name for name, text, other in zip(shape, texts, others, strict=True) if text != other)
                ways.append({ID: key, **{name: shape[name] for name in changed}})
            # The text decides between two of one length, and not which was there before.
            alike[texts] = self.refer(min(ways, key=lambda way: (len(text := json_text(way)), text)))
        return alike[texts]


def _changed(shape: Values, shared: Mapping[str, Any]) -> Values:
    """A shape with what it has of another one."""
    if ID not in shape:
        return shape
    return {**_changed(shared[shape[ID]], shared), **{name: each for name, each in shape.items() if name != ID}}


def _referred(value: Any) -> Iterator[str]:
    """The ids in a shape, or in values of a line."""
    if isinstance(value, dict) and ID in value:
        yield value[ID]
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _referred(each)


def encode(run: Mapping[str, Any], shared: Shapes) -> list[Any]:
    """A run ("run", its name; "note", "record", "files") as its line has it; `shared` gets its shapes."""
    record, note = run["record"], run[NOTE]
    settings = {name: record[name] for name in SETTINGS if isinstance(record.get(name), dict)}
    if "launch" in note and "environment" in settings:
        # The launch names the run's own place; the command of the process named one for the time of the run.
        settings["environment"] = {key: each for key, each in settings["environment"].items() if key != "command"}
    parts = {NOTE: rounded(note), **settings, "record": _reduced(_kept(record | dict.fromkeys(settings)))}
    parts |= {"files": rounded(run["files"], listed=FILE_DIGITS)} if run.get("files") else {}
    names = PARTS if "files" in parts else PARTS[:-1]
    shaped = {name: _Shaping(run["run"], name, shared).part(parts[name]) for name in names if name in parts}
    return [run["run"], *map(shaped.get, names)]


def _kept(value: Any, digits: int = DIGITS, above: str = "") -> Any:
    if isinstance(value, Mapping):
        names = {key: f"{above}{key}" for key in value}
        return {key: _kept(each, FEWER.get(names[key], digits), f"{names[key]}.") for key, each in value.items()}
    return [_kept(each, digits, above) for each in value] if isinstance(value, list | tuple) else rounded(value, digits)


def _at(value: Any, *path: str | int) -> Any:
    """What stands at a path of keys and places; None where nothing does."""
    for key in path:
        try:
            value = value[key]
        except (LookupError, TypeError):
            return None
    return value


def _ratio(number: Any, other: Any) -> float | None:
    return number / other if all(isinstance(each, int | float) for each in (number, other)) and other else None


def _error(record: Values) -> float | None:
    ratio = _ratio(_at(record, "prediction", "step_seconds"), _at(record, "step_seconds", "median"))
    return None if ratio is None else ratio - 1


def _dense(record: Values) -> int | None:
    parameters = _at(record, "parameters")
    return 4 * parameters if isinstance(parameters, int) else None


def _to_ring(key: str) -> Callable[[Values], float | None]:
    """What a dense ring sends over what the record says under this key."""

    def ratio(record: Values) -> float | None:
        dense, workers = _at(record, "bytes_per_step", "dense"), _at(record, "world_size")
        known = isinstance(dense, int) and isinstance(workers, int) and workers > 0
        # As in wirebench/comm/base.py, whose import of torch would slow down the reading of records.
        return _ratio(2 * (workers - 1) * dense // workers, _at(record, "bytes_per_step", key)) if known else None

    return ratio


def _copy(*path: str | int) -> Callable[[Values], Any]:
    return lambda record: _at(record, *path)


FOLLOWING: Mapping[tuple[str | int, ...], Callable[[Values], Any]] = {
    ("final", "loss"): _copy("history", -1, "test_loss"),
    **{("final", name): _copy("history", -1, name) for name in ("top1", "top5", "perplexity", "bits_per_byte")},
    ("prediction", "measured_seconds"): _copy("step_seconds", "median"),
    ("prediction", "error"): _error,
    ("bytes_per_step", "dense"): _dense,
    ("bytes_per_step", "wire_mean"): _copy("bytes_per_step", "wire"),
    ("bytes_per_step", "wire_max"): _copy("bytes_per_step", "wire"),
    ("compression_ratio", "with_indices"): lambda record: _ratio(
        _at(record, "bytes_per_step", "dense"), _at(record, "bytes_per_step", "payload")
    ),
    ("compression_ratio", "values"): _copy("compression_ratio", "with_indices"),
    ("compression_ratio", "wire"): _to_ring("wire_mean"),
    ("compression_ratio", "nic"): _to_ring("nic"),
    ("ranks", 0, "step_seconds"): _copy("step_seconds", "median"),
    **{("ranks", 0, "phases", name): _copy("phases", name) for name in PHASES},
}
"""Paths of numbers of a record that follow from others, and from which; one may follow from one that stands before."""


def _followed(record: Values, path: tuple[str | int, ...]) -> Any:
    return _kept(FOLLOWING[path](record), FEWER.get(str(path[0]), DIGITS))


def _reduced(record: Values) -> Values:
    """The record, with SAME in place of each number that is what follows from others, to nine digits."""
    known = [path for path in FOLLOWING if _agree(_at(record, *path), _followed(record, path))]
    for *above, key in known:
        _at(record, *above)[key] = SAME
    return record


def _agree(number: Any, other: Any) -> bool:
    if isinstance(number, bool) or type(number) is not type(other) or not isinstance(number, int | float):
        return False
    # Committed lines were shortened so: what follows may be off by a nanosecond, or a share of 1e-9.
    return math.isclose(number, other, rel_tol=1e-9, abs_tol=1e-9)


def _completed(record: Values) -> Values:
    """The record that `_reduced` got; ValueError where nothing follows."""
    for path in FOLLOWING:
        if _at(record, *path) == SAME:
            number = _followed(record, path)
            if number is None:
                raise ValueError(f"{path} does not follow from the record")
            _at(record, *path[:-1])[path[-1]] = number
    return record


def decode(line: Any, shared: Mapping[str, Any]) -> Values:
    """What `encode` was given, but for further digits. KeyError, TypeError, ... for what is no line."""
    line = named(line)
    if isinstance(line["record"], dict):
        return _plain(line, shared)
    run: Values = {"run": line["run"]}
    for name in PARTS:
        if name in line:
            key, *values = line[name]
            filling = _Filling(line["run"], iter(values), shared)
            run[name] = filling.fill(shared[key])
            if list(filling.values):
                raise ValueError(f"{name} has more values than its shape {key}")
    run["record"] = _completed(run["record"] | {name: run.pop(name) for name in SETTINGS if name in run})
    return run


def named(line: Any) -> Any:
    """The parts of a line by their names, as an older line has them."""
    if not isinstance(line, list):
        return line
    return {name: part for name, part in zip(("run", *PARTS), line, strict=False) if part is not None}


class _Shaping:
    """Takes the values of a part of a run out of it, which leaves its shape."""

    def __init__(self, run: str, name: str, shared: Shapes) -> None:
        self._run = run
        self._name = name
        self._shared = shared
        self._values: list[Any] = []

    def part(self, value: Mapping[str, Any]) -> list[Any]:
        """The part as a line has it."""
        return [self._shared.of(self._dict(value)), *self._values]

    def _shape(self, value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return self._dict(value)
        if isinstance(value, list):
            return self._list(value, key)
        if isinstance(value, str):
            return self._text(value, key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return self._hole(value) if is_number and self._is_own(key) else value

    def _is_own(self, key: str) -> bool:
        """Whether numbers under this key are a run's own."""
        if self._name in SETTINGS:
            return key in OWN
        return self._name == NOTE or key not in ALIKE

    def _dict(self, table: Mapping[str, Any]) -> Values:
        return {key: self._referred(self._shape(each, key)) for key, each in table.items()}

    def _list(self, values: list[Any], key: str) -> Any:
        if _is_table(values):
            return self._table(values)
        if _is_matrix(values) and self._is_own(key):
            return self._table([{f"{ROW}{place}": each for place, each in enumerate(row)} for row in values])
        if values and None not in values and not _has_text(values) and self._is_own(key):
            is_shared = len(json_text(values)) > LONG and not _is_measured(values)
            return self._hole({ID: self._shared.refer(_steps(values))} if is_shared else values)
        return _picked([self._referred(self._shape(each, key)) for each in values])

    def _table(self, tables: list[Values]) -> Values:
        shape: Values = {COUNT: self._shape(len(tables), COUNT)}
        for key in tables[0]:
            column = [table[key] for table in tables]
            is_one = len(set(map(json_text, column))) == 1
            shape[key] = self._referred(self._list(column[:1] if is_one else column, key))
        return shape

    def _text(self, value: str, key: str) -> str:
        is_noted = self._name == NOTE and key not in WORDED
        if HOLE in value or RUN in value or is_noted or (self._name in SETTINGS and key in OWN and key not in WORDED):
            return self._hole(value)
        words = WORDED[key].split(value.replace(self._run, RUN)) if key in WORDED else [value]
        if words == ["", value, ""]:
            return self._hole(value)
        for word in words[1::2]:
            self._hole(_number(word))
        return HOLE.join(words[::2])

    def _hole(self, value: Any) -> str:
        self._values.append(value)
        return HOLE

    def _referred(self, shape: Any) -> Any:
        if not isinstance(shape, dict | list) or len(json_text(shape)) <= LONG:
            return shape
        return {ID: self._shared.of(shape) if isinstance(shape, dict) else self._shared.refer(shape)}


class _Filling:
    """Puts a line's values into the places of a shape."""

    def __init__(self, run: str, values: Iterator[Any], shared: Mapping[str, Any]) -> None:
        self.values = values
        self._run = run
        self._shared = shared

    def fill(self, shape: Any) -> Any:
        """The part of a run that has this shape."""
        if isinstance(shape, str):
            return self._text(shape)
        if isinstance(shape, list):
            return [self.fill(each) for each in shape]
        if not isinstance(shape, dict):
            return shape
        if ID in shape:
            return self.fill(self._shared[shape[ID]] if len(shape) == 1 else _changed(shape, self._shared))
        if shape.keys() == {PICKED, OF}:
            return [self.fill(shape[OF][place]) for place in shape[PICKED]]
        filled = {key: self.fill(each) for key, each in shape.items()}
        return _tables(filled) if COUNT in filled else filled

    def _text(self, shape: str) -> Any:
        if shape == HOLE:
            value = next(self.values)
            return _numbers(self._shared[value[ID]]) if isinstance(value, dict) else value
        first, *others = (each.replace(RUN, self._run) for each in shape.split(HOLE))
        return first + "".join([_word(next(self.values)) + each for each in others])


def _picked(shapes: list[Any]) -> Any:
    """The shapes of a list, each once, where that is shorter."""
    texts = list(map(json_text, shapes))
    first = list(dict.fromkeys(texts))
    picked = {PICKED: list(map(first.index, texts)), OF: [shapes[texts.index(text)] for text in first]}
    return picked if len(json_text(picked)) < len(json_text(shapes)) else shapes


def _steps(values: list[Any]) -> Any:
    """A column by its differences, where that is shorter and all numbers are of one type."""
    if {int} != set(map(type, values)) != {float}:
        return values
    differences = [values[0], *(after - before for before, after in pairwise(values))]
    steps = {STEPS: [each for step, those in groupby(differences) for each in (step, len(list(those)))]}
    is_shorter = len(json_text(steps)) < len(json_text(values))
    # From 2**53 on differences are not exact.
    return steps if is_shorter and _numbers(steps) == values else values


def _numbers(shared: Any) -> Any:
    """The column that `_steps` got."""
    if not isinstance(shared, dict):
        return copy.deepcopy(shared)
    steps, times = shared[STEPS][::2], shared[STEPS][1::2]
    if min(times) < 0 or sum(times) >= MOST:
        raise ValueError(f"a list of {sum(times)} numbers")
    return list(accumulate(step for step, count in zip(steps, times, strict=True) for _ in range(count)))


def _tables(columns: Mapping[str, Any]) -> list[Any]:
    """The tables or rows of a list by their columns."""
    count = columns[COUNT]
    if not 0 <= count < MOST:
        raise ValueError(f"a list of {count} tables")
    whole = {key: each * count if len(each) == 1 else each for key, each in columns.items() if key != COUNT}
    tables = [{key: copy.copy(each[place]) for key, each in whole.items()} for place in range(count)]
    return [list(each.values()) for each in tables] if f"{ROW}0" in whole else tables


def _plain(value: Any, shared: Mapping[str, Any]) -> Any:
    """A value of an older line: {ID: id, ...own} is the shared one of that id with the own keys in it."""
    if isinstance(value, list):
        return [_plain(each, shared) for each in value]
    if not isinstance(value, dict):
        return value
    own = {key: _plain(each, shared) for key, each in value.items() if key != ID}
    if COUNT in own:
        return _tables(own)
    return _merged(_plain(shared[value[ID]], shared), own) if ID in value else own


def _merged(base: Any, own: Mapping[str, Any]) -> Any:
    if not own:
        return base
    merged = dict(base)
    for key, value in own.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _number(word: str) -> int | float | str:
    """The number that is written like this, else the word."""
    try:
        number = json_of(word)
    except ValueError:
        return word
    return number if isinstance(number, int | float) and json_text(number) == word else word


def _word(value: int | float | str) -> str:
    return value if isinstance(value, str) else json_text(value)


def _is_table(values: list[Any]) -> bool:
    is_tables = len(values) > 1 and all(isinstance(each, dict) and each for each in values)
    return is_tables and all(each.keys() == values[0].keys() for each in values)


def _is_matrix(values: list[Any]) -> bool:
    is_rows = len(values) > 1 and all(isinstance(each, list) and each for each in values)
    return is_rows and all(len(each) == len(values[0]) for each in values) and not _has_text(values)


def _has_text(value: Any) -> bool:
    """Whether a text or a table stands anywhere in it."""
    return any(map(_has_text, value)) if isinstance(value, list) else isinstance(value, str | dict)


def _is_measured(value: Any) -> bool:
    """Whether a number in it is not whole."""
    if isinstance(value, list):
        return any(map(_is_measured, value))
    return isinstance(value, float) and not value.is_integer()
