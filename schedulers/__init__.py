"""Communication schedulers: one rule per file; `build(name, **options)` makes one."""

if __name__ != "wirebench.schedulers":
    raise ImportError("schedulers is imported as: from wirebench import schedulers")

from typing import Any

from wirebench.config.plugins import Plugins
from wirebench.errors import UserError
from wirebench.exchange.scheduler import Scheduler

PLUGINS = Plugins("wirebench.schedulers", "scheduler", aliases={"sync_easgd": "single"})


def available() -> list[str]:
    """Names that `build` takes."""
    return PLUGINS.available()


def build(name: str, **options: Any) -> Scheduler:
    """The scheduler `name` with its options."""
    made: Scheduler = PLUGINS.build(name, **options)
    check(made, name)
    return made


def check(scheduler: object, name: str) -> None:
    """UserError for an object that names no driver, as schedulers of version 0.1."""
    if not hasattr(scheduler, "driver"):
        raise UserError(
            f"scheduler.name: {name!r} has no driver: its base is Scheduler (wirebench/exchange/scheduler.py)"
        )
