"""A rule of its own: the link is full. Its messages take long because of their bytes, and fewer bytes can be sent."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from wirebench.compose.resolve import resolve, scheduler_of
from wirebench.config.loader import from_dict
from wirebench.diagnose.cause import Cause, Change
from wirebench.diagnose.evidence import Evidence
from wirebench.diagnose.fewer_bytes import Other, Saving
from wirebench.diagnose.job import DDP, FSDP, HOROVOD, OTHER
from wirebench.diagnose.link import UNKNOWN, FittedLink
from wirebench.diagnose.words import gbit, ms
from wirebench.errors import UserError
from wirebench.planner.accuracy import LOSS, TOLERANCE, Accuracies, Ended

Known = Callable[[bool, int], Accuracies]
"""known(images, numel): what compressors did to the accuracy of models that take images, or to the loss of others."""
NOTABLE = 0.05
"""Share of a step below which no finding is reported: step times vary as much between runs."""
POOR = 0.5
"""Share of the nominal rate below which a link is poor; headers, and a busy processor, cost less than that."""
MOSTLY = 0.5
"""Share of the messages' time from which on they are mostly bytes, or mostly start-up."""
UNSURE_START = 0.001
"""Seconds of start-up that a round may have where none can be fitted: Gloo's among four hosts on two cores."""
UNSURE_NCCL = 0.00003
"""The start-up time of NCCL's kernels, which start ahead: as of a network of 25 Gbit/s (topology/presets.py)."""
MOST_CHANGES = 4
SHARDS, SHARD_BYTES = "quantised_sum", 1.04
"""The compressor of `compress_shards`, and bytes of an element in its int8 form, with its share of the scales."""
BROKEN_EVEN = ("fp16", "quantised_sum", "powersgd", "topk")
"""Compressors whose break-evens a job gets: the first three that are known."""
HOW = {
    DDP: "how: ddp.register_comm_hook(None, wirebench.comm_hook(COMPRESSOR)) (docs/own_loop.md)",
    HOROVOD: "how: wirebench.synchronise in place of hvd.DistributedOptimizer (docs/own_loop.md)",
    FSDP: "how: wirebench.compress_shards after fully_shard (docs/fsdp.md)",
    OTHER: "how: wirebench.synchronise in place of the loop's own sums (docs/own_loop.md)",
}
LATE = "nccl"
"""The back end whose calls return before they are done, so that its messages have no times."""


def full_link(evidence: Evidence, nominal: float | None, known: Known) -> Cause | None:
    """Messages fill the link, and a compressor would send fewer bytes; `nominal`: its bytes per second, if known."""
    link = carried(evidence)
    rate = link.bytes_per_second
    if rate is None or evidence.exposed < NOTABLE * evidence.step:
        return None
    if nominal is not None and rate < POOR * nominal:
        return None  # causes.poor_link
    size, seconds = evidence.wire_bytes, _seconds(evidence)
    if size / rate < (1 - MOSTLY) * seconds:
        return None  # causes.small_messages
    changes = _changes(evidence, link, known)
    if changes is None:
        return None
    of = "" if nominal is None else f" of {gbit(nominal)}"
    waits = f"the exchange waits {ms(evidence.exposed)} of a step ({evidence.exposed / evidence.whole:.0%})"
    what = "Messages inside this host are slow" if evidence.on_one_host else "Your link is full"
    return Cause(
        "full link",
        f"{what}: {waits}, at {gbit(size / seconds)}{of} Gbit/s.",
        f"{size / 1e6:.4g} MB in {len(evidence.messages)} messages of a step, which take {ms(evidence.drawn.seconds)}",
        changes[0],
        (*changes[1], *_advice(evidence, nominal or rate)),
    )


def carried(evidence: Evidence) -> FittedLink:
    """The link as a usual step finds it: start-up of a round as fitted, and the rate at which the rest carries bytes.

    Where no start-up can be fitted, it is UNSURE_START. Unknown where the messages have no times.
    """
    late = evidence.job is None and evidence.record.get("backend") == LATE  # the profiler's files have its kernels
    if not evidence.has_network or not evidence.messages or late:
        return UNKNOWN
    unsure = UNSURE_NCCL if evidence.record.get("backend") == LATE else UNSURE_START
    start = unsure if evidence.link.start_seconds is None else evidence.link.start_seconds
    seconds = _seconds(evidence) - start * sum(each.rounds for each in evidence.messages)
    return FittedLink(start, evidence.wire_bytes / seconds) if seconds > 0 and evidence.wire_bytes > 0 else UNKNOWN


