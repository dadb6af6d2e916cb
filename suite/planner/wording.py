"""What `wirebench advise` says in a sentence."""

import math
from collections.abc import Mapping, Sequence

from suite.planner.accuracy import Accuracies, Ended
from suite.planner.advice import WORTHWHILE, Advice, place, too_close
from suite.planner.compositions import DENSE
from suite.planner.ranges import Between

Ends = tuple[float | None, float | None]
"""Gbit/s below which a compressor surely pays, and from which on it surely does not; None: no rate, inf: any."""
MILDEST = "fp16"
TOO_MUCH = 5.0
"""Points of top-1: what lost more is not recommended."""
MOST_NAMES = 3
NEVER = "was never trained (results/convergence): measure its accuracy first"
UNKNOWN = Ended(0.0, None)
"""What was not trained has lost nothing that is known of."""
LOCAL_STEPS = (
    " What local steps cost in accuracy is not known here: measure that, too (results/today/gpt/table.md has losses of "
    "a small language model)."
)
TIMES, AS_FAST = 3.0, "times as fast"
"""From so many times on a rate is said in times, in these words; below in percent."""
NOTABLE = 0.02
"""Share of a step from which on it is said what compressing would cost if nothing else went on."""


def not_counted(best: Sequence[Advice], accuracies: Accuracies, on_noise: Sequence[str] = ()) -> dict[str, str]:
    """Compressors that are shown and not recommended, and what they did.

    on_noise  those of which the simulation knows only what they do to noise
    """
    refused = {} if not accuracies.known else {
        each.compressor: NEVER for each in best if each.compressor not in (DENSE, *accuracies.known)
    }  # fmt: skip
    refused |= dict.fromkeys(on_noise, "was timed on noise alone")
    for name in (each.compressor for each in best):
        ended = accuracies.known.get(name, UNKNOWN)
        if ended.points is None:
            refused[name] = "diverged in training"
        elif ended.points < -TOO_MUCH:
            refused[name] = f"lost {_lost(ended.points, ended.between)} points of top-1 in training"
    return refused


def _lost(points: float, between: tuple[float, float] | None) -> str:
    """Points, with the range of the seeds."""
    return f"{-points:.1f}" + ("" if between is None else f" [{-between[1]:.1f} - {-between[0]:.1f}]")


def sentence(
    best: Sequence[Advice],
    breaks: Mapping[str, float | None],
    ends: Mapping[str, Ends],
    accuracies: Accuracies,
    densities: Mapping[str, float | None],
    refused: Mapping[str, str],
) -> str:
    """The plain answer.

    best       each compressor's best composition, dense among them, in any order
    breaks     by compressor, where a rate between machines was looked for: below which it pays; ends: its range
    densities  at which the compressors work, by name
    refused    of not_counted()
    """
    dense = next(each for each in best if each.compressor == DENSE)
    plain = f"dense with {dense.scheduler} on {dense.collective}"
    if len(best) == 1:
        return f"The fastest dense composition is {plain.removeprefix('dense with ')}; nothing else could be ranked."
    faster = sorted((each for each in best if place(each) < place(dense)), key=place)
    first = _preferred([each for each in faster if each.compressor not in refused], accuracies) or dense
    ahead = [each for each in faster if each.compressor in refused]
    but = "".join(
        f" {each.compressor}, {_gain(each, dense)}, is not counted: it {refused[each.compressor]}." for each in ahead
    )
    if first is dense:
        only = "" if not ahead else " that is to be recommended"
        may = [each for each in best if each is not dense and each.compressor not in refused and too_close(dense, each)]
        open_to = f" Too close to call beside it: {_names(may)}." if may else ""
        other = _elsewhere(breaks, ends, refused, accuracies, densities)
        return f"On this network nothing{only} beats {plain}{other}{open_to}{but}"
    limit = breaks.get(first.compressor)
    until = "" if not limit else f" It pays {pays(limit, ends[first.compressor])}."
    call = "Too close to call: " if too_close(dense, first) else ""
    surely = _surely([each for each in faster if each.compressor not in refused], dense, accuracies) if call else ""
    return (
        f"{call}{first.compressor} with {first.scheduler} on {first.collective} is {_beside(first, dense)} "
        f"{plain} ({images(first)} against {images(dense)} {dense.unit}/s)"
        f"{_at_worst(first, dense)}.{until} {_price(first.compressor, accuracies, densities.get(first.compressor))}"
        f"{surely}{_milder(best, dense, first, accuracies)}{but}"
    )


def _preferred(ahead: Sequence[Advice], accuracies: Accuracies) -> Advice | None:
    """Of those that are expected to be as fast as the first, within what is worth while, the one that lost least."""
    alike = [each for each in ahead if each.expected_seconds * WORTHWHILE <= ahead[0].expected_seconds]

    def points(each: Advice) -> float:
        known = accuracies.known.get(each.compressor)
        return -math.inf if known is None or known.points is None else known.points

    return max(alike, key=points, default=None)


