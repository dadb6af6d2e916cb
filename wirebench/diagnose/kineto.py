"""PyTorch profiler's files of any job as evidence: what a record and its trace.json say of a run of ours.

Ranks' clocks differ. A collective ends on all ranks of its group at about the same time, so that the median difference
of its ends is the difference of two clocks. Then it is known which rank came last to each collective. A message's time
is from there to its end. Where messages overlap, their times are scaled to the time in which any of them is under way.
"""

import bisect
import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.diagnose.drawn import NOTHING, DrawnSteps
from wirebench.diagnose.evidence import Evidence
from wirebench.diagnose.full_link import planned
from wirebench.diagnose.job import FSDP, HOROVOD, Arrival, ClockOffset, RecordedJob, SizeClass, steadily
from wirebench.diagnose.link import TimedMessage, fitted
from wirebench.errors import UserError
from wirebench.gradient.flat import FLOAT_BYTES
from wirebench.gradient.schedule import LayerCost
from wirebench.schedulers.fused import Fused
from wirebench.simulation.trace import Trace, TraceLayer
from wirebench.telemetry.rank_facts import COMPUTING
from wirebench.telemetry.step_stats import PHASES
from wirebench.traces import import_kineto, job_file, profiler_file
from wirebench.traces.job_file import EXCHANGE, CollectiveSpan, ProfiledStep, RankFile
from wirebench.traces.kineto import MICROSECOND
from wirebench.utils.spans import Span, both, length, minus, union

AT_ONCE = {"gloo": 2}
"""Collectives that a back end runs at the same time: Gloo has two threads, NCCL a stream."""
SHIFTS = range(-3, 4)
"""Steps by which one rank's recording may begin later than another's, where the profiler counted none."""
CLASSES = (0, 64_000, 1_000_000, 16_000_000, 256_000_000)
"""Bytes at which a class of sizes begins."""
TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", EXCHANGE)
"""Kinds that end on all ranks at about the same time; a broadcast's root ends first."""
SHORTEST = 1.0
"""Microseconds that a message takes at least."""
MIB = 2**20
OPTIMIZERS = ("sgd", "adamw", "muon")

Key = tuple[str, int | None, int, str, int]
"""A collective of a step: kind, bytes, ranks of its group, the group, and its number among those alike."""
Row = Sequence[ProfiledStep]
"""One step, on each rank."""


class _Matched(NamedTuple):
    """A collective of a step as several ranks saw it, by the place of their files."""

    key: Key
    seen: Mapping[int, CollectiveSpan]


def read(paths: Sequence[Path]) -> Evidence:
    """The evidence of a job from its ranks' files; UserError for a file that is none, and for files of several jobs."""
    files = _ranked([job_file.read(path) for path in paths])
    first = files[0]
    rows = _aligned(files)
    if not rows:
        raise UserError(f"{first.path}: has no whole step")
    table = [_matched(row) for row in rows]
    clocks = _clocks(files, table)
    waits = _waits(files, rows, table, clocks)
    messages = _messages(files, table, clocks)
    layers, scheduler, buckets = _layers(first, _buckets(first))
    job = RecordedJob(
        first.framework, min(len(each.steps) for each in files), str(first.path), first.loads,
        max(each.left_out for each in files), *_passes(first), _rows(files), clocks[1:],
        _arrivals(files, table, clocks, waits), _sizes(files, messages),
        tuple(each.num_bytes or 0 for each in buckets),
    )  # fmt: skip
    drawn = _drawn(messages, tuple(each.elements for each in buckets))
    evidence = Evidence(
        _record(files, drawn, scheduler), [_rank(each, files) for each in files], drawn, fitted(drawn.messages),
        layers=layers, job=job,
    )  # fmt: skip
    merge, gain, break_evens = planned(evidence)
    job = job._replace(merge=merge, merge_gain=gain, break_evens=break_evens)
    return dataclasses.replace(evidence, job=job)


