"""All-reduce algorithms: one per file; `build(name, **options)` makes one."""

from typing import Any

from wirebench.collectives.plan import Collective
from wirebench.collectives.wire import formatted as formatted
from wirebench.config.plugins import Plugins

PLUGINS = Plugins("wirebench.collectives", "collective", helpers=frozenset({"plan", "rounds", "wire"}))


def available() -> list[str]:
    """Names that `build` takes."""
    return PLUGINS.available()


def build(name: str, **options: Any) -> Collective:
    """The collective `name` with its options."""
    return PLUGINS.build(name, **options)
