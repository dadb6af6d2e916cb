"""What `wirebench advise` shows: what is assumed, three answers, the table; and the numbers as JSON."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from rich.table import Table

from wirebench.planner import sums
from wirebench.planner.accuracy import (
    ELSEWHERE,
    LOSS,
    OTHERWISE,
    SAME_SIZE,
    Accuracies,
    Ended,
    Standing,
    is_exact,
    ratio,
)
from wirebench.planner.answer import Judge, Line
from wirebench.planner.candidate import Candidate, Speedup, overrides
from wirebench.planner.compositions import DENSE
from wirebench.planner.ddp_caps import better_merge, caps_of
from wirebench.planner.networks import WIDTH, rate
from wirebench.planner.ranges import Errors
from wirebench.planner.sums import SumRow
from wirebench.planner.timing import NOTHING, TimedExchange
from wirebench.simulation.trace import Trace
from wirebench.topology.tree import Link
from wirebench.utils.console import console, say, with_room

Ends = tuple[float | None, float | None]
"""Gbit/s below which a compressor surely pays, and from which on it surely does not; None: no rate, inf: any."""
SCHEDULE_WIDTH = 15
"""Columns of a schedule with its options, which are folded at their colons."""
AT_EQUAL_TIME = "equal time"
"""The column of losses beside dense training that takes as long."""


class ShownSetting(NamedTuple):
    """What was simulated, where.

    network, memory   words for where the numbers come from
    gbit              between machines; bytes_per_second: of the memory that compresses
    busy              a warning if other programs disturbed the memory's measurement, or ""
    each              workers of a machine, at most; inside: what links them, in words; link: how fast it is
    on_gpu            whether a GPU compresses
    pods              where FSDP shards the model: the pods and their bytes, in words and as JSON values
    """

    trace: Trace
    speed: float
    workers: int
    each: int
    inside: str
    link: Link
    network: str
    gbit: float
    memory: str
    bytes_per_second: float
    busy: str
    density: float | None
    on_gpu: bool
    pods: str = ""
    pods_entry: Mapping[str, Any] = MappingProxyType({})

    @property
    def described(self) -> str:
        """The setting in words, for the note of a figure."""
        machines = f", {self.each} on a machine" if self.each > 1 else ""
        return f"Simulated: {self.trace.name}{self.faster}, {self.images}{machines}, {self.gbit:.4g} Gbit/s"

    @property
    def alone_per_second(self) -> float:
        """Images per second, or what else the trace has, of one worker that exchanges nothing."""
        return self.trace.batch_size / (self.trace.forward_seconds + self.trace.backward_seconds)

    @property
    def images(self) -> str:
        """Workers and their batches."""
        return f"{self.workers} workers x {self.trace.batch_size} {self.trace.unit}"

    @property
    def faster(self) -> str:
        """That the trace's hardware was made faster, or ""."""
        return "" if self.speed == 1 else f", {self.speed:g} x as fast"


Key = tuple[str, str, str]
"""A compressor, a schedule and a collective."""


class Ranking(NamedTuple):
    """The result of a ranking.

    found, best  all compositions; each compressor's best, without local steps and with them
    lines        the three answers
    breaks       break-even rates between machines, where searched: Gbit/s below which a composition pays
    ends         the ranges of these rates: below the first it surely pays, from the second on it surely does not
    left_out     by compressor, why it is not ranked
    densities    of the compressors, by name
    errors       how far off predictions may be
    numel        parameters of the requested model
    timed        compressors whose rates were measured for this ranking
    sums         dense gradients by wire format, where they are asked for
    """

    found: Sequence[Candidate]
    best: Sequence[Candidate]
    lines: Sequence[Line]
    judge: Judge
    breaks: dict[Key, float | None]
    ends: dict[Key, Ends]
    left_out: dict[str, str]
    densities: dict[str, float | None]
    errors: Errors
    numel: int
    timed: TimedExchange = NOTHING
    sums: Sequence[SumRow] = ()

    @property
    def accuracies(self) -> Accuracies:
        """Accuracy or loss of the compressors' trainings."""
        return self.judge.accuracies

    def cell(self, each: Candidate) -> str:
        """The table's, of what the compressor did in training; no range where the model is of another size."""
        ended = self.accuracies.of(each)
        if is_exact(each):
            return "exact"
        if ended is None:
            return "untrained"
        other = self.accuracies.otherwise(each, self.densities[each.compressor])
        return (ended.cell if self.is_near(ended) else ended.mean) + ELSEWHERE * bool(other)

    def is_near(self, ended: Ended) -> bool:
        """Whether the model that was trained is about as large as the one that is asked for."""
        if ended.model is None:
            return False
        return 1 / SAME_SIZE <= ended.model.parameters / self.numel <= SAME_SIZE


