"""What `wirebench simulate` and `advise` put together: compressors as their papers have them, what goes with what."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wirebench import collectives, compressors
from wirebench.config.plugins import Plugins, own_keys, suggest
from wirebench.costmodel.request_sizes import Known, Sizes, nothing
from wirebench.errors import UserError
from wirebench.exchange.driver import Parts
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.conformance import DENSE
from wirebench.gradient.contract import Method
from wirebench.gradient.requests import Gather
from wirebench.planner import known_sizes
from wirebench.simulation.compress_rates import Rates
from wirebench.simulation.simulator import Compressing, free, layers_of
from wirebench.simulation.trace import MOST_IMAGES, Trace
from wirebench.topology.processor import IDLE, Processor
from wirebench.utils.cli import naming
from wirebench.utils.parsing import plugin_of

LEAST, MOST = 1e-6, 1e6
"""Bounds of rates, speeds and seconds; beyond them rounding errors dominate sums."""


@functools.lru_cache(maxsize=256)
def _parts(words: str) -> tuple[str, Mapping[str, Any]]:
    """A compressor's name, and the options that it is named with."""
    return plugin_of(words)


def class_of(words: str) -> type[Method]:
    """The class of a compressor, NAME or NAME:key=value:key=value; all functions here take such words."""
    return compressors.class_of(_parts(words)[0])


def is_own(words: str) -> bool:
    """Whether a compressor is of the suite, and no user's own."""
    return compressors.PLUGINS.is_own(_parts(words)[0])


def build(words: str, density: float | None = None) -> Method:
    """The compressor with its options, at a density if it has one; UserError for what it does not take."""
    name, options = _parts(words)
    return compressors.build(name, **density_of(words, density), **options)


def density_of(words: str, density: float | None) -> dict[str, Any]:
    """The option that sets the density of a compressor; none for its own, and for one that has none."""
    given = density is None or "density" in _parts(words)[1]
    return {} if given or not has_density(words) else {"density": density}


def overrides(words: str) -> list[str]:
    """The settings of a config that make this compressor."""
    name, *options = words.split(":")
    return [f"compressor.name={name}", *(f"compressor.{option}" for option in options)]


def check_density(names: Sequence[str], density: float | None) -> None:
    """Raise UserError for a density that none of these compressors takes."""
    if density is None:
        return
    having = [name for name in names if density_of(name, density)]
    if not having:
        raise UserError(f"--density: {', '.join(map(repr, names))}: none has one")
    for name in having:
        check_built("--density", name, density)


def check_built(option: str, words: str, density: float | None) -> None:
    """Raise UserError, naming the option, for a compressor that cannot be built so, or with this density."""
    name, options = _parts(words)
    for key in options.keys() & set(own_keys(compressors.PLUGINS.kind)):
        raise UserError(f"{option}: {words!r}: {key} goes into the config of a run")
    keys = {f"compressor.{key}": f"{option} {name}:{key}" for key in options}
    with naming({"compressor": option, "compressor.name": option, "compressor.density": "--density", **keys}):
        build(words, density)


def check_names(option: str, texts: Sequence[str], plugins: Plugins) -> None:
    """Raise UserError for a text of `option` whose name is no plugin's, nor a dotted path to one of the user's own."""
    for text in texts:
        try:
            name, _ = plugin_of(text)
        except ValueError as error:
            raise UserError(f"{option}: {error}") from error
        if "." not in name and not plugins.has(name):
            raise UserError(f"{option}: no {name!r}; {suggest(name, plugins.available())}")
        try:
            plugins.load(name)
        except UserError as error:
            # In a config it would be this key.
            raise UserError(f"{option}: {str(error).removeprefix(f'{plugins.kind}.name: ')}") from error


def own_density(words: str) -> float | None:
    """The density that the compressor has unless told otherwise; None for one that has none."""
    name, options = _parts(words)
    return options.get("density", compressors.PLUGINS.options(name)["density"].default) if has_density(words) else None


def used_density(words: str, density: float | None) -> float | None:
    """What the compressor works with, where this density is asked for; None for one that has none."""
    return density if density_of(words, density) else own_density(words)


def has_density(words: str) -> bool:
    """Whether a density is among the compressor's options."""
    return "density" in compressors.PLUGINS.options(_parts(words)[0])


def sizes_of(name: str, density: float | None, model: Trace, workers: int) -> Sizes:
    """What the compressor asks for, with its paper's small tensors dense; UserError for a density out of range.

    A trace without shapes does not say which tensors are vectors: of such a one everything is compressed.
    """
    below = class_of(name).dense_below if any(layer.shape for layer in model.layers) else 0
    # What is of the suite stays as it is; a user's own module may be another one the next time.
    return (_kept_sizes if is_own(name) else _sizes)(name, density, workers, below)


