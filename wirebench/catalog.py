"""What can be composed, as text: for --list and --help."""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence

from wirebench.config import SECTIONS
from wirebench.errors import UserError
from wirebench.plugins import Plugins, type_name


def sections() -> str:
    """Every section of a config with its keys, what they mean and their defaults."""
    lines = []
    for name, kind in SECTIONS.items():
        first, *rest = inspect.cleandoc(kind.__doc__ or "").splitlines()
        lines.append(f"[{name}]  {first.removeprefix(f'[{name}]: ')}")
        lines += [f"  {line}" for line in rest if line.strip()]
        for each in dataclasses.fields(kind):
            if each.name != "options":
                lines.append(f"  {each.name} = {each.default!r}")
    return "\n".join(lines)


def plugins(kinds: Sequence[Plugins], engines: Mapping[str, str]) -> str:
    """Every plugin with its first line of documentation and its options."""
    lines = []
    for kind in kinds:
        lines.append("data sets" if kind.kind == "data" else f"{kind.kind}s")
        lines += [line for name in kind.available() for line in _plugin(kind, name)]
        lines.append("")
    lines.append("engines")
    lines += [f"  {name:16} {text}" for name, text in engines.items()]
    return "\n".join(lines)


def _plugin(kind: Plugins, name: str) -> list[str]:
    try:
        # The module's first paragraph says what the method is; the class's, what it takes.
        about = inspect.getdoc(inspect.getmodule(kind.load(name))) or ""
        options = kind.options(name)
    except (UserError, ImportError) as error:
        return [f"  {name:16} cannot be loaded: {error}"]
    first_paragraph = " ".join(about.partition("\n\n")[0].split())
    lines = [f"  {name:16} {first_paragraph}"]
    types = kind.types(name)
    for option, parameter in options.items():
        default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
        lines.append(f"      {option}{default}   ({type_name(types.get(option, str))})")
    return lines