def _ranked(files: Sequence[RankFile]) -> list[RankFile]:
    """The files by rank, each with its rank and the size of the job; UserError where they do not go together."""
    worlds = {each.world: each.path for each in files if each.world}
    if len(worlds) > 1:
        (one, first), (other, second) = list(worlds.items())[:2]
        raise UserError(f"{second}: is of a job of {other} ranks, and {first} of one of {one}")
    sizes = [each.size for file in files for step in file.steps for each in step.collectives]
    ranks = [(each.rank or 0) + 1 for each in files]
    world = next(iter(worlds), 0) or max(2, len(files), *sizes, *ranks)  # who calls collectives is not alone
    placed: dict[int, RankFile] = {}
    for place, each in enumerate(files):
        rank = place if each.rank is None else each.rank
        if rank in placed:
            raise UserError(f"{each.path}: is of rank {rank}, as {placed[rank].path} is")
        if rank >= world:
            raise UserError(f"{each.path}: is of rank {rank}, and the job has {world} ranks")
        placed[rank] = each._replace(rank=rank, world=world, steps=[_sized(step, world) for step in each.steps])
    for each in placed.values():
        if not each.steps:
            raise UserError(f"{each.path}: has no whole step that exchanges anything")
    return [placed[rank] for rank in sorted(placed)]


def _sized(step: ProfiledStep, world: int) -> ProfiledStep:
    """The step; a collective whose group's size the file does not say is one of all ranks."""
    sized = (each if each.size > 1 else each._replace(size=world) for each in step.collectives)
    return step._replace(collectives=tuple(sized))


def _aligned(files: Sequence[RankFile]) -> list[Row]:
    """The steps that all files have; without numbers, at the shifts at which the ends of collectives agree best."""
    if all(each.numbered for each in files):
        steps = [{step.number: step for step in each.steps} for each in files]
        numbers = sorted(set[int](steps[0]).intersection(*steps))
        if not numbers:
            one, other = files[0].path, files[-1].path
            raise UserError(f"{one}: has no step of a number that {other} has; record the same steps on all ranks")
        return [[each[number] for each in steps] for number in numbers]
    shifts = [0, *(_shift(files[0], each) for each in files[1:])]
    least, most = max(shifts), min(len(each.steps) + shift for each, shift in zip(files, shifts, strict=True))
    return [
        [each.steps[place - shift] for each, shift in zip(files, shifts, strict=True)] for place in range(least, most)
    ]


def _shift(first: RankFile, other: RankFile) -> int:
    """The place of the other file's first step in the first file: the one with the least spread, of clocks nearby."""
    found = []
    for shift in SHIFTS:
        pairs = [(a, b) for place, a in enumerate(first.steps) for b in other.steps[place - shift : place - shift + 1]
                 if place >= shift]  # fmt: skip
        apart = [each for pair in pairs for each in _apart((first, other), _matched(pair), 0, 1)]
        if apart:
            middle, spread = _middle(apart)
            found.append((spread, abs(middle), shift))
    if not found:
        return 0
    narrow = 2 * min(found)[0]
    return min((each for each in found if each[0] <= narrow), key=lambda each: each[1])[2]


def _matched(row: Row) -> list[_Matched]:
    """The collectives that several ranks have, in the order of the first of them that has it."""
    seen: dict[Key, dict[int, CollectiveSpan]] = defaultdict(dict)
    for place, step in enumerate(row):
        counts: Counter[tuple[Any, ...]] = Counter()
        for each in step.collectives:
            alike = (each.kind, each.num_bytes, each.size, each.group)
            seen[(*alike, counts[alike])][place] = each
            counts[alike] += 1
    return [_Matched(key, those) for key, those in seen.items()]


def _apart(files: Sequence[RankFile], matched: Sequence[_Matched], one: int, other: int) -> list[float]:
    """Microseconds from the end of each collective on one rank's clock to its end on the other's."""
    base = (files[other].base - files[one].base) / 1000
    return [
        each.seen[other].end - each.seen[one].end + base
        for each in matched
        if one in each.seen and other in each.seen and each.key[0] in TOGETHER
    ]


def _clocks(files: Sequence[RankFile], table: Sequence[Sequence[_Matched]]) -> list[ClockOffset]:
    """Each rank's clock beside the first one's, maybe by way of a third rank's."""
    every = [each for matched in table for each in matched]
    known = {0: ClockOffset(files[0].rank or 0, 0.0, 0.0, 0)}
    left = list(range(1, len(files)))
    while left:
        beside = ((one, other) for other in left for one in known)
        found = next(
            ((one, other, apart) for one, other in beside if (apart := _apart(files, every, one, other))), None
        )
        if found is None:
            raise UserError(f"{files[left[0]].path}: has no collective in common with {files[0].path}: of another job?")
        one, other, apart = found
        middle, spread = (each * MICROSECOND for each in _middle(apart))
        before, rank = known[one], files[other].rank or 0
        known[other] = ClockOffset(rank, before.offset + middle, max(before.spread, spread), len(apart))
        left.remove(other)
    return [known[place] for place in range(len(files))]


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the width of the middle eight of ten."""
    ordered = sorted(values)
    tenth = len(ordered) // 10
    return statistics.median(ordered), ordered[len(ordered) - 1 - tenth] - ordered[tenth]


def _arrived(files: Sequence[RankFile], clocks: Sequence[ClockOffset], place: int, each: CollectiveSpan) -> float:
    """Microseconds on the first file's clock at which a rank came to a collective."""
    return each.begin + (files[place].base - files[0].base) / 1000 - clocks[place].offset / MICROSECOND


