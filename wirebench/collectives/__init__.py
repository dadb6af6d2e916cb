"""All-reduce algorithms: one per file; `build(name, **options)` makes one."""

from typing import Any

from wirebench.collectives.plan import Collective
from wirebench.collectives.wire import formatted as formatted
from wirebench.config.plugins import Plugins
from wirebench.errors import UserError

PLUGINS = Plugins("wirebench.collectives", "collective", helpers=frozenset({"plan", "rounds", "wire"}))


def available() -> list[str]:
    """Names that `build` takes."""
    return PLUGINS.available()


def build(name: str, **options: Any) -> Collective:
    """The collective `name` with its options; `formatted` gives it a wire format."""
    for key in options.keys() & {"wire", "wire_within"}:
        raise UserError(
            f"collective.{key}: is a key of a config; in a program it is "
            f"collectives.formatted(collectives.build({name!r}), compressors.wire({options[key]!r}))"
        )
    return PLUGINS.build(name, **options)
