"""What `wirebench advise` shows: the table and the numbers."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.table import Table

from suite.planner.accuracy import ELSEWHERE, LOSS, OTHERWISE, Accuracies, ratio
from suite.planner.advice import Advice, too_close
from suite.planner.compositions import DENSE
from suite.planner.networks import WIDTH
from suite.planner.ranges import Errors
from suite.planner.timing import NOTHING, Timed
from suite.planner.wording import Ends, images, not_counted, rate
from wirebench.simulation.trace import Trace
from wirebench.utils.console import console, with_room


class Setting(NamedTuple):
    """What was simulated, where.

    network, memory   words for where the numbers come from
    gbit              between machines; bytes_per_second: of the memory that compresses
    each              workers of a machine, at most
    on_gpu            whether a GPU compresses
    """

    trace: Trace
    speed: float
    workers: int
    each: int
    network: str
    gbit: float
    memory: str
    bytes_per_second: float
    density: float | None
    on_gpu: bool

    @property
    def described(self) -> str:
        """In a figure."""
        machines = f", {self.each} on a machine" if self.each > 1 else ""
        return f"Simulated: {self.trace.name}{self.faster}, {self.images}{machines}, {self.gbit:.4g} Gbit/s"

    @property
    def images(self) -> str:
        """Workers and their batches."""
        return f"{self.workers} workers x {self.trace.batch_size} {self.trace.unit}"

    @property
    def faster(self) -> str:
        """That the trace's hardware was made faster, or ""."""
        return "" if self.speed == 1 else f", {self.speed:g} x as fast"


class Ranking(NamedTuple):
    """What was found.

    found, best  all compositions; each compressor's best
    plain        DistributedDataParallel's
    breaks       by compressor, where a rate between machines was looked for: Gbit/s below which it pays
    ends         by compressor, the range of that rate: below which it surely pays, from which on it surely does not
    left_out     by compressor, why nothing is said of it
    densities    at which the compressors work, by name
    on_noise     compressors of which the simulation knows only what they do to noise
    errors       how far off predictions may be
    timed        compressors whose rates were measured for this ranking
    """

    found: Sequence[Advice]
    best: Sequence[Advice]
    plain: Advice
    breaks: dict[str, float | None]
    ends: dict[str, Ends]
    left_out: dict[str, str]
    accuracies: Accuracies
    densities: dict[str, float | None]
    on_noise: Sequence[str]
    answer: str
    errors: Errors
    timed: Timed = NOTHING

    @property
    def dense(self) -> Advice:
        """The best dense composition."""
        return next(each for each in self.best if each.compressor == DENSE)

    def cell(self, each: Advice) -> str:
        """The table's, of what the compressor did in training."""
        return self.accuracies.cell(each, self.densities[each.compressor])

    def refused(self, each: Advice) -> str | None:
        """Why a composition is not recommended."""
        return not_counted([each], self.accuracies, self.on_noise).get(each.compressor)


def content(setting: Setting, ranking: Ranking, shown: Sequence[Advice]) -> dict[str, Any]:
    """All of it, for JSON."""
    trace = setting.trace
    return {
        "trace": {
            "name": trace.name, "estimate": trace.estimate, "source": trace.source, "speed": setting.speed,
            "unit": trace.unit,
        },
        "network": setting.network,
        "gbit": setting.gbit,
        "workers": setting.workers,
        "workers_per_machine": setting.each,
        "memory": setting.memory,
        "memory_bytes_per_second": setting.bytes_per_second,
        "density": setting.density,
        "timed_here": ranking.timed.entry(),
        "exchange_factors": {"low": ranking.errors.low, "high": ranking.errors.high, "runs": ranking.errors.runs},
        "accuracy_setting": ranking.accuracies.setting,
        "answer": ranking.answer,
        "as_ddp": _entry(ranking.plain, ranking),
        "rows": [_entry(row, ranking) for row in shown],
        "left_out": ranking.left_out,
    }  # fmt: skip


def _entry(each: Advice, ranking: Ranking) -> dict[str, Any]:
    name, below = each.compressor, ranking.breaks.get(each.compressor)
    return _ranges(each, ranking) | {
        "compressor": name, "scheduler": each.scheduler, "collective": each.collective,
        "density": ranking.densities[name], "images_per_second": each.images_per_second,
        "images_per_second_serial": each.serial, "step_seconds": each.found.step.seconds,
        "step_seconds_expected": each.expected_seconds,
        "efficiency": each.found.efficiency,
        "bytes_per_step": {"payload": each.found.num_bytes, "wire": each.found.wire_bytes},
        "exposed_seconds": each.found.step.exposed, "compress_seconds": each.found.compress,
        "communicate_seconds": each.found.communicate, "messages": len(each.found.groups),
        "break_even": None if below is None else rate(below),
        "break_even_gbit": None if below is None or math.isinf(below) else below, "limit": each.limit,
        "not_counted": ranking.refused(each), "accuracy": _accuracy(each, ranking),
    }  # fmt: skip


def _accuracy(each: Advice, ranking: Ranking) -> dict[str, Any] | None:
    """Points of top-1, or a loss over dense training's, with the range of the seeds."""
    ended = ranking.accuracies.of(each)
    if ended is None:
        return None
    number, between = ended.points, ended.between
    found: dict[str, Any] = {"top1_points": number, "top1_points_range": between}
    if ended.measure is LOSS:
        found = {
            "loss_ratio": None if number is None else ratio(number),
            "loss_ratio_range": None if between is None else [ratio(each) for each in reversed(between)],
        }
    how = {"measure": ended.measure.head, "schedule": ended.schedule or None, "options": ended.options or None}
    return found | {"density": ended.density, "diverged": number is None, **how}