def _sizes(name: str, density: float | None, workers: int, below: int) -> Sizes:
    used = own_density(name) if density is None else density
    before = known_sizes.of(name, used) if is_own(name) else nothing
    plain, options = _parts(name)
    return sizes_with(plain, {**density_of(name, density), **options}, workers, below, before)


_kept_sizes = functools.lru_cache(maxsize=256)(_sizes)
"""What a bucket was found to send holds for every model."""


def sizes_with(
    name: str, options: Mapping[str, Any], workers: int, below: int, before: Callable[[int], Known] = nothing
) -> Sizes:
    """What the compressor asks for with these options, once its warm-up is over; tensors below `below` stay dense."""
    make = functools.partial(compressors.build, name, dense_below=0, warmup=(), **options)
    return Sizes(make, workers, below, before)


def compressing(
    rates: Rates, name: str, sizes: Sizes, model: Trace, bytes_per_second: float, processor: Processor = IDLE
) -> tuple[Compressing, Compressing]:
    """Seconds that the compressor works, and seconds of these after the last request is answered.

    They are at the memory's rate and among the number of workers of `sizes`.
    processor  of the topology; the simulator multiplies a rank's work by how many ranks share a core of it
    """
    if name == DENSE:
        return free, free
    workers = rates.workers_of(name)
    merged, gathered = _merges(sizes.size, processor) / _merges(workers, IDLE), _more_gathered(sizes, workers, model)
    return rates.on(name, bytes_per_second, gathered, merged), rates.decoding(name, bytes_per_second, gathered)


def _merges(ranks: int, processor: Processor) -> float:
    """How many merges are waited for, in merges of a rank that shares its core as all others do.

    A message passes as many merges as a tree has levels. Cores that all ranks share have the merges of all to do, and
    only half of the ranks, a quarter, an eighth merge at each level.
    """
    levels = max(1, math.ceil(math.log2(ranks)))
    return max(levels, processor.together([ranks - 1.0])) / processor.crowded(ranks)


@functools.lru_cache(maxsize=256)
def _more_gathered(sizes: Sizes, workers: int, model: Trace) -> float:
    """Gathered bytes over the bytes gathered among `workers` workers."""
    gathered = _gathered(sizes, model)
    # What gathers nothing needs no look at the world of the measurement. A vote that many ranks sum and the measured
    # ones gathered counts with the time that reading those took: more than it is.
    return gathered / (_gathered(sizes.of_world(workers), model) or 1.0) if gathered else 1.0


def _gathered(sizes: Sizes, model: Trace) -> float:
    """Bytes that arrive at every rank by gathers, of the whole model; where shapes count, of one matrix.

    The result is used as a ratio of two world sizes, which is the same for every shape.
    """
    asked = sizes.of_sample() if sizes.by_shape else sizes.of(layers_of(model))
    return sum(each.num_bytes for each in asked if each.kind is Gather) * sizes.size


def lacks_shapes(sizes: Sizes, model: Trace) -> str:
    """Why nothing can be said of a method that works on matrices of a trace without shapes; "" where something can."""
    if sizes.by_shape and not any(layer.shape for layer in model.layers):
        return "what it sends depends on the tensors' shapes, which the trace does not have"
    return ""


def sends_no_noise(sizes: Sizes, model: Trace) -> str:
    """Why nothing can be said of a method that passes nothing of noise; "" where something can."""
    if sizes.by_value and not sum(each.num_bytes for each in sizes.of(layers_of(model))):
        return "of noise it sends nothing; what it sends depends on how large gradients are"
    return ""


def check_time(model: Trace) -> None:
    """Raise UserError for a trace that takes no time: ratios to it are undefined."""
    if not model.forward_seconds + model.backward_seconds > 0:
        raise UserError(f"--trace: {model.name} takes no time at all")


def check_batches(images: Sequence[int]) -> None:
    """Raise UserError for a batch that no trace can have."""
    for batch in images:
        if not 1 <= batch <= MOST_IMAGES:
            raise UserError(f"--batch: needs 1 to {MOST_IMAGES}, got {batch}")


def check_positive(option: str, values: Sequence[float]) -> None:
    """Raise UserError for anything but a number above 0 that is neither tiny nor huge."""
    for value in values:
        if not LEAST <= value <= MOST:
            raise UserError(f"{option}: needs a number from {LEAST:g} to {MOST:g}, got {value:g}")


def collective_of(name: str) -> str:
    """The collective of the compressor's paper, else a ring."""
    return class_of(name).collective or "ring"


@functools.cache
def needs_whole(name: str, density: float | None = None) -> bool:
    """Whether the compressor works only on the whole model in one message."""
    return bool(build(name, density).whole_model)


def clash(built: Scheduler, compressor: str, collective: str, density: float | None = None) -> str:
    """Why the scheduler's driver does not go with the other two; "" where it does."""
    return built.driver.accepts(Parts(_method(compressor, density), collectives.build(collective))) or ""


@functools.cache
def _method(compressor: str, density: float | None) -> Method:
    return build(compressor, density)
