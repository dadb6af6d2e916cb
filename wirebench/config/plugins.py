"""A plugin is a file: find it, check its options, build its one public class.

`Plugins("wirebench.compressors")` serves the folder `compressors/`: the name `topk` is its module `topk`, whose public
class is built with the options; their names and types are what its constructor declares. A dotted name (`mypkg.mine`)
loads a user's own module in the same way, or names a class in one, or a function that makes an object
(`mypkg.mine.Net`, `torchvision.models.resnet18`). What was not written for the suite need not annotate its options.
Other distributions give their plugins names of their own by entry points.
"""

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import math
import pkgutil
import sys
import traceback
import types
import typing
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from wirebench.config.sections import Config
from wirebench.errors import UserError
from wirebench.utils.extras import missing
from wirebench.utils.names import suggest
from wirebench.utils.parsing import plugin_of

BEFORE = "suite.studies."
MOVED = {"papers.convergence.perfect_sketch": "papers.accuracy.perfect_sketch"}

_built: dict[int, dict[str, Any]] = {}
"""What objects were built with, by their `id`."""


class Plugins:
    """The plugins of one package.

    package  importable name of the folder
    kind     the word that users know it by, which is also its section in a config ("compressor")
    helpers  modules of the folder that are not plugins
    fixed    constructor arguments that the suite passes itself, so that they are no options; a dotted one's need not
             have them
    aliases  earlier names of plugins, which configs and records may have, with the present ones
    """

    def __init__(
        self,
        package: str,
        kind: str,
        helpers: frozenset[str] = frozenset(),
        fixed: tuple[str, ...] = (),
        aliases: Mapping[str, str] = types.MappingProxyType({}),
    ) -> None:
        self.package, self.kind, self.helpers, self.fixed, self.aliases = package, kind, helpers, fixed, aliases

    def available(self) -> list[str]:
        """Names of the plugins in the folder, and of those that other distributions have as entry points, sorted."""
        return sorted({*self.own(), *entry_points(self.package)})

    def own(self) -> list[str]:
        """Names of the plugins in the folder, sorted."""
        names = _modules(tuple(importlib.import_module(self.package).__path__))
        return sorted(n for n in names if n not in self.helpers and not n.startswith("_"))

    def has(self, name: str) -> bool:
        """Whether a name without dots is a plugin's, now or earlier."""
        return name in self.available() or name in self.aliases

    def path(self, name: str) -> str:
        """The dotted path that a name stands for; UserError for a name that exists not, or twice."""
        if not isinstance(name, str):
            raise UserError(f"{self.kind}.name: needs a name, got {name!r}")
        name = self.aliases.get(name, name)
        if "." in name:
            return current(name)
        # What wirebench has itself counts: a distribution that comes later changes no run.
        if name in self.own():
            return f"{self.package}.{name}"
        foreign = entry_points(self.package).get(name, [])
        if not foreign:
            raise UserError(f"{self.kind}.name: no {self.kind} {name!r}; {suggest(name, self.available())}")
        if len(foreign) > 1:
            owners = " and ".join(owner for _, owner in foreign)
            raise UserError(f"{self.kind}.name: {name!r} is a plugin of {owners}; name one by its dotted path")
        return foreign[0][0]

    def is_own(self, name: str) -> bool:
        """Whether the plugin is one of the folder's."""
        return self.aliases.get(name, name) in self.own()

    def load(self, name: str) -> Any:
        """The public class of the plugin `name`, or what a dotted one names; UserError names those that exist."""
        path = self.path(name)
        if not all(part.isidentifier() for part in path.split(".")):
            raise UserError(f"{self.kind}.name: {name!r} is no module's name; a module of your own reads mypkg.mine")
        try:
            if (named := _member(path)) is not None:
                return named
            module = importlib.import_module(path)
        except (ImportError, SyntaxError) as error:
            if lacks := missing(error):
                raise UserError(f"{self.kind}.name: {name!r}: {lacks}") from error
            absent = isinstance(error, ModuleNotFoundError) and error.name
            parent, _, member = path.rpartition(".")
            within = sys.modules.get(parent) if absent == path else None
            if within is not None and not hasattr(within, "__path__"):
                text = f"module {parent!r} has no {member!r}; {suggest(member, _members(within))}"
            elif absent and (path + ".").startswith(f"{absent}."):
                text = f"no module {path!r} can be imported (its folder on PYTHONPATH?)"
            else:
                text = f"{name!r} cannot be imported: {fault(error)}"
            raise UserError(f"{self.kind}.name: {text}") from error
        return _public_class(module)

    def parameters(self, name: str) -> Mapping[str, inspect.Parameter]:
        """All arguments of the plugin `name`, those that the suite passes itself included."""
        return _signature(self.load(name)).parameters

    def options(self, name: str) -> dict[str, inspect.Parameter]:
        """The options that plugin `name` takes, by name; UserError for one without a name of its own or a type."""
        options = {key: p for key, p in self.parameters(name).items() if key not in self.fixed}
        if _is_foreign(self.path(name), self.load(name)):
            return {key: p for key, p in options.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        for key, parameter in options.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise UserError(f"{self.kind}.name: {name!r} takes {parameter}; a plugin names all its options")
            if parameter.annotation is parameter.empty:
                raise UserError(f"{self.kind}.{key}: {name!r} gives this option no type; annotate it")
        return options

    def defaults(self, name: str) -> dict[str, Any]:
        """Default values of the plugin's options; options without a default are left out."""
        options = self.options(name).items()
        known = {key: p.default for key, p in options if p.default not in (inspect.Parameter.empty, None)}
        if _is_foreign(self.path(name), self.load(name)):
            # Its other defaults are its own business: a function, a class, whatever no config can hold.
            return {key: value for key, value in known.items() if isinstance(value, bool | int | float | str)}
        return known

    def words_of(self, text: str) -> str:
        """NAME:key=value:... with the options that differ from the defaults, in the order of their names."""
        name, options = plugin_of(text)
        usual = self.defaults(name) if options else {}
        other = {key: value for key, value in sorted(options.items()) if value != usual.get(key)}
        return ":".join([name, *(f"{key}={_text(value)}" for key, value in other.items())])

    def check(self, name: str, options: Mapping[str, Any], *, in_config: bool = True) -> None:
        """Raise UserError unless the constructor of `name` takes these options, with these types.

        in_config  whether the error also lists the section's other keys
        """
        allowed = self.options(name)
        known = [*allowed, *(own_keys(self.kind) if in_config else ())]
        for key in options:
            if key not in allowed and not self._takes_any(name):
                raise UserError(f"{self.kind}.{key}: {name!r} has no such option; {suggest(key, known)}")
        for key, parameter in allowed.items():
            if key not in options and parameter.default is inspect.Parameter.empty:
                raise UserError(f"{self.kind}.{key}: {name!r} needs it ({type_name(self.types(name).get(key))})")
        types_of = self.types(name)
        for key, value in options.items():
            check_type(f"{self.kind}.{key}", value, types_of.get(key, Any))

    def build(self, name: str, /, **options: Any) -> Any:
        """An instance of plugin `name`; a ValueError of its constructor becomes a UserError that names the section."""
        mine = {key: value for key, value in options.items() if key not in self.fixed}
        self.check(name, mine)
        try:
            made = self.load(name)(**options)
        except UserError:
            raise
        except ValueError as error:
            first = str(error).partition(" ")[0]
            raise UserError(f"{self.kind}{'.' if first in self.options(name) else ': '}{error}") from error
        note_options(made, {key: p.default for key, p in self.options(name).items()} | mine)
        return made

    def given(self, name: str, **fixed: Any) -> dict[str, Any]:
        """The arguments in `fixed`, which the suite itself passes, that plugin `name` takes."""
        return {key: fixed[key] for key in fixed.keys() & self.parameters(name).keys()}

    def _takes_any(self, name: str) -> bool:
        """Whether it is a user's own, and takes options that it does not name."""
        kinds = {parameter.kind for parameter in self.parameters(name).values()}
        return _is_foreign(self.path(name), self.load(name)) and inspect.Parameter.VAR_KEYWORD in kinds

    def types(self, name: str) -> dict[str, Any]:
        """The declared type of every constructor argument; any type where a user's own says none that we know."""
        if _is_foreign(self.path(name), self.load(name)):
            plain = {key: p.annotation for key, p in self.parameters(name).items()}
            return {key: value if value in (bool, int, float, str) else Any for key, value in plain.items()}
        try:
            parameters = inspect.signature(self.load(name), eval_str=True).parameters
        except NameError as error:
            raise UserError(f"{self.kind}.name: {name!r} has a type that cannot be read: {error}") from error
        return {key: Any if p.annotation is p.empty else p.annotation for key, p in parameters.items()}


def _text(value: object) -> str:
    """An option's value as on the command line: a number without trailing zeros."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def note_options(made: object, options: Mapping[str, Any]) -> None:
    """Remember what an object was built with, for `options_of`; a type without weak references goes unnoticed."""
    if type(made).__weakrefoffset__:
        _built[id(made)] = dict(options)
        weakref.finalize(made, _built.pop, id(made), None).atexit = False


def options_of(made: object) -> dict[str, Any]:
    """What an object was built with, defaults included, by name.

    Of one that no `build` has made: those arguments of its constructor that it keeps under their own names.
    """
    if id(made) in _built:
        return dict(_built[id(made)])
    constructor = type(made).__init__
    names = inspect.signature(constructor).parameters if inspect.isfunction(constructor) else ()
    return {name: getattr(made, name) for name in names if hasattr(made, name)}


def current(name: str) -> str:
    """The present form of a dotted name: in records of version 0.1 the studies' compressors are below suite.studies."""
    name = f"papers.{name.removeprefix(BEFORE)}" if name.startswith(BEFORE) else name
    return MOVED.get(name, name)


@functools.cache
def entry_points(package: str) -> dict[str, list[tuple[str, str]]]:
    """Plugins that other distributions have for this package: by name (dotted path, distribution), once for each.

    In their pyproject.toml: [project.entry-points."wirebench.compressors"], mine = "mypkg.mine" or "mypkg.mine:Mine".
    A name with a dot looks like a path, and is left out.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for each in importlib.metadata.entry_points(group=package):
        path = f"{each.module}.{each.attr}" if each.attr else each.module
        owner = each.dist.name if each.dist else "an unknown distribution"
        if "." not in each.name and (path, owner) not in found.get(each.name, []):
            found.setdefault(each.name, []).append((path, owner))
    return found


@functools.cache
def _modules(path: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the modules in these folders, which are looked into once: every plugin that is built asks for them."""
    return tuple(module.name for module in pkgutil.iter_modules(path) if not module.ispkg)


def check_type(where: str, value: object, expected: object) -> None:
    """Raise UserError, naming `where`, unless `value` has the type `expected` (an annotation).

    Numbers are finite, and whole ones fit into 64 bits, as TOML wants it.
    """
    if not _fits(value, expected):
        raise UserError(f"{where}: needs {type_name(expected)}, got {value!r}")
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, float) and not math.isfinite(item):
            raise UserError(f"{where}: needs a finite number, got {item!r}")
        if isinstance(item, int) and not -(2**63) <= item < 2**63:
            raise UserError(f"{where}: needs a number of at most 64 bits")


