"""Communication schedulers: one rule per file; `build(name, **options)` makes one."""

if __name__ != "wirebench.schedulers":
    raise ImportError("schedulers is imported as: from wirebench import schedulers")

from typing import Any

from wirebench.config.plugins import Plugins
from wirebench.gradient.contract import Scheduler

PLUGINS = Plugins("wirebench.schedulers", "scheduler")


def available() -> list[str]:
    """Names that `build` takes."""
    return PLUGINS.available()


def build(name: str, **options: Any) -> Scheduler:
    """The scheduler `name` with its options."""
    return PLUGINS.build(name, **options)