def content(setting: ShownSetting, ranking: Ranking, shown: Sequence[Candidate]) -> dict[str, Any]:
    """The setting, the ranking and the shown rows as JSON values."""
    trace = setting.trace
    return {
        "trace": {
            "name": trace.name, "estimate": trace.estimate, "source": trace.source, "speed": setting.speed,
            "unit": trace.unit, "parameters": ranking.numel,
        },
        "network": setting.network,
        "gbit": setting.gbit,
        "workers": setting.workers,
        "one_alone_per_second": setting.alone_per_second,
        "workers_per_machine": setting.each,
        "inside": setting.inside or None,
        "memory": setting.memory,
        "memory_bytes_per_second": setting.bytes_per_second,
        "warnings": [setting.busy] * bool(setting.busy),
        "density": setting.density,
        "timed_here": ranking.timed.entry(),
        "exchange_factors": {"low": ranking.errors.low, "high": ranking.errors.high, "runs": ranking.errors.runs},
        "accuracy_setting": ranking.accuracies.setting,
        "tolerance": ranking.judge.tolerance,
        "answer": {line.key: _answer(line, ranking) for line in ranking.lines},
        "as_ddp": _entry(ranking.judge.plain, ranking),
        "rows": [_entry(row, ranking) for row in shown],
        "left_out": ranking.left_out,
        "lossless": sums.load(trace.unit).entry(),
        **({"sums": [row.entry() for row in ranking.sums]} if ranking.sums else {}),
        **({"pods": dict(setting.pods_entry)} if setting.pods else {}),
    }  # fmt: skip


def _answer(line: Line, ranking: Ranking) -> dict[str, Any]:
    """The line's row of the table; or why there is none."""
    return {"nothing": line.nothing} if line.advice is None else _entry(line.advice, ranking)


def _entry(each: Candidate, ranking: Ranking) -> dict[str, Any]:
    name, below, judge = each.compressor, ranking.breaks.get(key_of(each)), ranking.judge
    return _ranges(each, ranking) | {
        "compressor": name, "scheduler": each.scheduler, "collective": each.collective,
        "density": ranking.densities[name], "overrides": overrides(each, ranking.densities[name]),
        "speedup": judge.gain(each).expected,
        "images_per_second": each.images_per_second,
        "images_per_second_serial": each.serial, "step_seconds": each.found.step.seconds,
        "step_seconds_expected": each.expected_seconds,
        "efficiency": each.found.efficiency,
        "bytes_per_step": {"payload": each.found.num_bytes, "wire": each.found.wire_bytes},
        "exposed_seconds": each.found.step.exposed, "compress_seconds": each.found.compress,
        "communicate_seconds": each.found.communicate, "messages": len(each.found.groups),
        "break_even": None if below is None else rate(below),
        "break_even_gbit": None if below is None or math.isinf(below) else below, "limit": each.limit,
        "standing": judge.standing(each).name.lower(),
        "not_recommended": judge.reason(each), "accuracy": _accuracy(each, ranking),
        "ddp_bucket_cap_mb_list": caps_of(each) or None,
    }  # fmt: skip


def _accuracy(each: Candidate, ranking: Ranking) -> dict[str, Any] | None:
    """Points of top-1, or a loss over dense training's, with the range of the seeds."""
    ended = ranking.accuracies.of(each)
    if ended is None:
        return None
    number, between = ended.points, ended.between
    found: dict[str, Any] = {"top1_points": number, "top1_points_range": between}
    if ended.measure is LOSS:
        in_time = ranking.judge.in_time(each)
        found = {
            "loss_ratio": None if number is None else ratio(number),
            "loss_ratio_range": None if between is None else [ratio(each) for each in reversed(between)],
            "loss_ratio_in_time": None if in_time is None else in_time[0],
            "in_time_is_upper_bound": in_time is not None and not in_time[1],
        }
    how = {"measure": ended.measure.head, "schedule": ended.schedule or None, "options": ended.options or None}
    lost = None if number is None else ended.lost
    model = None if ended.model is None else {**ended.model._asdict(), "near": ranking.is_near(ended)}
    return found | {"density": ended.density, "diverged": number is None, "worst_seed_lost": lost, "of": model, **how}


