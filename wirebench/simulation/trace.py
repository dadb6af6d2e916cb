"""A trace: what every layer of a model costs on some hardware, measured or estimated, and kept as JSON.

A layer is one parameter tensor. Layers stand in forward order: the gradient of the last one comes first. The replayed
model (models/replay.py) waits as long as a trace says, and sends tensors of its sizes.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol, get_type_hints, runtime_checkable

from wirebench.config.plugins import check_type, suggest
from wirebench.errors import UserError
from wirebench.utils import user_files
from wirebench.utils.files import write_atomically
from wirebench.utils.package import CONFIGS

SHIPPED = CONFIGS / "traces"
"""The folder of the traces that are named without a path."""
MAY_LACK = ("shape", "unit")
"""Keys that a file may leave out."""
MOST_IMAGES, MOST_NUMEL, MOST_SECONDS = 10**9, 10**11, 10**5
"""The most images of a batch, elements and seconds of a layer: more is a mistake, and would be simulated for hours."""


@runtime_checkable
class Paced(Protocol):
    """A model whose speed is chosen: its trace's times are multiplied by `dilation` (network.dilation)."""

    dilation: float

    def backward_seconds(self, name: str, images: int) -> float:
        """Seconds of the backward pass of the layer `name`, for `images` images."""
        ...


@dataclass(frozen=True)
class TraceLayer:
    """One parameter tensor.

    numel             its elements; 0: a part of the model that takes time and has no parameters
    forward_seconds   of its part of one forward pass over the trace's batch
    backward_seconds  from the gradient before, or from the start of the backward pass, to this layer's gradient
    shape             of the tensor; None: a vector of `numel` elements
    """

    name: str
    numel: int
    forward_seconds: float
    backward_seconds: float
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Trace:
    """One training step of a model, without communication and update.

    batch_size  images, or other units, that the times are for
    estimate    whether the times are computed and not measured
    source      how it was made, in words
    torch       version of PyTorch that made it
    layers      in forward order
    unit        what `batch_size` counts: images or, where a model takes no images, samples or tokens
    """

    name: str
    model: str
    hardware: str
    batch_size: int
    estimate: bool
    source: str
    torch: str
    layers: tuple[TraceLayer, ...]
    unit: Literal["images", "samples", "tokens"] = "images"

    def __hash__(self) -> int:
        """Hash a few fields alone: hashing hundreds of layers takes longer than computing the cached results again."""
        return hash((self.name, self.batch_size, len(self.layers), self.layers[:1]))

    @property
    def made(self) -> str:
        """How its times came about, and on what hardware, in words."""
        return f"{'estimated' if self.estimate else 'measured'}, {self.hardware}"

    @property
    def numel(self) -> int:
        """Parameters of the model."""
        return sum(layer.numel for layer in self.layers)

    @property
    def forward_seconds(self) -> float:
        """Seconds of one forward pass over the batch."""
        return math.fsum(layer.forward_seconds for layer in self.layers)

    @property
    def backward_seconds(self) -> float:
        """Seconds of one backward pass over the batch."""
        return math.fsum(layer.backward_seconds for layer in self.layers)

    def faster(self, speed: float) -> "Trace":
        """The trace as on hardware that is `speed` times as fast."""
        assert speed > 0, f"a speed is positive, got {speed}"
        layers = tuple(
            replace(each, forward_seconds=each.forward_seconds / speed, backward_seconds=each.backward_seconds / speed)
            for each in self.layers
        )
        return replace(self, layers=layers)

    def batched(self, images: int) -> "Trace":
        """The trace of a batch of `images` images, with times in proportion."""
        return replace(self.faster(self.batch_size / images), batch_size=images)

    def save(self, path: str | Path) -> None:
        """Write it as JSON, a line for each layer; the file is whole or not there. Raises OSError."""
        head = asdict(self)
        if self.unit == "images":
            del head["unit"]
        layers = [{key: value for key, value in layer.items() if value is not None} for layer in head.pop("layers")]
        lines = ",\n".join(f"    {json.dumps(layer)}" for layer in layers)
        text = json.dumps(head, indent=2).removesuffix("\n}")
        write_atomically(Path(path), f'{text},\n  "layers": [\n{lines}\n  ]\n}}\n')


def find(name: str, where: str = "model.trace") -> Path:
    """The file of a trace: a path, or the bare name of one in configs/traces. UserError lists what is there.

    where  the option or key that names it
    """
    if name.endswith(".json") or "/" in name:
        return Path(name)
    path = SHIPPED / f"{name}.json"
    if not path.is_file():
        known = [each.stem for each in SHIPPED.glob("*.json")]
        raise UserError(f"{where}: no trace {name!r}, which is no path to a .json file; {suggest(name, known)}")
    return path


def load(path: str | Path) -> Trace:
    """Read and check a trace; UserError names the file, the layer and the key that is wrong."""
    path = Path(path)
    values = _checked(str(path), user_files.read_json(path), Trace, given=("layers",))
    _check_between(f"{path}: batch_size", values["batch_size"], 1, MOST_IMAGES)
    rows = values["layers"]
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{path}: layers: needs a list of at least one layer")
    layers = tuple(_layer(f"{path}: layers[{place}]", row) for place, row in enumerate(rows))
    _check_names(path, layers)
    if not any(layer.numel for layer in layers):
        raise UserError(f"{path}: layers: at least one needs parameters (numel above 0)")
    return Trace(**{**values, "layers": layers})


def _layer(where: str, row: Any) -> TraceLayer:
    if isinstance(row, Mapping) and isinstance(row.get("name"), str):
        where = f"{where} ({row['name']})"
    values = _checked(where, row, TraceLayer)
    for key, most in (("numel", MOST_NUMEL), ("forward_seconds", MOST_SECONDS), ("backward_seconds", MOST_SECONDS)):
        _check_between(f"{where}: {key}", values[key], 0, most)
    shape = values.get("shape")
    if shape is not None:
        if math.prod(shape) != values["numel"] or min(shape, default=0) < 0:
            raise UserError(f"{where}: shape: {list(shape)} does not have numel = {values['numel']} elements")
        values["shape"] = tuple(shape)
    return TraceLayer(**values)


def _check_names(path: Path, layers: tuple[TraceLayer, ...]) -> None:
    seen: set[str] = set()
    for place, layer in enumerate(layers):
        if layer.name in seen:
            raise UserError(f"{path}: layers[{place}] ({layer.name}): name: another layer has it already")
        if not all(layer.name.split(".")):
            raise UserError(f"{path}: layers[{place}]: name: needs words joined by dots, got {layer.name!r}")
        seen.add(layer.name)


def _checked(where: str, table: Any, kind: type, given: tuple[str, ...] = ()) -> dict[str, Any]:
    """The keys of `table`, all that the dataclass `kind` needs and no others, of its types except for `given`."""
    if not isinstance(table, Mapping):
        raise UserError(f"{where}: needs an object with keys, got {type(table).__name__}")
    types, names = get_type_hints(kind), [each.name for each in fields(kind)]
    for key in table:
        if key not in names:
            raise UserError(f"{where}: {key}: no such key; {suggest(key, names)}")
    for key in names:
        if key not in table and key not in MAY_LACK:
            raise UserError(f"{where}: {key}: is missing")
        if key in table and key not in given:
            check_type(f"{where}: {key}", table[key], types[key])
    return dict(table)


def _check_between(where: str, value: float, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UserError(f"{where}: needs {least} to {most}, got {value}")