def _lasts(
    files: Sequence[RankFile], matched: Sequence[_Matched], clocks: Sequence[ClockOffset]
) -> Iterator[tuple[_Matched, int, float]]:
    """Collectives that several ranks have, with the place of the rank that came last, and when: on the first clock."""
    for each in matched:
        if len(each.seen) > 1 and each.key[0] in TOGETHER:
            came = {place: _arrived(files, clocks, place, seen) for place, seen in each.seen.items()}
            last = max(came, key=came.__getitem__)
            yield each, last, came[last]


def _waits(
    files: Sequence[RankFile], rows: Sequence[Row], table: Sequence[Sequence[_Matched]], clocks: Sequence[ClockOffset]
) -> list[dict[tuple[int, int], list[Span]]]:
    """By step and (place of a rank, place of the last one): when the rank waits, exposed, for that one."""
    found = []
    for row, matched in zip(rows, table, strict=True):
        waits: dict[tuple[int, int], list[Span]] = defaultdict(list)
        for each, last, at in _lasts(files, matched, clocks):
            for place, seen in each.seen.items():
                late = at - _arrived(files, clocks, place, seen)
                waits[place, last].append((seen.begin, min(seen.begin + late, seen.end)))
        found.append({pair: both(union(spans), row[pair[0]].exposed) for pair, spans in waits.items()})
    return found


def _arrivals(
    files: Sequence[RankFile], table: Sequence[Sequence[_Matched]], clocks: Sequence[ClockOffset],
    waits: Sequence[Mapping[tuple[int, int], Sequence[Span]]],
) -> list[Arrival]:  # fmt: skip
    """A row for each rank; the median step."""
    lasts = Counter(last for matched in table for _, last, _ in _lasts(files, matched, clocks))
    if not lasts:
        return []
    count = max(len(files) - 1, 1)
    made = []
    for place, file in enumerate(files):
        held = [sum(length(spans) for pair, spans in each.items() if pair[1] == place) / count for each in waits]
        waited = [
            length(union(span for pair, spans in each.items() if pair[0] == place for span in spans)) for each in waits
        ]
        made.append(
            Arrival(
                file.rank or 0, lasts[place] / lasts.total(), statistics.median(held) * MICROSECOND,
                statistics.median(waited) * MICROSECOND, tuple(each * MICROSECOND for each in held),
            )
        )  # fmt: skip
    return made


def _messages(
    files: Sequence[RankFile], table: Sequence[Sequence[_Matched]], clocks: Sequence[ClockOffset]
) -> list[list[tuple[CollectiveSpan, float]]]:
    """By step: the first rank's collectives in order, each with its seconds on the network."""
    found, at_once = [], AT_ONCE.get(files[0].backend, 1)
    for matched in table:
        lasts = {each.key: at for each, _, at in _lasts(files, matched, clocks)}
        mine = [(each.seen[0], each.key) for each in matched if 0 in each.seen]
        mine.sort(key=lambda pair: (pair[0].end, pair[0].begin))
        ends, spans = list[float](), list[Span]()
        for each, key in mine:
            # A rank that came last cannot have come after the collective's end; clocks are not exact.
            begin = min(max(each.begin, lasts.get(key, each.begin)), each.end)
            # In order of their ends: when the last but so many ended, a thread was free for this one.
            free = ends[-at_once] if len(ends) >= at_once else begin
            spans.append((min(max(begin, free), each.end - SHORTEST), each.end))
            ends.append(each.end)
        seconds = _scaled(spans)
        timed = zip((each for each, _ in mine), seconds, strict=True)
        found.append(sorted(timed, key=lambda pair: pair[0].begin))
    return found


def _scaled(spans: Sequence[Span]) -> list[float]:
    """Seconds of each: together as long as any of those that overlap is under way."""
    wholes = union(spans)
    begins = [begin for begin, _ in wholes]
    places = [bisect.bisect_right(begins, begin) - 1 for begin, _ in spans]
    sums: dict[int, float] = defaultdict(float)
    for place, (begin, end) in zip(places, spans, strict=True):
        sums[place] += end - begin
    return [
        (end - begin) * MICROSECOND * (wholes[place][1] - wholes[place][0]) / sums[place]
        for place, (begin, end) in zip(places, spans, strict=True)
    ]


