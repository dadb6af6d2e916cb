"""A merge of dense gradients as arguments of DistributedDataParallel, whose own reducer then makes these messages."""

from collections.abc import Sequence

from wirebench.planner.candidate import WORTHWHILE, Candidate, speedup
from wirebench.planner.compositions import DENSE

MERGES = ("wfbp", "fused", "single", "mg_wfbp", "optimal")
"""Schedules that differ in their messages alone."""
MOST = 16
"""Buckets that are printed; the JSON has them all."""
MIB, DIGITS = 2**20, 6


def caps_of(each: Candidate) -> list[float]:
    """The sizes of its fp32 messages in MiB, in the order in which gradients come: DDP's `bucket_cap_mb_list`.

    Empty for what DDP's reducer does not do. DDP closes a bucket that has reached its cap, so sizes are rounded down,
    by less than an element.
    """
    if each.compressor != DENSE or each.scheduler not in MERGES:
        return []
    return caps_of_elements(each.found.elements)


def caps_of_elements(elements: Sequence[int]) -> list[float]:
    """As `caps_of`, of fp32 messages of these elements."""
    return [_floor(4 * each) for each in elements]


def caps_text(caps: Sequence[float]) -> str:
    """The list as Python writes it, without zeros at the end of a number."""
    return "[" + ", ".join(f"{cap:.{DIGITS}f}".rstrip("0").rstrip(".") for cap in caps) + "]"


def better_merge(every: Sequence[Candidate], plain: Candidate) -> list[str]:
    """What DDP's arguments alone bring: a line for the best merge on its own collective, if that is worth while."""
    those = [each for each in every if caps_of(each) and each.collective == plain.collective]
    best = min(those, key=lambda each: each.expected_seconds, default=plain)
    if best.expected_seconds >= WORTHWHILE * plain.expected_seconds:
        return []
    return [caps_words(caps_of(best), speedup(best, plain).expected)]


def caps_words(caps: Sequence[float], gain: float) -> str:
    """The argument, what it brings, and what a PyTorch takes that has one cap for all buckets."""
    sizes = f"={caps_text(caps)}" if len(caps) <= MOST else f" of {len(caps)} sizes, which --json has,"
    one = f"bucket_cap_mb={sum(caps) / len(caps):.3g} makes about as many messages"
    return f"in plain DDP: bucket_cap_mb_list{sizes} brings {gain:.2f}x (torch 2.15); {one}"


def _floor(num_bytes: int) -> float:
    return num_bytes * 10**DIGITS // MIB / 10**DIGITS
