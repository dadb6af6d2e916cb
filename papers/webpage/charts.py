"""Charts as the page embeds them: one for each panel, so that panels stand below each other on a narrow screen."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Spec = dict[str, Any]
"""A Vega-Lite specification."""
SHARED = ("$schema", "config", "background")
"""Keys that panels share."""


class Panel(NamedTuple):
    """A chart, and the title that the page says in words."""

    title: str
    subtitle: str
    spec: Spec


def panels(spec: Mapping[str, Any]) -> Iterator[Panel]:
    """The charts of a figure: those that it sets side by side, or itself."""
    parts = next((spec[key] for key in ("concat", "hconcat", "vconcat") if key in spec), None)
    if parts is None:
        yield Panel(*heading(spec), _untitled(spec))
        return
    shared = {key: spec[key] for key in SHARED if key in spec}
    for part in parts:
        for panel in panels({**shared, **part}):
            yield panel._replace(spec=_with_data(panel.spec, spec.get("datasets", {})))


def heading(spec: Mapping[str, Any]) -> tuple[str, str]:
    """A figure's title and what stands below it."""
    title = spec.get("title", "")
    if isinstance(title, str):
        return title, ""
    return _joined(title.get("text", "")), _joined(title.get("subtitle", ""))


def is_one(spec: Mapping[str, Any]) -> bool:
    """Whether a figure is one chart, whose title is the figure's."""
    return not any(key in spec for key in ("concat", "hconcat", "vconcat"))


def script(spec: Spec) -> str:
    """The chart as JSON for a script element; the same for the same chart."""
    return json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else " ".join(text)


def _untitled(spec: Mapping[str, Any]) -> Spec:
    # A title in words can be selected, and folds on a narrow screen.
    return {key: value for key, value in spec.items() if key != "title"}


def _with_data(panel: Spec, datasets: Mapping[str, Any]) -> Spec:
    """The panel with the figure's data that it names."""
    named = {each["name"] for each in _data(panel) if "name" in each}
    mine = {name: rows for name, rows in datasets.items() if name in named}
    return {**panel, "datasets": {**mine, **panel.get("datasets", {})}} if mine else panel


def _data(spec: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(spec, Mapping):
        if isinstance(spec.get("data"), Mapping):
            yield spec["data"]
        for key, value in spec.items():
            if key != "datasets":
                yield from _data(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from _data(value)