def _seconds(evidence: Evidence) -> float:
    """Seconds of all messages of a usual step, without rank 0's wait for a slower rank."""
    computing = [evidence.computing(rank) for rank in range(len(evidence.ranks))]
    fastest = sum(each.seconds for each in evidence.messages)
    return max(evidence.drawn.seconds - (max(computing) - computing[0]), fastest)


def _advice(evidence: Evidence, rate: float) -> list[str]:
    """The commands that rank every method for this run, as remarks.

    None for a job whose file gives no layers, or that accumulates gradients, which the planner does not know.
    """
    if evidence.job is None:
        return [f"rank every method: {advise_line(evidence, rate)}"]
    words = ["wirebench", "trace", "import", evidence.job.first, "--model", "MINE", "--batch", "SAMPLES"]
    words += [] if evidence.record["device"] == "cuda" else ["--hardware", "CPU"]
    advise = ["wirebench", "advise", "--trace", "mine.json", "--gbit", f"{8e-9 * rate:.3g}", "--workers"]
    line = f"{shlex.join([*words, '--out', 'mine.json'])}; {shlex.join([*advise, str(evidence.record['world_size'])])}"
    return [] if evidence.layers is None or evidence.job.quiet else [f"rank every method: {line}"]


def advise_line(evidence: Evidence, rate: float) -> str:
    """The command that ranks every method for this run; in slow motion, at the real network's rate and speed."""
    config = evidence.record["config"]
    dilation = float(config.get("network", {}).get("dilation", 1.0))
    each = max(int(rank.get("ranks_on_host", 1)) for rank in evidence.ranks)
    model = [] if dilation == 1 else ["--speed", f"{dilation:g}"]
    if evidence.layers is not None:
        model = ["--trace", str(evidence.folder / "layers.json"), *model]
    else:
        # A replayed model has a trace already, at its own speed.
        named = config["model"].get("trace")
        model = ["--trace", named] if named else ["--model", config["model"]["name"], "--probe"]
        model += [] if named else ["--batch", str(config["data"].get("batch_size", 32))]
    words = [*model, "--gbit", f"{8e-9 * rate * dilation:.3g}", "--workers", str(evidence.record["world_size"])]
    return shlex.join(["wirebench", "advise", *words, *(["--per-machine", str(each)] if each > 1 else [])])


def _changes(evidence: Evidence, link: FittedLink, known: Known) -> tuple[tuple[Change, ...], tuple[str, ...]] | None:
    """What would help, and lines on it; None where nothing can be said of this run."""
    if evidence.job is not None and evidence.job.framework == FSDP:
        return _sharded(evidence, known)
    images = evidence.record.get("samples", {}).get("unit", "images") == "images"
    try:
        config = resolve(from_dict(evidence.record["config"]))
        driver = scheduler_of(config).driver
        if driver.own_weights or not driver.messages or not (evidence.layers or evidence.drawn.buckets):
            return None
        other = Other(evidence, link)
        accuracies = known(images, other.trace.numel)
        # Compressors that were trained, and lost no more than the planner accepts; at the density of their trainings.
        fit = {
            name: ended
            for name, ended in accuracies.known.items()
            if ended.points is not None and ended.points >= -accuracies.too_much
        }
        savings = list(other.savings({name: ended.density for name, ended in fit.items()}))
    except UserError:
        return None
    found = front(savings, fit, NOTABLE * evidence.step)
    if not found:
        return None
    if evidence.job is not None:
        found = tuple(each._replace(what=built(each.settings), settings=()) for each in found)
    models = dict.fromkeys(ended.model.words for ended in fit.values() if ended.model is not None)
    trained = "; ".join(models) or accuracies.setting
    accuracy = f"accuracy: worst seed to best, beside dense training's mean, of {trained}"
    return found, (accuracy, *([] if evidence.job is None else [HOW[evidence.job.framework]]))


