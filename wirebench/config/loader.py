"""What a run is: frozen sections read from TOML, overridden by `section.key=value`, dumped with every choice resolved.

Sections that name a plugin ([model], [data], [compressor], [scheduler], [collective]) hand the keys that are not listed
in sections.py to the plugin's constructor, which declares their names and types. A file may extend another one.
"""

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.config import requested, validation
from wirebench.config.plugins import check_type, current, suggest
from wirebench.config.sections import (
    AS_THE_PAPER,
    CollectiveConfig,
    CompressorConfig,
    Config,
    DataConfig,
    EngineConfig,
    ExpectedConfig,
    ModelConfig,
    NetworkConfig,
    OptimizerConfig,
    OutputConfig,
    SchedulerConfig,
    TrainConfig,
)
from wirebench.errors import UserError
from wirebench.utils.package import CONFIGS
from wirebench.utils.parsing import value_of
from wirebench.utils.user_files import read_toml

__all__ = [
    "AS_THE_PAPER",
    "SECTIONS",
    "CollectiveConfig",
    "CompressorConfig",
    "Config",
    "DataConfig",
    "EngineConfig",
    "ExpectedConfig",
    "ModelConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "OutputConfig",
    "SchedulerConfig",
    "TrainConfig",
    "dump",
    "from_dict",
    "load",
    "overridden",
    "to_dict",
]

HERE = Path("configs")
FOLDERS = ("papers", "replay", "synthetic", "tables")
"""Folders of shipped configs."""
NO_SECTIONS = ("name", requested.ASKED)
EXTENDS, EXPECTED = "extends", "expected"
SAME_RUN = (
    "output.", "engine.", "expected.", "data.root", "data.workers", "data.download", "train.seed", "train.resume",
    "train.keep", "train.checkpoint",
)  # fmt: skip
"""Begins of overrides with which a run still is the one that the file expects its numbers of."""
SECTIONS: dict[str, type] = {
    name: kind for name, kind in typing.get_type_hints(Config).items() if name not in NO_SECTIONS
}


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file and apply `section.key=value` overrides; UserError says what is wrong and where.

    A file with `extends = "FILE"`, seen from its own folder, has that file's keys where it does not give its own. What
    the other expects of its runs is not taken over. FILE extends none itself. Nor is what the file expects, where an
    override makes it another run.
    """
    path = find(path)
    table = _extended(path)
    _refuse_twice(overrides)
    if not all(text.startswith(SAME_RUN) for text in overrides):
        table.pop(EXPECTED, None)
    return overridden(table, overrides, path.stem)


def find(path: str | Path) -> Path:
    """The file of a config: a path, or else the name of a shipped one, as `smoke` or `synthetic/toy`."""
    name = Path(path)
    if name.is_absolute() or ".." in name.parts:
        return name
    shipped = CONFIGS / f"{path}.toml"
    taken = Path(path).exists() and not Path(path).is_dir()
    return shipped if not taken and shipped.is_file() else Path(path)


def overridden(table: dict[str, Any], overrides: Sequence[str], name: str = "run") -> Config:
    """The Config of nested tables, which are changed, with `section.key=value` overrides, as `load` applies them."""
    _lay(table, [_given(text) for text in overrides])
    return from_dict(table, name)


def from_dict(table: Mapping[str, Any], name: str = "run") -> Config:
    """A Config from nested tables, every key and type checked. `name` serves where the table has no name of its own."""
    sections: dict[str, Any] = {"name": table.get("name", name)}
    check_type("name", sections["name"], str)
    for section in table.keys() - set(NO_SECTIONS):
        sections[section] = _section(section, _is_table(section, table[section]))
    before = _is_table(requested.ASKED, table.get(requested.ASKED, {}))
    for section, keys in before.items():
        _section(section, _is_table(section, keys))
    sections[requested.ASKED] = {section: dict(keys) for section, keys in before.items()}
    config = Config(**sections)
    validation.check(config)
    return config


def to_dict(config: Config) -> dict[str, Any]:
    """Nested tables that `from_dict` reads back; options stand beside their section's keys."""
    tables: dict[str, Any] = {"name": config.name}
    for section in SECTIONS:
        values = dataclasses.asdict(getattr(config, section))
        values.update(values.pop("options", {}))
        tables[section] = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    if config.asked:
        tables[requested.ASKED] = {section: dict(keys) for section, keys in config.asked.items()}
    return tables


def dump(config: Config) -> str:
    """The config as TOML text, every key written out: reading it back repeats the run."""
    import tomli_w  # of which nothing that only reads configs or measures has need

    return tomli_w.dumps(to_dict(config))


def _extended(path: Path) -> dict[str, Any]:
    """The tables of a file, laid over the tables of the file that it extends."""
    own = _tables(path)
    other = own.pop(EXTENDS, None)
    if other is None:
        return own
    check_type(f"{path}: {EXTENDS}", other, str)
    try:
        table = _tables(path.parent / other)
    except UserError as error:
        raise UserError(f"{path}: {EXTENDS}: {error}") from error
    if EXTENDS in table:
        raise UserError(f"{path}: {EXTENDS}: {other} extends {table[EXTENDS]!r}; a file can extend one that does not")
    for mine in ("name", EXPECTED):
        table.pop(mine, None)
    sections = {section: _is_table(section, keys) for section, keys in own.items() if section not in NO_SECTIONS}
    _lay(table, [_Given(section, key, value) for section, keys in sections.items() for key, value in keys.items()])
    return table | {key: own[key] for key in NO_SECTIONS if key in own}