def _ranges(each: Candidate, ranking: Ranking) -> dict[str, Any]:
    """The range of each number that is predicted. Of a break-even null is no rate, and "always" any."""
    ends, gain = ranking.ends.get(key_of(each)), ranking.judge.gain(each)
    compress, communicate, exposed = _seconds(each)
    return {
        "speedup_range": [gain.low, gain.high],
        "too_close_to_call": gain.too_close,
        "step_seconds_range": list(each.between),
        "images_per_second_range": list(each.images_between),
        "images_per_second_serial_range": list(each.serial_between),
        "efficiency_range": list(each.between.rates(each.found.alone)),
        "exposed_seconds_range": exposed,
        "compress_seconds_range": compress,
        "communicate_seconds_range": communicate,
        "break_even_gbit_range": None if ends is None else [
            "always" if end is not None and math.isinf(end) else end for end in ends
        ],
    }  # fmt: skip


def key_of(each: Candidate) -> Key:
    """The key of its break-even rate."""
    return each.compressor, each.scheduler, each.collective


def show(
    setting: ShownSetting, ranking: Ranking, shown: Sequence[Candidate], written: Sequence[Any], wide: bool
) -> None:
    """Print what was assumed, the three answers, the table, and what is to be said of it."""
    rows = table(ranking, shown, wide)
    shown_on = with_room(console(WIDTH), rows)
    marked = any(ranking.cell(each).endswith(ELSEWHERE) for each in shown)
    notes = [f"{ELSEWHERE}: {OTHERWISE}"] * marked + [BREAK_EVEN] * bool(ranking.ends)
    notes += [OF_LANGUAGE] * (ranking.accuracies.measure is LOSS) + ranking.timed.said + [REPLACED] * setting.on_gpu
    left = [f"left out: {name}: {reason}" for name, reason in ranking.left_out.items()]
    notes += [] if setting.pods else better_merge(ranking.found, ranking.judge.plain)
    known = sums.load(setting.trace.unit)
    notes.append(known.bar)
    files = [f"{path}: written" for path in written]
    width = max(len(line.name) for line in ranking.lines)
    answers = [f"{line.name:<{width}}  {words_of(line, ranking, setting)}" for line in ranking.lines]
    for part in (_head(setting, ranking, shown), _more(setting, ranking) if wide else [], ["", *answers, ""]):
        say(shown_on, part)
    shown_on.print(rows)
    if ranking.sums:
        summed = sums.table(ranking.sums)
        with_room(shown_on, summed).print("", summed, sep="\n")
        notes += sums.notes(ranking.sums, known)
    say(shown_on, (*notes, *_how_to_run(ranking, setting), *left, *files))


BREAK_EVEN = "pays below: surely at less than the first rate, surely not at more than the second; in between is open"
OF_LANGUAGE = "loss: of language models; to a model of another kind these losses hardly apply"
REPLACED = "Compressors' times on a GPU are those of version 0.1's kernels; the present ones are not timed yet."


def _head(setting: ShownSetting, ranking: Ranking, shown: Sequence[Candidate]) -> list[str]:
    """The assumptions, in four lines, and a warning if there is one."""
    trace, judge = setting.trace, ranking.judge
    seconds = trace.forward_seconds + trace.backward_seconds
    inside = f"; {setting.each} workers a machine, on {setting.inside}" if setting.inside else ""
    measure, of = ranking.accuracies.measure, _trained(ranking, shown)
    unit = " %" if measure is LOSS else " points"
    as_long = f"; {AT_EQUAL_TIME}: beside dense training that takes as long; rows at a cost stand in its order"
    in_time = as_long * bool(judge.accuracies.dense)
    told = (
        f"{measure.told}, of {of}{in_time}; tolerance {judge.tolerance:g}{unit} lost by the worst seed"
        if of
        else "nothing was trained"
    )
    plain = judge.plain
    return [
        f"{trace.name}{setting.faster} ({trace.made}), {trace.numel / 1e6:.3g}M parameters, "
        f"{setting.images}: a step alone takes {1e3 * seconds:.1f} ms, {setting.alone_per_second:.0f} {trace.unit}/s",
        f"{setting.gbit:.4g} Gbit/s ({setting.network.partition(':')[0]}){inside}; "
        f"compressors in memory of {setting.bytes_per_second / 1e9:.4g} GB/s ({setting.memory})",
        *[setting.busy] * bool(setting.busy),
        *[setting.pods] * bool(setting.pods),
        f"speed-up: over dense {'hybrid sharding' if setting.pods else 'training as DDP has it'} "
        f"({plain.scheduler} on {plain.collective}), {images(plain)} {plain.unit}/s",
        f"{measure.head}: {told}",
    ]


