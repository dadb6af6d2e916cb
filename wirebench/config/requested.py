"""What a config asked for before it was resolved, kept beside it: a recorded run can be repeated with another method.

A resolved config says what ran, e.g. optimizer.momentum = 0 because the compressor applied it. That is no answer to
what another compressor should do, so the table `asked` keeps what was given, by section and key.
"""

from collections.abc import Collection, Mapping
from typing import Any

Tables = dict[str, Any]

ASKED = "asked"
FILLED_FOR = {"compressor": ("compressor", "optimizer", "collective"), "scheduler": ("collective",)}
"""Sections with keys that are filled in or changed to suit the plugin of a section."""


def difference(given: Mapping[str, Any], resolved: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The given values of all keys that have another one in `resolved`; what was asked earlier stays with the rest."""
    found = {section: dict(keys) for section, keys in given.get(ASKED, {}).items()}
    for section, keys in given.items():
        if section not in (ASKED, "name"):
            for key, value in keys.items():
                if resolved[section][key] != value:
                    found.setdefault(section, {})[key] = value
    return found


def go_back(tables: Tables, replaced: Collection[str]) -> None:
    """Put what was asked back in place, as far as it was resolved for the plugins of the sections `replaced`."""
    for section in dict.fromkeys(each for name in FILLED_FOR if name in replaced for each in FILLED_FOR[name]):
        restore(tables, section)


def restore(tables: Tables, section: str) -> None:
    """Put what was asked of this section back in place."""
    before = _asked(tables).pop(section, None)
    if isinstance(before, Mapping):
        # Options of a plugin that was filled in go with it.
        kept = {} if "name" in before else tables.get(section, {})
        tables[section] = {**kept, **before}


def forget(tables: Tables, section: str, key: str) -> None:
    """The key has been given anew."""
    keys = _asked(tables).get(section)
    if isinstance(keys, dict) and key in keys:
        del keys[key]
        if not keys:
            del _asked(tables)[section]


def _asked(tables: Tables) -> dict[str, Any]:
    found = tables.get(ASKED)
    return found if isinstance(found, dict) else {}
