"""What `wirebench advise` says in a sentence."""

import math
from collections.abc import Mapping, Sequence

from suite.planner.accuracy import Accuracies
from suite.planner.advice import WORTHWHILE, Advice, place, too_close
from suite.planner.compositions import DENSE

MILDEST = "fp16"
TOO_MUCH = 5.0
"""Points of top-1: what lost more is not recommended."""
MOST_NAMES = 3
NEVER = "was never trained (results/convergence): measure its accuracy first"
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
        points = accuracies.known[name].points if name in accuracies.known else 0.0
        if points is None:
            refused[name] = "diverged in training"
        elif points < -TOO_MUCH:
            refused[name] = f"lost {-points:.1f} points of top-1 in training"
    return refused


def sentence(
    best: Sequence[Advice],
    breaks: Mapping[str, float | None],
    accuracies: Accuracies,
    densities: Mapping[str, float | None],
    refused: Mapping[str, str],
) -> str:
    """The plain answer.

    best       each compressor's best composition, dense among them, in any order
    breaks     by compressor, where a rate between machines was looked for: below which it pays
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
        may = [each for each in best if each.compressor not in refused and too_close(dense, each)]
        open_to = f" Too close to call beside it: {_names(may)}." if may else ""
        other = _elsewhere(breaks, refused, accuracies, densities)
        return f"On this network nothing{only} beats {plain}{other}{open_to}{but}"
    limit = breaks.get(first.compressor)
    until = "" if not limit else " It pays " + (rate(limit) if math.isinf(limit) else f"below {rate(limit)}") + "."
    call = "Too close to call: " if too_close(dense, first) else ""
    return (
        f"{call}{first.compressor} with {first.scheduler} on {first.collective} is {_gain(first, dense)} than "
        f"{plain} ({_images(first)} against {_images(dense)} {dense.unit}/s)"
        f"{_at_worst(first, dense)}.{until} {_price(first.compressor, accuracies, densities.get(first.compressor))}"
        f"{_milder(best, dense, first, accuracies)}{but}"
    )


def _preferred(ahead: Sequence[Advice], accuracies: Accuracies) -> Advice | None:
    """Of those that are as fast as the fastest, within what is worth while, the one that lost least."""
    alike = [each for each in ahead if each.found.step.seconds * WORTHWHILE <= ahead[0].found.step.seconds]

    def points(each: Advice) -> float:
        known = accuracies.known.get(each.compressor)
        return -math.inf if known is None or known.points is None else known.points

    return max(alike, key=points, default=None)


def _images(each: Advice) -> str:
    low, high = each.images_between
    return f"{each.images_per_second:.0f} [{low:.0f} - {high:.0f}]"


def _names(several: Sequence[Advice]) -> str:
    """The first few, and how many more there are."""
    more = len(several) - MOST_NAMES
    return ", ".join(each.compressor for each in several[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _gain(each: Advice, dense: Advice) -> str:
    return _faster(each.images_per_second / dense.images_per_second - 1)


def _faster(gain: float) -> str:
    return f"{100 * abs(gain):.0f} % {'faster' if gain > 0 else 'slower'}"


def _at_worst(first: Advice, dense: Advice) -> str:
    if first.serial > (1 - NOTABLE) * first.images_per_second:
        return ""
    return f", {_faster(first.serial / dense.images_per_second - 1)} if nothing else went on while it compresses"


def _milder(best: Sequence[Advice], dense: Advice, first: Advice, accuracies: Accuracies) -> str:
    mild = next((each for each in best if each.compressor == MILDEST), None)
    if mild is None or mild is first or mild.images_per_second * WORTHWHILE < dense.images_per_second:
        return ""
    points = f"{accuracies.known[MILDEST].said} points" if MILDEST in accuracies.known else "accuracy not measured"
    return f" {MILDEST} ({points}) is {_gain(mild, dense)} than dense."


def _price(name: str, accuracies: Accuracies, density: float | None) -> str:
    if name not in accuracies.known:
        return "It is lossy, and what it does to the accuracy is not in results/convergence: measure that first."
    points = _points(name, accuracies, density)
    return f"It is lossy: {points} ({accuracies.setting}); measure it on your own task."


def _points(name: str, accuracies: Accuracies, density: float | None) -> str:
    ended = accuracies.known[name]
    where = f" at density {ended.density}, not {density}" if accuracies.elsewhere(name, density) else ""
    return f"{ended.said} points of top-1{where}"


def _elsewhere(
    breaks: Mapping[str, float | None],
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
    return f". The first to pay on slower links is {name}, below {rate(most)}, and it is lossy{points}."


def rate(gbit: float) -> str:
    """A rate in words."""
    if math.isinf(gbit):
        return "at any rate"
    return f"{gbit:.3g} Gbit/s" if gbit >= 1 else f"{1e3 * gbit:.3g} Mbit/s"
