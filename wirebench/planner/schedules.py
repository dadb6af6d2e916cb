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
        try:
            name, options = plugin_of(text)
        except ValueError as error:
            raise UserError(f"--schedulers: {error}") from error
        check_names("--schedulers", [name], schedulers.PLUGINS)
        for key in options.keys() & set(own_keys(schedulers.PLUGINS.kind)):
            raise UserError(f"--schedulers: {text!r}: {key} goes into the config of a run")
        keys = dict.fromkeys((*options, *schedulers.PLUGINS.parameters(name)))
        words = {f"scheduler.{key}": f"--schedulers {name}:{key}" for key in keys}
        with naming({"scheduler": "--schedulers", "scheduler.name": "--schedulers", **words}):
            schedulers.PLUGINS.check(name, options, in_config=False)
            found[text] = schedulers.build(name, **options)
    return found


def words_of(text: str) -> str:
    """The schedule with its options that differ from the defaults, in the order of their names."""
    name, options = plugin_of(text)
    usual = schedulers.PLUGINS.defaults(name)
    other = {key: value for key, value in sorted(options.items()) if value != usual.get(key)}
    return ":".join([name, *(f"{key}={_text(value)}" for key, value in other.items())])


def _text(value: object) -> str:
    """An option's value as on the command line: a number without trailing zeros."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float) else str(value)