def _sharded(evidence: Evidence, known: Known) -> tuple[tuple[Change, ...], tuple[str, ...]] | None:
    """Fewer bits in the reduce-scatters of a job under FSDP2; gathers of parameters do not change."""
    sums = [each for each in evidence.messages if each.kind in ("reduce_scatter", "all_reduce")]
    ended = known(False, 0).known.get(SHARDS)
    now, summed = evidence.wire_bytes, sum(each.wire_bytes for each in sums)
    if ended is None or not summed:
        return None
    # An int8 share and its scales take the place of fp32.
    each = sum(evidence.job.buckets) / (sum(evidence.drawn.buckets) or 1) if evidence.job else 4.0
    left = now - summed * max(0.0, 1 - SHARD_BYTES / (each or 4.0))
    gain = evidence.exposed * (1 - left / now)
    costs = ended.lost > TOLERANCE
    what = f'compress_shards(model, compressors.build("{SHARDS}", form="int8", feedback=False))'
    if gain <= NOTABLE * evidence.step:
        return None
    trained = f"accuracy: worst seed to best, of {ended.model.words if ended.model else 'a small GPT'}"
    return (Change(what, gain, (), {}, left, _accuracy(ended), costs),), (trained, HOW[FSDP])


def built(settings: Sequence[str]) -> str:
    """The settings of a compressor as the call that builds it: compressors.build("topk", density=0.01)."""
    pairs = [each.removeprefix("compressor.").partition("=") for each in settings]
    name = next(value for key, _, value in pairs if key == "name")
    options = [f"{key}={value}" for key, _, value in pairs if key != "name"]
    return f"compressors.build({', '.join([chr(34) + name + chr(34), *options])})"


def planned(evidence: Evidence) -> tuple[tuple[int, ...], float, dict[str, float]]:
    """What a job's buckets could be: the planner's merge, and what it saves; the break-evens of a few compressors."""
    link = carried(evidence)
    shards = evidence.job is not None and evidence.job.framework == FSDP
    if link.bytes_per_second is None or not evidence.drawn.buckets or shards:
        return (), 0.0, {}
    try:
        other = Other(evidence, link)
        merge, gain = other.merge()
        even = dict(other.break_evens(dict.fromkeys(BROKEN_EVEN)))
    except UserError:
        return (), 0.0, {}
    return merge, gain, {name: even[name] for name in [name for name in BROKEN_EVEN if name in even][:3]}


def front(savings: Iterable[Saving], ended: Mapping[str, Ended], least: float) -> tuple[Change, ...]:
    """Changes that each save more than all that lose less accuracy, the mildest first.

    One line saves at least `least` seconds more than the one before. The first is the mildest of the plain compressors,
    if one loses no more than is tolerated. Of too many the mildest and the fastest stay.
    """

    def mild(each: Saving) -> tuple[bool, float, float]:
        lost = ended[each.compressor].lost
        return not (each.plain and lost <= TOLERANCE), lost, -each.seconds

    lines: list[Change] = []
    for saving in sorted(savings, key=mild):
        if saving.seconds > least + (lines[-1].gain if lines else 0.0):
            its = ended[saving.compressor]
            costs, words = its.lost > TOLERANCE, " ".join(saving.settings)
            lines.append(Change(words, saving.seconds, saving.settings, {}, saving.wire_bytes, _accuracy(its), costs))
    if len(lines) > MOST_CHANGES:
        lines = [*lines[: MOST_CHANGES - 1], lines[-1]]
    return tuple(lines)


def _accuracy(ended: Ended) -> str:
    """The accuracy in words, with the trainings' options if they differ from the compressor's own."""
    figures = _figures(ended) + (f" with {ended.options}" if ended.options else "")
    free = ended.lost <= TOLERANCE and ended.between is not None and ended.between[1] >= 0
    return f"free ({figures})" if free else figures


def _figures(ended: Ended) -> str:
    return f"{ended.cell} {'times the loss' if ended.measure is LOSS else 'points'}"
