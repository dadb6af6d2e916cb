"""The values that a config requested before it was resolved: with them a recorded run can be repeated otherwise.

A resolved config says what ran, e.g. optimizer.momentum = 0 because the compressor applied it. Another compressor may
need the momentum that was requested, so the config's table `asked` keeps the given values, by section and key.
"""

from collections.abc import Collection, Mapping
from typing import Any

Tables = dict[str, Any]

ASKED = "asked"
FILLED_FOR = {"compressor": ("compressor", "optimizer", "collective"), "scheduler": ("collective",)}
"""Sections whose keys resolving fills in or changes to suit a plugin, by the plugin's section."""


def difference(given: Mapping[str, Any], resolved: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The given values, by section and key, that `resolved` replaced or an earlier resolution replaced."""
    replaced = {section: dict(keys) for section, keys in given.get(ASKED, {}).items()}
    for section, keys in given.items():
        if section not in (ASKED, "name"):
            for key, value in keys.items():
                if resolved[section][key] != value:
                    replaced.setdefault(section, {})[key] = value
    return replaced


def go_back(tables: Tables, replaced: Collection[str]) -> None:
    """Restore the requested values of every section that was resolved to suit a plugin of the sections `replaced`."""
    for section in dict.fromkeys(each for name in FILLED_FOR if name in replaced for each in FILLED_FOR[name]):
        restore(tables, section)


def restore(tables: Tables, section: str) -> None:
    """Put the requested values of this section back in place."""
    before = _requested(tables).pop(section, None)
    if isinstance(before, Mapping):
        # Options of a plugin that was filled in go with it.
        kept = {} if "name" in before else tables.get(section, {})
        tables[section] = {**kept, **before}


def forget(tables: Tables, section: str, key: str) -> None:
    """Drop the requested value of a key that has been given anew."""
    keys = _requested(tables).get(section)
    if isinstance(keys, dict) and key in keys:
        del keys[key]
        if not keys:
            del _requested(tables)[section]


def _requested(tables: Tables) -> dict[str, Any]:
    values = tables.get(ASKED)
    return values if isinstance(values, dict) else {}
