"""Request sizes of the suite's compressors that were played before, so that a plan need not play them.

data/request_sizes.json.gz has them, as `python scripts/request_sizes.py` writes it. Whatever it lacks is played when it
is asked for: other densities, shapes of layers or numbers of workers, and a user's own compressor.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wirebench.costmodel.played_exchange import RequestSize
from wirebench.costmodel.request_sizes import Asked, Known, Sizes
from wirebench.errors import UserError
from wirebench.gradient.contract import Method
from wirebench.gradient.flat import Layer
from wirebench.gradient.requests import Gather, Merge, Reduce, Request, Route, Sum
from wirebench.utils import user_files
from wirebench.utils.json_lines import json_text

PATH = Path(__file__).parent / "data" / "request_sizes.json.gz"
WORLDS = (2, 3, 4, 8, 16, 24, 32, 64, 128, 256, 1000)
"""Numbers of ranks that are played. What all of them have in common counts for any number."""
ANY = "any"
KINDS: dict[str, type[Request]] = {kind.__name__: kind for kind in (Sum, Reduce, Gather, Merge, Route)}


def of(name: str, density: float | None, path: Path = PATH) -> Callable[[int], Known]:
    """A function from the number of ranks to the known sizes of a compressor. density: None if it has none."""
    by_worlds = table(path).get(label(name, density), {})

    def known(size: int) -> Known:
        fitting = (entries for worlds, entries in by_worlds.items() if worlds == ANY or str(size) in worlds.split())
        return {asked: requests for entries in fitting for asked, requests in read(entries).items()}

    return known


@functools.lru_cache(maxsize=4)
def table(path: Path) -> dict[str, dict[str, list[Any]]]:
    """The file's entries, by compressors and numbers of ranks."""
    found: dict[str, dict[str, list[Any]]] = user_files.read_json(path)
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
    """The file, from what was played of each compressor at a density, by the number of ranks.

    An entry stands once, under all numbers of ranks for which it was played with the same requests.
    """
    content = {
        label(name, density): {worlds: _entries(known) for worlds, known in _alike(by_world).items()}
        for (name, density), by_world in sizes.items()
    }
    return json_text(content)


def _alike(by_world: Mapping[int, Known]) -> dict[str, dict[Asked, list[RequestSize]]]:
    """By numbers of ranks, divided by a space, or ANY for all that were played: the entries that are equal there."""
    found: dict[tuple[int, ...], dict[Asked, list[RequestSize]]] = {}
    for asked in dict.fromkeys(asked for known in by_world.values() for asked in known):
        worlds: dict[str, list[int]] = {}
        for size, known in by_world.items():
            if asked in known:
                worlds.setdefault(repr(known[asked]), []).append(size)
        for sizes in worlds.values():
            found.setdefault(tuple(sizes), {})[asked] = by_world[sizes[0]][asked]
    names = {sizes: ANY if sizes == WORLDS else " ".join(map(str, sizes)) for sizes in found}
    return {names[sizes]: found[sizes] for sizes in sorted(found, key=lambda sizes: (sizes != WORLDS, sizes))}


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