def _drawn(messages: Sequence[Sequence[tuple[CollectiveSpan, float]]], buckets: tuple[int, ...]) -> DrawnSteps:
    """The messages of the steps that have the usual ones; nothing where the files do not say their sizes."""
    if any(each.num_bytes is None for step in messages for each, _ in step):
        return NOTHING
    # Gloo's threads begin messages that wait at the same time in any order.
    steps = [sorted(step, key=lambda pair: (pair[0].kind, pair[0].num_bytes or 0, pair[0].begin)) for step in messages]
    kinds = Counter(tuple((each.kind, each.num_bytes) for each, _ in step) for step in steps)
    usual = kinds.most_common(1)[0][0]
    alike = [step for step in steps if tuple((each.kind, each.num_bytes) for each, _ in step) == usual]
    # Those of one size cost alike; one that a busy machine has held up says nothing of the network.
    seconds: dict[tuple[str, int | None], list[float]] = defaultdict(list)
    for each, took in (pair for step in alike for pair in step):
        seconds[each.kind, each.num_bytes].append(took)
    usually = {alike_ones: statistics.median(took) for alike_ones, took in seconds.items()}
    timed = [TimedMessage(each.kind, usually[each.kind, each.num_bytes], each.wire_bytes, 1) for each, _ in alike[0]]
    return DrawnSteps(timed, sum(each.seconds for each in timed), buckets) if timed else NOTHING


def _sizes(files: Sequence[RankFile], messages: Sequence[Sequence[tuple[CollectiveSpan, float]]]) -> list[SizeClass]:
    """The collectives by kind and class of size: their number, bytes and rate of the first rank, exposed of all."""
    exposed: dict[tuple[str, int], float] = defaultdict(float)
    for file in files:
        for step in file.steps:
            for each, waited in _exposed(step):
                exposed[_class(each)] += waited * MICROSECOND / len(file.steps) / len(files)
    classes: dict[tuple[str, int], list[tuple[CollectiveSpan, float]]] = defaultdict(list)
    for message in messages:
        for each, seconds in message:
            classes[_class(each)].append((each, seconds))
    ends = dict(pairwise(CLASSES))
    found = []
    for (kind, least), those in classes.items():
        seconds, wire = sum(took for _, took in those), sum(each.wire_bytes for each, _ in those)
        count = len(messages)
        whole = sum(each.num_bytes or 0 for each, _ in those)
        found.append(
            SizeClass(
                kind, least, ends.get(least), len(those) / count, whole / count, seconds / count,
                exposed[kind, least], wire / seconds if wire and seconds else None,
            )
        )  # fmt: skip
    return sorted(found, key=lambda each: -each.exposed)


def _exposed(step: ProfiledStep) -> Iterator[tuple[CollectiveSpan, float]]:
    """Microseconds that a step waits, exposed, for its collectives: for the one under way that ends first."""
    ordered = sorted(step.collectives, key=lambda each: each.end)
    ends = [each.end for each in ordered]
    for span in step.exposed:
        left = [span]
        for each in ordered[bisect.bisect_right(ends, span[0]) :]:
            rest = minus(left, [(each.begin, each.end)])
            yield each, length(left) - length(rest)
            left = rest
            if not left:
                break


def _class(each: CollectiveSpan) -> tuple[str, int]:
    return each.kind, max(least for least in CLASSES if least <= (each.num_bytes or 0))


def _buckets(file: RankFile) -> list[list[CollectiveSpan]]:
    """The gradient's messages of a step, in the order in which they began: each order, the most frequent first."""
    # Gloo makes a reduce-scatter of an all-reduce.
    kinds = ("reduce_scatter", "all_reduce") if file.framework == FSDP else ("all_reduce",)
    steps = [
        [each for each in step.collectives if each.kind in kinds and each.in_backward and each.num_bytes]
        for step in file.steps
    ]
    orders = Counter(tuple(each.num_bytes for each in step) for step in steps)
    by_order = {tuple(each.num_bytes for each in step): step for step in steps}
    return [by_order[order] for order, _ in orders.most_common()]