def _fits(value: object, expected: Any) -> bool:
    if expected is Any:
        return True
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is typing.Literal:
        return any(value == each and type(value) is type(each) for each in arguments)
    if origin in (list, tuple, Sequence):
        return isinstance(value, list | tuple) and all(_fits(item, arguments[0]) for item in value)
    if expected is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or expected)


def type_name(expected: Any) -> str:
    """A type in words, for an error line."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(each) for each in arguments if each is not type(None))
    if origin is typing.Literal:
        named = ", ".join(str(each) for each in arguments if each != "")
        return " or ".join([f"one of {named}"] * bool(named) + ["empty"] * ("" in arguments))
    if arguments:
        return f"a list of {type_name(arguments[0])}"
    words = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    return words.get(expected, getattr(expected, "__name__", str(expected)))


def own_keys(section: str) -> list[str]:
    """The keys of a config's section that stand beside its plugin's options; none where it is no section."""
    kind = typing.get_type_hints(Config).get(section)
    return [f.name for f in dataclasses.fields(kind) if f.name != "options"] if kind else []


@functools.lru_cache(maxsize=256)
def _signature(plugin: Any) -> inspect.Signature:
    """What a class or a function takes: it is asked for again and again, and takes long to find out."""
    return inspect.signature(plugin)


def _member(path: str) -> Any:
    """The class or function that a dotted path names within a module; None where it names a module, or nothing."""
    parent, _, name = path.rpartition(".")
    if not parent or importlib.util.find_spec(parent) is None:
        return None
    found = getattr(importlib.import_module(parent), name, None)
    return found if inspect.isclass(found) or inspect.isfunction(found) else None


def _members(module: types.ModuleType) -> list[str]:
    """The public classes and functions that a module defines itself."""
    kinds = (type, types.FunctionType)
    named = {name: each for name, each in vars(module).items() if isinstance(each, kinds) and not name.startswith("_")}
    return sorted(name for name, each in named.items() if each.__module__ == module.__name__)


def _is_foreign(name: str, plugin: Any) -> bool:
    """Whether a plugin is named by itself, and not by a module that was written to hold it."""
    return "." in name and name.rpartition(".")[2] == getattr(plugin, "__name__", "")


def _public_class(module: types.ModuleType) -> type:
    mine = [
        c for n, c in vars(module).items() if inspect.isclass(c) and c.__module__ == module.__name__ and n[0] != "_"
    ]
    if len(mine) != 1:
        raise UserError(f"{module.__name__}: a plugin has exactly one public class, this has {len(mine)}")
    return mine[0]


def fault(error: ImportError | SyntaxError) -> str:
    """Where the import of a plugin failed, which may be a user's own module: the file, the line and what is wrong."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    # The import system's own frames have no file.
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen ")]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
    return where + (str(error).splitlines() or [type(error).__name__])[0]