def _tables(path: Path) -> dict[str, Any]:
    return read_toml(path, _meant(path))


def _meant(path: Path) -> str:
    """The existing file that was meant, as the end of an error line: of the same name elsewhere, or of one like it."""
    if path.exists():
        return ""
    if str(path) in FOLDERS:
        return f"; there is: {shipped_names(path)}"
    folders = {path.parent, HERE}
    known = sorted({file for folder in folders for depth in ("*.toml", "*/*.toml") for file in folder.glob(depth)})
    near = get_close_matches(path.stem, {file.stem for file in known}, 1)
    alike = get_close_matches(str(path), [str(file) for file in known if file.stem in near], 1, 0.0)
    if alike:
        return f"; did you mean {alike[0]}?"
    names = [file.relative_to(CONFIGS).with_suffix("").as_posix() for file in sorted(CONFIGS.rglob("*.toml"))]
    shipped = [name for name in names if name.rpartition("/")[2] == path.stem]
    shipped = shipped or get_close_matches(str(path), names, 1)
    if shipped:
        return f"; did you mean {shipped[0]}, which is shipped?"
    return f"; there is: {shipped_names()}" if path.suffix != ".toml" else ""


def shipped_names(folder: Path = Path()) -> str:
    """The names of the configs that are shipped in a folder of FOLDERS, or above them, in words."""
    names = sorted(file.relative_to(CONFIGS).with_suffix("").as_posix() for file in (CONFIGS / folder).glob("*.toml"))
    more = "" if folder.name else f", and those in {', '.join(FOLDERS)}, such as synthetic/toy"
    return ", ".join(names) + more


def _section(section: str, keys: Mapping[str, Any]) -> Any:
    if section not in SECTIONS:
        raise UserError(f"{section}: no such section; {suggest(section, list(SECTIONS))}")
    hints = _hints(section)
    takes_options = hints.pop("options", None) is not None
    known, options = {}, {}
    for key, value in keys.items():
        if key in hints:
            check_type(f"{section}.{key}", value, hints[key])
            known[key] = current(value) if key == "name" else _frozen(value, hints[key])
        elif takes_options:
            options[key] = _frozen(value, Any)
        else:
            raise UserError(f"{section}.{key}: no such key; {suggest(key, list(hints))}")
    return SECTIONS[section](**known, options=options) if takes_options else SECTIONS[section](**known)


def _hints(section: str) -> dict[str, Any]:
    return typing.get_type_hints(SECTIONS[section]) if section in SECTIONS else {}


def _frozen(value: Any, hint: Any) -> Any:
    """A TOML value as a section keeps it: arrays are tuples, and whole numbers floats where a float is declared."""
    if isinstance(value, list):
        item = typing.get_args(hint)[0] if typing.get_args(hint) else Any
        return tuple(_frozen(each, item) for each in value)
    return float(value) if hint is float else value


def _refuse_twice(overrides: Sequence[str]) -> None:
    given: dict[str, str] = {}
    for text in overrides:
        key, _, value = text.partition("=")
        if key in given:
            raise UserError(f"{key}: is given twice on the command line, as {given[key]!r} and as {value!r}")
        given[key] = value


class _Given(NamedTuple):
    """A key that is laid over a file's, and its value."""

    section: str
    key: str
    value: Any


def _given(text: str) -> _Given:
    """An override's key and value."""
    key, equals, value = text.partition("=")
    section, dot, name = key.partition(".")
    if not equals or not dot or not name:
        raise UserError(f"{text!r}: an override is section.key=value, e.g. train.max_steps=20")
    return _Given(section, name, _parse(value, _hints(section).get(name)))


def _lay(table: dict[str, Any], keys: Sequence[_Given]) -> None:
    """Lay keys over a file's table; a key that names another plugin removes the options of the file's plugin."""
    replaced = {each.section for each in keys if _replaces_plugin(table, each)}
    requested.go_back(table, replaced)
    # Momentum 0 takes it from the compressor, so that the optimizer has it.
    if _Given("compressor", "momentum", 0) in keys:
        requested.restore(table, "optimizer")
    for section in replaced:
        # The file's options belong to the plugin that the file names.
        table[section] = {key: value for key, value in table[section].items() if key in _hints(section)}
    for section, key, value in keys:
        _is_table(section, table.setdefault(section, {}))
        table[section][key] = value
        requested.forget(table, section, key)


def _replaces_plugin(table: Mapping[str, Any], given: _Given) -> bool:
    """Whether another plugin is named than the file does."""
    section = table.get(given.section)
    return given.key == "name" and isinstance(section, Mapping) and section.get("name", given.value) != given.value


def _is_table(section: str, keys: Any) -> Mapping[str, Any]:
    if not isinstance(keys, Mapping):
        raise UserError(f"{section}: is a section ([{section}] with keys below it), got {keys!r}")
    return keys


def _parse(text: str, hint: Any) -> Any:
    """As value_of; what is to be a text stays the text."""
    value = value_of(text)
    return text if hint is str and not isinstance(value, str) else value