def _trained(ranking: Ranking, shown: Sequence[Candidate]) -> str:
    """The models whose trainings are shown, in words, the one that counts first."""
    ended = [ranking.accuracies.of(each) for each in shown]
    models = {each.model.parameters: each.model.words for each in ended if each is not None and each.model is not None}
    # Losses of language models are those of one study, and else of another; of image models the size decides.
    dense = ranking.accuracies.known[DENSE].model if ranking.accuracies.dense else None
    first = None if dense is None else dense.parameters
    order = sorted(models, key=lambda numel: (numel != first, abs(math.log(numel / ranking.numel))))
    return ", else of ".join(models[numel] for numel in order)


def _more(setting: ShownSetting, ranking: Ranking) -> list[str]:
    """Where the numbers come from."""
    measured = ranking.accuracies.setting or f"nothing in {ranking.accuracies.measure.folder}"
    return [
        f"trace: {setting.trace.source}",
        f"network: {setting.network}",
        "compressors slow nothing else down",
        ranking.errors.said,
        f"trained: {measured}",
        "milliseconds of a step: compressing, all its messages, what of both is not hidden",
    ]


def words_of(line: Line, ranking: Ranking, setting: ShownSetting) -> str:
    """The composition, its speed-up, what it loses, its bytes; and whether one worker alone is faster."""
    each = line.advice
    if each is None:
        return line.nothing
    gain, name = ranking.judge.gain(each), "dense" if each.compressor == DENSE else each.compressor
    density = ranking.densities[each.compressor]
    name += "" if density is None else f" density={density:g}"
    close = ", too close to call" * gain.too_close
    close += ", slower than one worker alone" * (each.images_per_second < setting.alone_per_second)
    return (
        f"{name} with {each.scheduler} on {each.collective}: {_gain(each, ranking)}{close}; {_loss(each, ranking)}; "
        f"{each.found.wire_bytes / 1e6:.4g} MB a step"
    )


def _gain(each: Candidate, ranking: Ranking) -> str:
    gain = ranking.judge.gain(each)
    return f"{gain.expected:.2f}x [{gain.low:.2f} - {gain.high:.2f}]"


def _short(gain: Speedup) -> str:
    """A speed-up in the table: three digits."""
    expected, low, high = (f"{each:.{2 if each < 9.995 else 1 if each < 99.95 else 0}f}" for each in gain)
    return f"{expected}x [{low}-{high}]"


def _loss(each: Candidate, ranking: Ranking) -> str:
    """Its loss of accuracy in words, with the model on which it was measured."""
    ended = ranking.accuracies.of(each)
    if is_exact(each) or ended is None:
        return "loses nothing"
    number, unit = (ended.said if ranking.is_near(ended) else ended.mean), ended.measure.unit
    found = f"loss {number}{unit}" if ended.measure is LOSS else f"{ended.measure.head} {number} {unit}"
    if ended.measure is LOSS and (in_time := ranking.judge.in_time(each)) is not None:
        found += f" at equal tokens, {'' if in_time[1] else 'at most '}{in_time[0]:.3f}x at {AT_EQUAL_TIME}"
    return found if ended.model is None else f"{found}, of {ended.model.words}"


def images(each: Candidate) -> str:
    """Images per second, with their range."""
    low, high = each.images_between
    return f"{each.images_per_second:.0f} [{low:.0f} - {high:.0f}]"


