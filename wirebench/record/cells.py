"""A line of a results file as what it was written from: every value is of its declared type, else ValueError.

What a file says of the machine it was measured on is checked here, too.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from wirebench.errors import UserError
from wirebench.utils import json_lines

Cell = TypeVar("Cell")
MOST = 2**53
"""Counts are below this: as a float, as which they are calculated with, each is exact."""


@dataclasses.dataclass(frozen=True)
class Measurement(Generic[Cell]):
    """A file of cells: `header` says where and how they were measured (environment, command, cluster)."""

    header: dict[str, Any]
    cells: tuple[Cell, ...]


def load(
    path: Path, kind: str, tool: str, check: Callable[[dict[str, Any]], None], read: Callable[[Any], Cell]
) -> Measurement[Cell]:
    """A file that `tool` wrote; UserError, naming file and line, for anything else.

    check  raises ValueError for a header that readers of the cells could not use
    read   the cell of a line; ValueError or UserError where it is none
    """
    header, lines = json_lines.load(path, kind, tool)
    try:
        check(header)
    except ValueError as error:
        raise UserError(f"{path}: line 1: {error}") from error
    cells = []
    for number, line in enumerate(lines, 2):
        try:
            cells.append(read(line))
        except (ValueError, UserError) as error:
            raise UserError(f"{path}: line {number} is not a cell of this version: {error}") from error
    return Measurement(header, tuple(cells))


def decoded(kind: type[Cell], line: Any, newer: Collection[str] = ()) -> Cell:
    """A dataclass from the JSON object of all its fields; older files may lack `newer` ones, which have defaults."""
    hints = _hints(typing.cast(Any, kind))
    names = [each.name for each in dataclasses.fields(typing.cast(Any, kind))]
    if not isinstance(line, dict) or not set(names) - set(newer) <= set(line) <= set(names):
        raise ValueError(f"needs {', '.join(names)}")
    values = {}
    for name in line:
        try:
            values[name] = _as(hints[name], line[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return kind(**values)


def check_times(name: str, seconds: tuple[float, ...], zero: bool = False) -> None:
    """ValueError unless all these are times; `zero`: some may have taken none."""
    if not all(math.isfinite(each) and (each > 0 or (zero and each == 0)) for each in seconds):
        raise ValueError(f"{name}: needs times")


def check_environment(header: Mapping[str, Any]) -> None:
    """ValueError unless figures can say where and with which commit something was measured."""
    environment = header.get("environment", {})
    if not isinstance(environment, Mapping):
        raise ValueError("environment: needs a table")
    git, cpu, gpus = environment.get("git"), environment.get("cpu"), environment.get("gpus")
    if git is not None and not (isinstance(git, dict) and isinstance(git.get("commit"), str) and "dirty" in git):
        raise ValueError("environment: needs git's commit, and whether there were changes")
    if cpu is not None and not isinstance(cpu, dict):
        raise ValueError("environment: needs a table of the CPU")
    if gpus is not None and not (isinstance(gpus, list) and all(isinstance(gpu, str) for gpu in gpus)):
        raise ValueError("environment: needs a list of GPUs")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a class's fields; a file has hundreds of lines of one class."""
    return typing.get_type_hints(kind)


def _as(hint: Any, value: Any) -> Any:
    """The JSON value as a value of this type."""
    if hint is float and type(value) is float:  # most of a file is
        return value
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _as(next(each for each in inner if each is not types.NoneType), value)
    if origin is typing.Literal and isinstance(value, str) and value in inner:
        return value
    if origin is dict and isinstance(value, dict):
        return {_as(inner[0], key): _as(inner[1], each) for key, each in value.items()}
    if origin is tuple and isinstance(value, list):
        each_of = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(each_of) == len(value):
            return tuple(map(_as, each_of, value))
    if origin is None and _is_plain(hint, value):
        return value
    raise ValueError(f"has {value!r:.40}")


def _is_plain(hint: type, value: Any) -> bool:
    if hint is bool or isinstance(value, bool):
        return hint is bool and isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and 0 <= value < MOST
    if hint is float:
        return isinstance(value, float) or (isinstance(value, int) and abs(value) < MOST)
    return isinstance(value, hint)
