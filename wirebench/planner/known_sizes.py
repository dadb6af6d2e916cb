"""Request sizes of the suite's compressors that were played before, so that a plan need not play them.

configs/request_sizes.json has them, as `python scripts/request_sizes.py` writes it. Whatever it lacks is played when it
is asked for: other densities, shapes of layers or numbers of workers, and a user's own compressor.
"""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wirebench.costmodel.played_exchange import RequestSize
from wirebench.costmodel.request_sizes import Asked, Known, Sizes
from wirebench.errors import UserError
from wirebench.gradient.contract import Method
from wirebench.gradient.flat import Layer
from wirebench.gradient.requests import Gather, Merge, Reduce, Request, Route, Sum
from wirebench.utils.json_lines import json_text
from wirebench.utils.package import CONFIGS

PATH = CONFIGS / "request_sizes.json"
WORLDS = (2, 3, 4, 8, 16, 24, 32, 64, 128, 256, 1000)
"""Numbers of ranks that are played. What all of them have in common counts for any number."""
ANY = "any"
KINDS: dict[str, type[Request]] = {kind.__name__: kind for kind in (Sum, Reduce, Gather, Merge, Route)}


def of(name: str, density: float | None, path: Path = PATH) -> Callable[[int], Known]:
    """A function from the number of ranks to the known sizes of a compressor. density: None if it has none."""
    by_world = _table(path).get(label(name, density), {})
    return lambda size: read(by_world.get(ANY, [])) | read(by_world.get(str(size), []))


@functools.lru_cache(maxsize=4)
def _table(path: Path) -> dict[str, dict[str, list[Any]]]:
    found: dict[str, dict[str, list[Any]]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def label(name: str, density: float | None) -> str:
    """What the file calls a compressor at a density."""
    return name if density is None else f"{name} density={density!r}"


def read(entries: Iterable[Any]) -> dict[Asked, list[RequestSize]]:
    """The requests of the file's entries."""
    return {
        (tuple(map(tuple, shapes)), shaped, scale): [
            RequestSize(KINDS[kind], float(mean), *(more or [float(mean)])) for kind, mean, *more in requests
        ]
        for shapes, shaped, scale, requests in entries
    }


def written(sizes: Mapping[tuple[str, float | None], Mapping[int, Known]]) -> str:
    """The file's text, from what was played of each compressor at a density, by the number of ranks."""
    lines = []
    for (name, density), by_world in sizes.items():
        alike = _alike(by_world)
        worlds: dict[str, Known] = {ANY: alike} if alike else {}
        for size, known in by_world.items():
            if own := {asked: requests for asked, requests in known.items() if asked not in alike}:
                worlds[str(size)] = own
        inner = ",\n".join(f'  "{size}": {json_text(_entries(known))}' for size, known in worlds.items())
        lines.append(f' "{label(name, density)}": {{\n{inner}\n }}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _alike(by_world: Mapping[int, Known]) -> Known:
    """The entries that are equal for all world sizes."""
    first = by_world[WORLDS[0]]
    return {
        asked: requests
        for asked, requests in first.items()
        if all(by_world.get(size, {}).get(asked) == requests for size in WORLDS)
    }


def _entries(known: Known) -> list[Any]:
    return [
        [
            shapes,
            shaped,
            scale,
            [[each.kind.__name__, *_numbers(each)] for each in those],
        ]
        for (shapes, shaped, scale), those in sorted(known.items())
    ]


def _numbers(request: RequestSize) -> list[float]:
    """Bytes by the mean, and where a rank hands over more, or an element has another size, these."""
    mean, most, item = (int(each) if float(each).is_integer() else each for each in request[1:])
    return [mean] if (most, item) == (mean, RequestSize._field_defaults["item_bytes"]) else [mean, most, item]


def played(make: Callable[[], Method], layers: Sequence[Layer]) -> dict[int, Known]:
    """What a compressor asks for of these layers, each alone and all together, by the number of ranks.

    A number of ranks that it refuses is left out.
    """
    found: dict[int, Known] = {}
    for size in WORLDS:
        sizes = Sizes(make, size)
        try:
            sizes.of_sample()
            _ = sizes.by_value
            for bucket in (layers, *([layer] for layer in layers)):
                sizes.of(bucket)
        except UserError:
            continue
        found[size] = sizes.known
    return found
