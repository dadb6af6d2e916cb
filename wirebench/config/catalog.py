"""What can be composed, as text: for --list, --list NAME and --help."""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import get_args, get_type_hints

from wirebench.config.loader import SECTIONS
from wirebench.config.plugins import Plugins, type_name
from wirebench.errors import UserError
from wirebench.utils.names import nearest
from wirebench.utils.own import trainer

EXPLAINS = "--list NAME [NAME ...] explains a plugin, an optimizer or a section and its options"


def sections() -> str:
    """Every section of a config with its keys, what they mean and their defaults."""
    return "\n".join(map(_section, SECTIONS))


def _section(name: str) -> str:
    first, *rest = inspect.cleandoc(SECTIONS[name].__doc__ or "").splitlines()
    lines = [f"[{name}]  {first.removeprefix(f'[{name}]: ')}", *(f"  {line}" for line in rest if line.strip())]
    shown = (each for each in dataclasses.fields(SECTIONS[name]) if each.name != "options")
    return "\n".join([*lines, *(f"  {each.name} = {each.default!r}" for each in shown)])


def _sections_of(word: str) -> list[str]:
    """The section that is called so; else those whose `name` may be that, and is no plugin's: sgd, adamw, muon."""
    if word in SECTIONS:
        return [word]
    hints = {section: get_type_hints(kind).get("name") for section, kind in SECTIONS.items()}
    return [section for section, hint in hints.items() if word in get_args(hint)]


def plugins(kinds: Sequence[Plugins], engines: Mapping[str, str]) -> str:
    """Every plugin with its first line of documentation and its options."""
    lines = []
    for kind in kinds:
        lines.append("data sets" if kind.kind == "data" else f"{kind.kind}s")
        lines += [line for name in kind.available() for line in _plugin(kind, name)]
        lines.append("")
    lines.append("engines")
    lines += [f"  {name:16} {text}" for name, text in engines.items()]
    return "\n".join([*lines, "", f"{trainer()} {EXPLAINS}"])


def explain(names: Sequence[str], kinds: Sequence[Plugins], engines: Mapping[str, str]) -> str:
    """What each of these plugins is, and its options; UserError for a name that nothing has.

    names    plugins of any kind, dotted names of a user's own modules, optimizers, sections of a config
    engines  what each engine is, by name
    """
    texts = []
    for name in names:
        owners = [kind for kind in kinds if kind.has(name)]
        if "." in name:
            owners = [Plugins("", "plugin", fixed=tuple(each for kind in kinds for each in kind.fixed))]
        texts += [_explained(kind, name) for kind in owners]
        if name in engines:
            texts.append(f"engine {name}\n\n{engines[name]}")
        elif not owners and (found := _sections_of(name)):
            texts += map(_section, found)
        elif not owners:
            known = [*engines, *SECTIONS, *(each for kind in kinds for each in kind.available())]
            raise UserError(f"--list: nothing is called {name!r}; {nearest(name, known)}--list alone shows all")
    return "\n\n\n".join(texts)


def _explained(kind: Plugins, name: str) -> str:
    plugin = kind.load(name)
    # The module's text says what the method is; the class's, what it takes. One that has none shows its base's.
    texts = [inspect.getdoc(inspect.getmodule(plugin)), inspect.getdoc(plugin)]
    options = _options(kind, name) or ["  none"]
    head = f"{'data set' if kind.kind == 'data' else kind.kind} {name}"
    return "\n\n".join([head, *(text for text in texts if text), "\n".join(["options:", *options])])


def _plugin(kind: Plugins, name: str) -> list[str]:
    try:
        # The module's first paragraph says what the method is; the class's, what it takes.
        about = inspect.getdoc(inspect.getmodule(kind.load(name))) or ""
        options = _options(kind, name)
    except UserError as error:
        return [f"  {name:16} cannot be loaded: {error}"]
    first_paragraph = " ".join(about.partition("\n\n")[0].split())
    return [f"  {name:16} {first_paragraph}", *(f"    {line}" for line in options)]


def _options(kind: Plugins, name: str) -> list[str]:
    """A line for each option, with its default and its type."""
    types, lines = kind.types(name), []
    for option, parameter in kind.options(name).items():
        default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
        lines.append(f"  {option}{default}   ({type_name(types[option])})")
    return lines
