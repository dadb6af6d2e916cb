"""All-reduce algorithms: one per file; `build(name, **options)` makes one."""

from typing import Any

from wirebench.collectives.plan import Collective
from wirebench.plugins import Plugins

HELPERS = frozenset({"calls", "course", "groups", "merging", "plan", "routing", "segments", "serve"})
PLUGINS = Plugins("wirebench.collectives", "collective", helpers=HELPERS)


def available() -> list[str]:
    """Names that `build` takes."""
    return PLUGINS.available()


def build(name: str, **options: Any) -> Collective:
    """The collective `name` with its options."""
    return PLUGINS.build(name, **options)
