"""What `wirebench advise` says in a sentence."""

import math
from collections.abc import Mapping, Sequence

from suite.planner.accuracy import LOSS, Accuracies
from suite.planner.advice import WORTHWHILE, Advice, place, too_close
from suite.planner.compositions import DENSE
from suite.planner.ranges import Between

Ends = tuple[float | None, float | None]
"""Gbit/s below which a compressor surely pays, and from which on it surely does not; None: no rate, inf: any."""
MOST_NAMES = 3
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
    found = {each.compressor: _refused(each, accuracies, each.compressor in on_noise) for each in best}
    return {name: reason for name, reason in found.items() if reason}


def _refused(each: Advice, accuracies: Accuracies, on_noise: bool) -> str:
    """Why it is not recommended; "" where it may be."""
    ended = accuracies.of(each)
    if ended is not None and ended.points is None:
        return "diverged in training"
    if ended is not None and ended.points is not None and ended.points < -accuracies.too_much:
        how = accuracies.otherwise(each, ended.density)
        return " ".join(filter(None, (ended.reason, how))) + accuracies.limit
    if on_noise:
        return "was timed on noise alone"
    if each.compressor == DENSE or ended is not None or not accuracies.known:
        return ""
    so = " with local steps" * bool(each.local)
    return f"was never trained{so} ({accuracies.measure.folder}): measure its {accuracies.measure.what} first"


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
    if DENSE in refused:
        plain += f" (which itself {refused[DENSE]})"
    if len(best) == 1:
        return f"The fastest dense composition is {plain.removeprefix('dense with ')}; nothing else could be ranked."
    faster = sorted((each for each in best if place(each) < place(dense)), key=place)
    first = _preferred([each for each in faster if each.compressor not in refused], accuracies) or dense
    ahead = [each for each in faster if each.compressor in refused]
    of = {each.compressor: each for each in best}
    but = _not_counted(ahead, dense, refused)
    if first is dense:
        only = "" if not ahead else " that is to be recommended"
        may = [each for each in best if each is not dense and each.compressor not in refused and too_close(dense, each)]
        open_to = f" Too close to call beside it: {_names(may)}." if may else ""
        other = _elsewhere(breaks, ends, refused, accuracies, densities, of)
        return f"On this network nothing{only} beats {plain}{other}{open_to}{but}"
    limit = breaks.get(first.compressor)
    until = "" if not limit else f" It pays {pays(limit, ends[first.compressor])}."
    call = "Too close to call: " if too_close(dense, first) else ""
    surely = _surely([each for each in faster if each.compressor not in refused], dense, accuracies) if call else ""
    return (
        f"{call}{first.compressor} with {first.scheduler} on {first.collective} is {_beside(first, dense)} "
        f"{plain} ({images(first)} against {images(dense)} {dense.unit}/s)"
        f"{_at_worst(first, dense)}.{until} {_price(first, accuracies, densities.get(first.compressor))}"
        f"{surely}{_milder(best, dense, first, accuracies)}{but}"
    )


def _not_counted(ahead: Sequence[Advice], dense: Advice, refused: Mapping[str, str]) -> str:
    """What is faster and not recommended, with the reason; those of one reason together."""
    by_reason: dict[str, list[Advice]] = {}
    for each in ahead:
        by_reason.setdefault(refused[each.compressor], []).append(each)
    said = ""
    for reason, those in by_reason.items():
        fastest = f" {those[0].compressor}, {_gain(those[0], dense)},"
        if len(those) == 1:
            said += f"{fastest} is not counted: it {reason}."
        else:
            others = ", ".join(each.compressor for each in those[1:])
            they = reason.replace("was ", "were ", 1).replace(" its ", " their ")
            said += f"{fastest} and {others} are not counted: they {they}."
    return said


def _preferred(ahead: Sequence[Advice], accuracies: Accuracies) -> Advice | None:
    """Of those that are expected to be as fast as the first, within what is worth while, the one that lost least."""
    alike = [each for each in ahead if each.expected_seconds * WORTHWHILE <= ahead[0].expected_seconds]

    def points(each: Advice) -> float:
        known = accuracies.of(each)
        return -math.inf if known is None or known.points is None else known.points

    return max(alike, key=points, default=None)


def _surely(counted: Sequence[Advice], dense: Advice, accuracies: Accuracies) -> str:
    """The fastest of what pays by its whole range, to be told where what is preferred may not."""
    found = next((each for each in counted if not too_close(dense, each)), None)
    if found is None:
        return ""
    known = accuracies.of(found)
    points = f": {known.said} {known.measure.unit}" if known and known.points is not None else ""
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
    mild = next((each for each in best if each.compressor == accuracies.measure.mildest), None)
    if mild is None or mild is first or mild.images_per_second * WORTHWHILE < dense.images_per_second:
        return ""
    known = accuracies.of(mild)
    lost = f"{accuracies.measure.what} not measured" if known is None else f"{known.said} {known.measure.short}"
    return f" {mild.compressor} ({lost}) is {_beside(mild, dense)} dense."


def _price(each: Advice, accuracies: Accuracies, density: float | None) -> str:
    measure = accuracies.measure
    if accuracies.of(each) is None:
        hint = "" if measure is LOSS else " (results/today/gpt/table.md has losses of a small language model)"
        return f"It is lossy, and its {measure.what} is not in {measure.folder}: measure that first{hint}."
    points = _points(each, accuracies, density)
    return f"It is lossy: {points} ({accuracies.setting}); measure it on your own task."


def local_steps(advices: Sequence[Advice], accuracies: Accuracies) -> str:
    """What is to be said of local steps beside the answer, where some composition makes them.

    advices  all of them, the best first
    """
    if not accuracies.local:
        return LOCAL_STEPS
    dense = sorted((each for each in advices if each.compressor == DENSE), key=accuracies.counts, reverse=True)
    after, before = (next((each for each in dense if bool(each.local) is local), None) for local in (True, False))
    ended = None if after is None else accuracies.of(after)
    said = "" if after is None else f" Dense training with {after.scheduler} was not trained here."
    if after is not None and ended is not None:
        lost = "diverged" if ended.points is None else f"ended at {_points(after, accuracies, None)}"
        counted = "" if accuracies.counts(after) else ", and is not counted"
        said = f" Dense training with {after.scheduler} {lost}{counted}."
    if before is not None:
        said += f" Without local steps, with {before.scheduler} on {before.collective}, it makes {images(before)} "
        said += f"{before.unit}/s."
    return said


def _points(each: Advice, accuracies: Accuracies, density: float | None) -> str:
    ended = accuracies.of(each)
    assert ended is not None
    return " ".join(filter(None, (ended.said, ended.measure.unit, accuracies.otherwise(each, density))))


def _elsewhere(
    breaks: Mapping[str, float | None],
    ends: Mapping[str, Ends],
    refused: Mapping[str, str],
    accuracies: Accuracies,
    densities: Mapping[str, float | None],
    of: Mapping[str, Advice],
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
    known = accuracies.of(of[name]) is not None
    points = f": {_points(of[name], accuracies, densities.get(name))}" if known else ""
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
