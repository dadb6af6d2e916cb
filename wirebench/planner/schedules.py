"""Schedules that `wirebench simulate` and `advise` try: names, with options as name:key=value."""

from collections.abc import Sequence

from wirebench import schedulers
from wirebench.config.plugins import own_keys
from wirebench.errors import UserError
from wirebench.exchange.scheduler import Scheduler
from wirebench.planner.compositions import check_names
from wirebench.utils.cli import naming
from wirebench.utils.parsing import plugin_of


def built(texts: Sequence[str]) -> dict[str, Scheduler]:
    """Each text's scheduler, no text twice; UserError for a name or an option that does not exist."""
    found = {}
    for text in dict.fromkeys(texts):
        check_names("--schedulers", [text], schedulers.PLUGINS)
        name, options = plugin_of(text)
        for key in options.keys() & set(own_keys(schedulers.PLUGINS.kind)):
            raise UserError(f"--schedulers: {text!r}: {key} goes into the config of a run")
        keys = dict.fromkeys((*options, *schedulers.PLUGINS.parameters(name)))
        words = {f"scheduler.{key}": f"--schedulers {name}:{key}" for key in keys}
        with naming({"scheduler": "--schedulers", "scheduler.name": "--schedulers", **words}):
            schedulers.PLUGINS.check(name, options, in_config=False)
            found[text] = schedulers.build(name, **options)
    return found