def _surely(counted: Sequence[Advice], dense: Advice, accuracies: Accuracies) -> str:
    """The fastest of what pays by its whole range, to be told where what is preferred may not."""
    found = next((each for each in counted if not too_close(dense, each)), None)
    if found is None:
        return ""
    known = accuracies.known.get(found.compressor)
    points = f": {known.said} points of top-1" if known and known.points is not None else ""
    return f" {found.compressor} surely is, {_gain(found, dense)}{points}."


def images(each: Advice) -> str:
    """Images per second, with their range."""
    low, high = each.images_between
    return f"{each.images_per_second:.0f} [{low:.0f} - {high:.0f}]"


def _names(several: Sequence[Advice]) -> str:
    """The first few, and how many more there are."""
    more = len(several) - MOST_NAMES
    return ", ".join(each.compressor for each in several[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _gain(each: Advice, dense: Advice) -> str:
    return _faster(each.images_per_second, each.images_between, dense)


def _beside(each: Advice, dense: Advice) -> str:
    """The same before the dense one's name."""
    gain = _gain(each, dense)
    return f"{gain} {'as' if gain.endswith(AS_FAST) else 'than'}"


def _faster(speed: float, between: Between, dense: Advice) -> str:
    """By how much so many images per second are more than the dense ones: as expected, at least and at most."""
    rivals = dense.images_per_second, *reversed(dense.images_between)
    gain, *ends = (ours / theirs - 1 for ours, theirs in zip((speed, *between), rivals, strict=True))
    if gain >= TIMES - 1:
        low, high = sorted(ends)
        return f"{1 + gain:.1f} [{1 + low:.1f} - {1 + high:.1f}] {AS_FAST}"
    sign = 1 if gain > 0 else -1
    low, high = sorted(round(100 * sign * each) for each in ends)
    return f"{round(100 * sign * gain)} [{low} - {high}] % {'faster' if sign > 0 else 'slower'}"


def _at_worst(first: Advice, dense: Advice) -> str:
    if first.serial > (1 - NOTABLE) * first.images_per_second:
        return ""
    return f", {_faster(first.serial, first.serial_between, dense)} if nothing else went on while it compresses"


def _milder(best: Sequence[Advice], dense: Advice, first: Advice, accuracies: Accuracies) -> str:
    mild = next((each for each in best if each.compressor == MILDEST), None)
    if mild is None or mild is first or mild.images_per_second * WORTHWHILE < dense.images_per_second:
        return ""
    points = f"{accuracies.known[MILDEST].said} points" if MILDEST in accuracies.known else "accuracy not measured"
    return f" {MILDEST} ({points}) is {_beside(mild, dense)} dense."


def _price(name: str, accuracies: Accuracies, density: float | None) -> str:
    if name not in accuracies.known:
        return (
            "It is lossy, and what it does to the accuracy is not in results/convergence: measure that first "
            "(results/today/gpt/table.md has losses of a small language model)."
        )
    points = _points(name, accuracies, density)
    return f"It is lossy: {points} ({accuracies.setting}); measure it on your own task."


def _points(name: str, accuracies: Accuracies, density: float | None) -> str:
    ended = accuracies.known[name]
    where = f" at density {ended.density}, not {density}" if accuracies.elsewhere(name, density) else ""
    return f"{ended.said} points of top-1{where}"


def _elsewhere(
    breaks: Mapping[str, float | None],
    ends: Mapping[str, Ends],
    refused: Mapping[str, str],
    accuracies: Accuracies,
    densities: Mapping[str, float | None],
) -> str:
    """What is to be said of other rates where nothing pays at this one; the end of a sentence."""
    counted = {name: below for name, below in breaks.items() if name not in refused}
    if counted and not any(counted.values()):
        names = ", ".join(counted) if len(counted) <= MOST_NAMES else "any that counts"
        return f", and at no rate that was tried does {names}."
    paying = {name: below for name, below in counted.items() if below and not math.isinf(below)}
    if not paying:
        return "."
    name, most = max(paying.items(), key=lambda item: item[1])
    points = f": {_points(name, accuracies, densities.get(name))}" if name in accuracies.known else ""
    return f". The first to pay on slower links is {name}, {pays(most, ends[name])}, and it is lossy{points}."


def rate(gbit: float) -> str:
    """A rate in words."""
    if math.isinf(gbit):
        return "at any rate"
    return f"{gbit:.3g} Gbit/s" if gbit >= 1 else f"{1e3 * gbit:.3g} Mbit/s"


def pays(limit: float, ends: Ends) -> str:
    """Where a compressor pays, in words: below which rate, and the range of that."""
    surely, possibly = ends
    if math.isinf(limit):
        if surely is None:
            return "at any rate, surely at none"
        return "at any rate" if math.isinf(surely) else f"at any rate, surely below {rate(surely)}"
    unit, scale = ("Gbit/s", 1.0) if limit >= 1 else ("Mbit/s", 1e3)
    most = "any" if possibly is None or math.isinf(possibly) else f"{scale * possibly:.3g}"
    return f"below {scale * limit:.3g} [{scale * (surely or 0):.3g} - {most}] {unit}"
