"""What messages and requests cost the processors of a cluster's machines, and whether its ranks share their cores.

A rank's processor starts messages, copies their bytes, adds and merges what arrives, and compresses. On a real cluster
every rank has cores of its own, and all wait for the busiest rank. If one machine plays all hosts, its cores do the
work of all ranks, and a rank's work takes longer as the number of ranks grows.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from wirebench.config.plugins import check_type, suggest
from wirebench.errors import UserError

KEYS = {
    "cores": ("cores", 1.0),
    "call_us": ("call_seconds", 1e6),
    "message_us": ("message_seconds", 1e6),
    "ns_per_byte": ("seconds_per_byte", 1e9),
    "engine_share": ("engine_share", 1.0),
    "engine_round_us": ("engine_round_seconds", 1e6),
    "compress_factor": ("compress_factor", 1.0),
    "gradient_ns_per_byte": ("gradient_seconds_per_byte", 1e9),
}
"""Keys of a topology file's section `processor`: the constant of each, and its units in one of the constant's."""

FITS, BEYOND = 270_000.0, 14_700_000.0
"""Elements of a vector that lies in a core's caches, 1 MB, and of one that lies in none: the sizes that compressors are
timed at (`wirebench bench compressors`). Runs with the first gave the constants, runs with millions confirm this."""
CROWDED_SHARE = 0.15
"""A message costs a core less as more ranks share it, by this power of their number: probably a running thread finds
more to do before it sleeps again. It was chosen on the forty, the hundred and the sixty runs of results/prediction*."""


@dataclass(frozen=True)
class Processor:
    """The constants of a type of machine, in seconds of one core.

    cores              that all ranks share; 0: every rank has cores of its own
    call_seconds       of a request, on every rank at the same time, whatever it carries
    message_seconds    of a message at each of its two ends, where no two ranks share a core: a measurement of a round
                       sees both ends together
    seconds_per_byte   of a message's bytes at each of its two ends
    engine_share       of `message_seconds`: what a message costs inside the engine's own collectives
    engine_round_seconds  that pass between two rounds inside these, whatever they carry
    compress_factor    times as long as in their measurement that compressors work on few elements: in a step caches are
                       cold (slower_by)
    gradient_seconds_per_byte  of a gradient that the backward pass makes and copies into its bucket
    """

    cores: float = 0.0
    call_seconds: float = 0.0
    message_seconds: float = 0.0
    seconds_per_byte: float = 0.0
    engine_share: float = 1.0
    engine_round_seconds: float = 0.0
    compress_factor: float = 1.0
    gradient_seconds_per_byte: float = 0.0

    def __post_init__(self) -> None:
        wrong = {key: value for key, value in vars(self).items() if not 0 <= value < float("inf")}
        if wrong:
            raise ValueError(f"a processor's constants are finite and at least 0, got {wrong}")

    @property
    def free(self) -> bool:
        """Whether messages cost it nothing."""
        return not (self.message_seconds or self.seconds_per_byte)

    def crowded(self, ranks: int) -> float:
        """How many times as long a rank's own work takes while all `ranks` ranks do the same."""
        return max(1.0, ranks / self.cores) if self.cores else 1.0

    def slower_by(self, elements: float) -> float:
        """How many times as long as in its measurement a compressor works on `elements` elements.

        Up to FITS it is `compress_factor`. From BEYOND on it is 1, because no element lies in a cache in the
        measurement either. In between it follows a line over the logarithm, as costs do.
        """
        if self.compress_factor == 1:
            return 1.0
        share = math.log(BEYOND / max(elements, 1.0)) / math.log(BEYOND / FITS)
        return 1.0 + (self.compress_factor - 1.0) * min(max(share, 0.0), 1.0)

    def together_speed(self, ranks: int, threads: int = 1) -> float:
        """Share of its speed that a rank's computing has while another of its threads works, too, as on all ranks.

        threads  that compute; with one, the other thread has as large a share of its speed
        """
        share = self.cores / ranks if self.cores else math.inf
        return min(1.0, share / (threads + 1)) / min(1.0, share / threads)

    def message(self, ranks: int) -> float:
        """Seconds of a message at each of its two ends, in a world of `ranks` ranks."""
        return self.message_seconds / self.crowded(ranks) ** CROWDED_SHARE

    def together(self, work: Iterable[float]) -> float:
        """How long the cores that all ranks share take for the ranks' work (seconds of one core each); 0 for none."""
        return sum(work) / self.cores if self.cores else 0.0

    def by_kind(self, native: bool) -> "ByKind":
        """The processor as messages in each kind of request find it. native: within the engine's own collectives

        The lengths of what is merged or gathered are known to the sender alone, and go ahead in a message of their own;
        the receiver then asks for the rest. The engine gathers lengths in a call of its own.
        """
        if native:
            inside = replace(self, message_seconds=self.message_seconds * self.engine_share)
            return ByKind(inside, inside)
        outside = replace(self, engine_round_seconds=0.0)
        return ByKind(outside, replace(outside, message_seconds=MESSAGES_WITH_LENGTH * self.message_seconds))


class ByKind(NamedTuple):
    """A processor as messages of sums find it, and as messages of all other requests do, which go one by one."""

    sums: Processor
    others: Processor


MESSAGES_WITH_LENGTH = 3
"""The length, the question for the rest, and the rest."""
IDLE = Processor()
"""Messages cost it nothing."""


def read(table: Mapping[str, Any]) -> Processor:
    """The section `processor` of a topology file; UserError names the key that is wrong. Older files have none."""
    constants = {}
    for key, value in table.items():
        if key not in KEYS:
            raise UserError(f"processor.{key}: no such key; {suggest(key, list(KEYS))}")
        check_type(f"processor.{key}", value, float)
        name, unit = KEYS[key]
        constants[name] = value / unit
        if not 0 <= value < float("inf"):
            raise UserError(f"processor.{key}: needs a number of at least 0, got {value}")
    return Processor(**constants)


def written(processor: Processor) -> dict[str, float]:
    """The section that `read` reads."""
    return {key: getattr(processor, name) * unit for key, (name, unit) in KEYS.items()}