def _layers(
    file: RankFile, orders: Sequence[list[CollectiveSpan]]
) -> tuple[Trace | None, dict[str, Any], list[CollectiveSpan]]:
    """The trace of the model, if the buckets are cut of its layers; the scheduler that cuts them so, and the buckets.

    Gloo's two threads may begin two buckets in the wrong order, so that one order among several is the true one.
    """
    alone = None, {"name": "wfbp"}, orders[0]
    if not orders[0] or file.framework == FSDP:
        return alone
    try:
        # Read once more: the files of all ranks together may not fit into memory.
        recording = profiler_file.load(file.path, profiler_file.read(file.path))
        layers, _ = import_kineto.layers_of(file.path, recording)
    except UserError:
        return alone
    for buckets in orders:
        scheduler = _cut([each for each in layers if each.numel], [each.elements for each in buckets])
        if scheduler is not None:
            return Trace("profile", "", file.hardware, 1, False, file.path.name, "", layers), scheduler, buckets
    return alone


def _cut(layers: Sequence[TraceLayer], buckets: Sequence[int]) -> dict[str, Any] | None:
    """`fused` with the caps at which it makes these buckets, as DDP does; None where it makes others."""
    costs = [LayerCost(each.name, each.numel, each.backward_seconds) for each in reversed(layers)]
    inner = buckets[1:-1] or buckets[-1:]
    first, later = (FLOAT_BYTES * each / MIB for each in (buckets[0], min(inner)))
    groups = Fused(later, first).partition(costs, lambda numel: 0.0)
    if [sum(costs[place].numel for place in group) for group in groups] != list(buckets):
        return None
    return {"name": "fused", "bucket_cap_mb": later, "first_bucket_mb": first}


def _passes(file: RankFile) -> tuple[int, int]:
    """The backward passes of most steps, and how many of them sum no gradients."""
    return Counter((step.passes, step.quiet) for step in file.steps).most_common(1)[0][0]


def _rows(files: Sequence[RankFile]) -> list[dict[str, Any]]:
    """Each step of each rank, for programs."""
    return [
        {
            "rank": file.rank, "step": step.number, "seconds": step.seconds, "phases": dict(step.phases),
            "launch_gap": step.launch_gap,
        }
        for file in files
        for step in file.steps
    ]  # fmt: skip


def _rank(file: RankFile, files: Sequence[RankFile]) -> dict[str, Any]:
    """A row of the record's table of ranks (rank_facts.gathered), as far as the file has it."""
    steps, facts = file.steps, file.facts
    same = sum(bool(file.host) and each.host == file.host for each in files)
    computed = [sum(step.phases[name] for name in COMPUTING) for step in steps]
    gaps = [step.launch_gap for step in steps if step.launch_gap is not None]
    row = {
        "rank": file.rank, "host": file.host or "?", "threads": facts.get("threads"), "cores": facts.get("cores"),
        "ranks_on_host": facts.get("ranks_on_host") or max(same, 1), "core_wait": facts.get("core_wait"),
        "step_seconds": statistics.median(step.seconds for step in steps),
        "compute_seconds": statistics.median(computed), "compute_steadily": steadily(computed),
        "phases": {name: statistics.fmean(step.phases[name] for step in steps) for name in PHASES},
        "sent": facts.get("sent") or {}, "link_mbit": facts.get("link_mbit") or {},
    }  # fmt: skip
    return row | ({"launch_gap": statistics.fmean(gaps)} if gaps else {})


def _record(files: Sequence[RankFile], drawn: DrawnSteps, scheduler: dict[str, Any]) -> dict[str, Any]:
    """A stand-in for the record: the fields that the files give."""
    first = files[0]
    engine = "horovod" if first.framework == HOROVOD else "torch"
    optimizer = first.optimizer if first.optimizer in OPTIMIZERS else OPTIMIZERS[0]
    steps = [step.seconds for step in first.steps]
    dense = FLOAT_BYTES * sum(drawn.buckets) or None
    wire = sum(each.wire_bytes for each in drawn.messages)
    return {
        "config": {
            "compressor": {"name": "none"}, "scheduler": scheduler, "collective": {"name": "native"},
            "engine": {"name": engine, "workers": first.world, "device": first.device},
            "optimizer": {"name": optimizer},
        },
        "environment": {"device": first.hardware, "cpu": {"model": first.facts.get("cpu", "")}},
        "engine": engine,
        "device": first.device,
        "backend": first.backend,
        "world_size": first.world,
        "step_seconds": {"median": statistics.median(steps)},
        "phases": {name: statistics.fmean(step.phases[name] for step in first.steps) for name in PHASES},
        "bytes_per_step": {"dense": dense, "wire": wire},
        "requests": [],
        "samples": {"unit": first.unit},
    }  # fmt: skip