def table(ranking: Ranking, shown: Sequence[Candidate], wide: bool) -> Table:
    """The ranking; wide: with rates, bytes, and the milliseconds of compressing and of messages."""
    made = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    accuracies = ranking.accuracies
    made.add_column("", justify="right", no_wrap=True)
    for head in ("compressor", "scheduler", "collective"):
        made.add_column(head, no_wrap=True)
    in_time = [AT_EQUAL_TIME.replace(" ", "\n")] * bool(accuracies.dense)
    more = [
        "img/s" if shown[0].unit == "images" else f"{shown[0].unit}/s",
        "wire MB",
        "compress",
        "messages",
        "exposed",
    ]
    worst = "lost\n%" if accuracies.measure is LOSS else "worst\nseed"
    for head in ("speed-up", accuracies.measure.head, worst, *in_time, "pays below\nGbit/s", *more * wide):
        made.add_column(head, justify="right", no_wrap=True)
    made.add_column("limit", no_wrap=True)
    group = ""
    for number, each in enumerate(shown, 1):
        if (now := _group(each, ranking)) != group:
            made.add_row("", group := now, style="bold")
        ends = ranking.ends.get(key_of(each))
        cells = [images_range(each), f"{each.found.wire_bytes / 1e6:.4g}", *map(_milliseconds, _seconds(each))]
        made.add_row(
            str(number), _folded(each.compressor), _folded(each.scheduler), each.collective,
            _short(ranking.judge.gain(each)), ranking.cell(each), _worst(each, ranking),
            *[_in_time(each, ranking)] * len(in_time), "" if ends is None else _below(*ends), *cells * wide, each.limit,
        )  # fmt: skip
    return made


def _group(each: Candidate, ranking: Ranking) -> str:
    """What stands above the rows of its kind."""
    standing = ranking.judge.standing(each)
    if standing is Standing.WITHIN:
        return "free, nearly free"
    return "at a cost" if standing is Standing.COSTS else "not recommended"


def _worst(each: Candidate, ranking: Ranking) -> str:
    """What its worst seed lost, which the tolerance is compared with: percent of a loss, or points beside dense."""
    ended = ranking.accuracies.of(each)
    if is_exact(each) or ended is None or ended.points is None:
        return ""
    return f"{ended.lost:.1f}" if ended.measure is LOSS else f"{round(-ended.lost, 1) + 0.0:+.1f}"


def _how_to_run(ranking: Ranking, setting: ShownSetting) -> list[str]:
    how = "wirebench bench pods CONFIG" if setting.pods else "train with"
    return [
        f"{line.name}: {how} {' '.join(overrides(line.advice, ranking.densities[line.advice.compressor]))}"
        for line in ranking.lines
        if line.advice is not None
    ]


def _in_time(each: Candidate, ranking: Ranking) -> str:
    found = ranking.judge.in_time(each)
    return "" if found is None else f"{'' if found[1] else '<'}{found[0]:.3f}"


def _folded(words: str) -> str:
    """A compressor or a schedule with its options, on lines of SCHEDULE_WIDTH, if it can be."""
    lines = [""]
    for part in words.split(":"):
        text = f":{part}" if lines != [""] else part
        if lines[-1] and len(lines[-1]) + len(text) > SCHEDULE_WIDTH:
            lines.append("")
        lines[-1] += text
    return "\n".join(lines)


def images_range(each: Candidate) -> str:
    """Images per second, at least and at most."""
    low, high = each.images_between
    return f"{low:.0f}-{high:.0f}"


def _seconds(each: Candidate) -> tuple[list[float], list[float], list[float]]:
    """Seconds of compressing, of all messages, and of the exposed part of both: each at least and at most."""
    return (
        [each.found.compress * factors.compress for factors in each.factors],
        [each.found.communicate * factors.messages for factors in each.factors],
        [seconds - each.found.alone for seconds in each.between],
    )


def _milliseconds(ends: Sequence[float]) -> str:
    """A range; what is alike at both ends stands once."""
    return "-".join(dict.fromkeys(f"{abs(round(1e3 * each, 1)):.1f}" for each in ends))


def _below(surely: float | None, possibly: float | None) -> str:
    """The range of a break-even."""
    if possibly is None:
        return "nowhere"
    if surely is not None and math.isinf(surely):
        return "always"
    return f"{surely or 0:.3g}-{'any' if math.isinf(possibly) else f'{possibly:.3g}'}"