def _ranges(each: Advice, ranking: Ranking) -> dict[str, Any]:
    """The range of each number that is predicted. Of a break-even null is no rate, and "always" any."""
    alone, ends = each.found.alone, ranking.ends.get(each.compressor)
    compress, communicate, exposed = _seconds(each)
    return {
        "step_seconds_range": list(each.between),
        "images_per_second_range": list(each.images_between),
        "images_per_second_serial_range": list(each.serial_between),
        "efficiency_range": [alone / each.between.high, alone / each.between.low],
        "exposed_seconds_range": exposed,
        "compress_seconds_range": compress,
        "communicate_seconds_range": communicate,
        "break_even_gbit_range": None if ends is None else [
            "always" if end is not None and math.isinf(end) else end for end in ends
        ],
        "too_close_to_call": each.compressor != DENSE and too_close(ranking.dense, each),
        "trained": ranking.accuracies.trained(each) if ranking.accuracies.known else None,
    }  # fmt: skip


def show(setting: Setting, ranking: Ranking, shown: Sequence[Advice], written: Sequence[Any]) -> None:
    """Print what was assumed, the table, what was left out, the files, and the answer."""
    rows = table(ranking, shown)
    shown_on = with_room(console(WIDTH), rows)
    left = [f"left out: {name}: {reason}" for name, reason in ranking.left_out.items()]
    files = [f"{path}: written" for path in written]
    for part in (
        [*_head(setting, ranking, shown), rows],
        [*left, _usual(ranking.plain), *files, "", ranking.answer],
    ):
        for line in part:
            shown_on.print(line, **({} if isinstance(line, Table) else PLAIN))


PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


def _head(setting: Setting, ranking: Ranking, shown: Sequence[Advice]) -> list[str]:
    trace = setting.trace
    kind = "estimated" if trace.estimate else "measured"
    alone = f"a step alone takes {1e3 * (trace.forward_seconds + trace.backward_seconds):.1f} ms"
    memory = f"{setting.bytes_per_second / 1e9:.4g} GB/s ({setting.memory})"
    accuracies = ranking.accuracies
    measure, measured = accuracies.measure, accuracies.setting or f"nothing in {accuracies.measure.folder}"
    marked = any(ranking.cell(each).endswith(ELSEWHERE) for each in shown)
    return [
        f"{trace.name}{setting.faster} ({kind}, {trace.hardware}), {setting.images}: {alone}",
        f"  {trace.source}",
        f"{setting.gbit:.4g} Gbit/s ({setting.network}); workers of a machine: {setting.each}",
        f"Compressors work in memory of {memory}, and slow nothing down.",
        *ranking.timed.said,
        f"{ranking.errors.said} ~: too close to call beside dense.",
        "Milliseconds of a step: compressing, all its messages, what of both is exposed. "
        "below: Gbit/s below which it surely pays, and above which it surely does not.",
        f"{measure.head}: {measure.told}: {measured}{f'; {ELSEWHERE}: {OTHERWISE}' if marked else ''}.",
    ]


def _usual(plain: Advice) -> str:
    composed = ", ".join((plain.compressor, plain.scheduler, plain.collective))
    return f"As DDP has it ({composed}): {images(plain)} {plain.unit}/s"


def table(ranking: Ranking, shown: Sequence[Advice]) -> Table:
    """The ranking. Milliseconds of compressing, of all messages of a step together, and of both what is not hidden."""
    made = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    made.add_column("", justify="right", no_wrap=True)
    for head in ("compressor", "scheduler", "collective"):
        made.add_column(head, no_wrap=True)
    rate = "img/s" if shown[0].unit == "images" else f"{shown[0].unit}/s"
    accuracy = [ranking.accuracies.measure.head] if ranking.accuracies.known else []
    for head in (rate, "wire MB", "compress", "messages", "exposed", "below", *accuracy):
        made.add_column(head, justify="right", no_wrap=True)
    made.add_column("limit", no_wrap=True)
    seen: set[str] = set()
    for number, each in enumerate(shown, 1):
        # A break-even is that of the compressor's best composition, which is the first of it here, or a usual schedule.
        known = ranking.breaks if each.compressor not in seen else {}
        seen.add(each.compressor)
        made.add_row(
            str(number), each.compressor, each.scheduler, each.collective, images_range(each, ranking),
            f"{each.found.wire_bytes / 1e6:.4g}", *map(_milliseconds, _seconds(each)),
            _below(*ranking.ends[each.compressor]) if each.compressor in known else "",
            *([ranking.cell(each)] if accuracy else []), each.limit,
        )  # fmt: skip
    return made


def images_range(each: Advice, ranking: Ranking) -> str:
    """Images per second, at least and at most; ~: too close to call beside dense."""
    low, high = each.images_between
    close = each.compressor != DENSE and too_close(ranking.dense, each)
    return f"{low:.0f}-{high:.0f}{'~' * close}"


def _seconds(each: Advice) -> tuple[list[float], list[float], list[float]]:
    """Of compressing, of all messages, of what of both is exposed: each at least and at most."""
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
