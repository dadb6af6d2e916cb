"""Communication schedulers: one rule per file; `build(name, **options)` makes one."""

if __name__ != "wirebench.schedulers":
    raise ImportError("schedulers is imported as: from wirebench import schedulers")

from typing import Any

from wirebench.config.plugins import Plugins
from wirebench.exchange.scheduler import Scheduler, refuse_without_driver

PLUGINS = Plugins("wirebench.schedulers", "scheduler", aliases={"sync_easgd": "single", "native": "builtin"})


def available() -> list[str]:
    """Names that `build` takes."""
    return PLUGINS.available()


def build(name: str, **options: Any) -> Scheduler:
    """The scheduler `name` with its options."""
    made: Scheduler = PLUGINS.build(name, **options)
    refuse_without_driver(made, name)
    return made
