"""A rank's file of PyTorch's profiler, of a distributed job: its steps, where their time goes, and its collectives.

The data loader's ranges, autograd's forward operators and backward nodes, and the optimizer's ranges divide the host's
time into phases. On a CPU the exchange is exposed where a collective is in flight and no operator computes. On a GPU it
is exposed where one of NCCL's kernels runs and no other kernel does; a kernel belongs to the phase of its launch.

Horovod's collectives on a CPU are not in the file. Its optimizer's range holds the range of the optimizer that it
wraps, and waits for the collectives before that.
"""

import bisect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from wirebench.comm.base import ring_reduce_bytes
from wirebench.errors import UserError
from wirebench.telemetry.rank_facts import OURS
from wirebench.telemetry.step_stats import PHASES
from wirebench.traces import profiler_file
from wirebench.traces.host_time import DDP, FSDP, UPDATE, HostPhases
from wirebench.traces.kineto import COMMUNICATION, MICROSECOND
from wirebench.traces.profiler_file import Event, Recording
from wirebench.utils.spans import Span, both, length, minus, union

PARAMETERS, GLOO = "record_param_comms", "gloo:"
NAME = "Collective name"
NUMBERS, TEXTS, TABLES = (
    ("rank", "world_size", "threads", "cores", "ranks_on_host", "core_wait"), ("host", "backend", "cpu"),
    ("sent", "link_mbit"),
)  # fmt: skip
"""Keys of those facts."""
BRIDGE = 100.0
"""Microseconds between two operators of a CPU that count as computing: Python and autograd take as long to go on."""
NO_WORK = (
    "autograd::",
    "torch::autograd::",
    "torch::distributed::",
    "torch.distributed.",
    "c10d::",
    "_c10d_functional",
)
"""Begins of operators that contain other ones, or wait for collectives."""
IN_BACKWARD = ("backward", "")
"""Phases in which gradients are summed; a loop of its own sums them after the backward pass, outside of all phases."""
SUMS = ("all_reduce", "reduce_scatter", "reduce")
"""Kinds that sum gradients."""
EXCHANGE = "exchange"
"""The kind of all of Horovod's collectives of a step, of which the file has the wait alone."""
WITHIN = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
"""Kinds that count as messages."""
_KIND = re.compile("reduce_?scatter|all_?reduce|all_?gather|all_?to_?all|broadcast|barrier|reduce", re.IGNORECASE)
_KINDS = {each.replace("_", ""): each for each in (*WITHIN, "barrier")}
_BYTES = {
    "float": 4, "int": 4, "unsigned int": 4, "double": 8, "long": 8, "long int": 8, "half": 2, "bfloat16": 2,
    "short": 2, "short int": 2, "char": 1, "signed char": 1, "byte": 1, "unsigned char": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "tensorlist": 4, "float32": 4, "float16": 2,
}  # fmt: skip
"""Bytes of an element by its type, in lower case; a list of tensors says no type, and gradients are fp32 as a rule."""
COUNTS = ("int", "unsigned int", "long", "long int")
"""Types whose sums are no gradients: DDP counts in them which parameters were used (find_unused_parameters)."""


class CollectiveSpan(NamedTuple):
    """A collective of one step, as one rank saw it.

    elements     of its tensor, as nccl-tests counts: all that an all-gather makes, all that a reduce-scatter takes
    num_bytes    of the same; None where the file does not say
    size, group  ranks of its group, and what tells it from others: its ranks or its name; "" for all ranks
    begin, end   microseconds on the file's clock: in flight, on a GPU while its kernel runs
    in_backward  whether the backward pass began it, and it is none of counts
    """

    kind: str
    elements: int
    num_bytes: int | None
    size: int
    begin: float
    end: float
    in_backward: bool
    group: str = ""

    @property
    def wire_bytes(self) -> float:
        """Bytes that a rank sends if the collective is a ring."""
        whole = self.num_bytes or 0
        if self.kind == "all_reduce":
            return ring_reduce_bytes(whole, self.size)
        return whole if self.kind in ("broadcast", "reduce") else whole * (self.size - 1) / self.size


class ProfiledStep(NamedTuple):
    """One step of one rank.

    number      of the profiler's step, or its place
    begin, end  microseconds on the file's clock; of a GPU: from the end of the last step's kernels to its own end
    phases      seconds by name (step_stats.PHASES)
    exposed     when it waited for collectives
    launch_gap  seconds in which the GPU was idle while the host was in the passes or the update; None on a CPU
    passes      backward passes; quiet: how many of them sum no gradients, since the loop accumulates them
    """

    number: int
    begin: float
    end: float
    phases: Mapping[str, float]
    exposed: Sequence[Span]
    launch_gap: float | None
    collectives: Sequence[CollectiveSpan]
    passes: int = 1
    quiet: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end - self.begin) * MICROSECOND


class RankFile(NamedTuple):
    """A rank's file.

    world      ranks of the job; 0 where the file does not say
    host       its name; "" where the file does not say
    device     cpu or cuda; hardware: the GPU's name
    framework  ddp, fsdp, horovod, or other
    facts      of wirebench.watch on this rank; empty in a file of torch.profiler alone
    numbered   whether the profiler counted the steps, so that ranks' steps of one number belong together
    base       nanoseconds that the file's clock begins at
    loads      whether the loop has a DataLoader; else data is what passes between an update and the next forward pass
    optimizer  the class of the optimizer, in lower case
    unit       images or tokens: what a model with an embedding takes
    left_out   whole steps of the file that exchange nothing, and are not among `steps`
    """

    path: Path
    rank: int | None
    world: int
    host: str
    device: str
    hardware: str
    backend: str
    framework: str
    facts: Mapping[str, Any]
    steps: Sequence[ProfiledStep]
    numbered: bool
    base: int
    loads: bool
    optimizer: str
    unit: str
    left_out: int


def read(path: Path) -> RankFile:
    """The file; UserError where it is damaged, is no profiler's, or has no steps or no collectives."""
    recording = profiler_file.load(path, profiler_file.read(path))
    return of(path, recording)


def of(path: Path, recording: Recording) -> RankFile:
    """Return the file of a recording, with the errors of `read`."""
    host, about = HostPhases(path, recording), recording.about
    facts = _facts(about.get(OURS))
    own = about.get("distributedInfo")
    told = {**(own if isinstance(own, Mapping) else {}), **facts}
    world = _whole(told.get("world_size")) or 0
    nccl = [kernel for kernel in recording.kernels if kernel.name.lower().startswith(COMMUNICATION)]
    gloo = _of_gloo(recording, host, world)
    calls = [*_of_nccl(recording, nccl, host), *gloo]
    # Without a back end in init_process_group the file says `undefined`, or names one for each device.
    backend = "nccl" if nccl else "gloo" if gloo else str(told.get("backend") or "gloo").rpartition(":")[2]
    flight = union((each.begin, each.end) for _, each in calls)
    waits = [] if calls else host.waits
    calls += [(span[0], CollectiveSpan(EXCHANGE, 0, None, max(world, 2), *span, True)) for span in waits]
    if not calls:
        _refuse(path, recording, world)
    kept = [(call, each) for call, each in calls if each.kind in (*WITHIN, EXCHANGE)]
    host.join(call for call, each in kept if each.kind in SUMS)
    steps = _on_gpu(recording, host, flight) if recording.kernels else _on_cpu(recording, host, flight, waits)
    made, left_out = _exchanging(host, steps, kept)
    # A recording may end within a step. The first has what the profiler's start costs: watch records one more.
    made = made[1:] if len(made) > (1 if facts or host.partial else 2) else made
    return RankFile(
        path, _rank(path, told), world, _host_name(path, about, facts), "cuda" if recording.kernels else "cpu",
        recording.hardware, backend, _framework(host), facts, made, host.numbered,
        _whole(about.get("baseTimeNanoseconds")) or 0, host.loads, _optimizer(host),
        "tokens" if any(each.name == "aten::embedding" for each in recording.operators) else "images", left_out,
    )  # fmt: skip


def _exchanging(
    host: HostPhases, steps: Sequence[ProfiledStep], calls: Sequence[tuple[float, CollectiveSpan]]
) -> tuple[list[ProfiledStep], int]:
    """The steps that call collectives, with these; where the file has backward passes, those that have one.

    calls  (microsecond, collective)
    Also returns how many steps do not: a step whose last message the recording did not see end is not among them.
    """
    spans, trains = {number: span for number, *span in host.steps}, bool(host.spans["backward"])
    made, left_out = list[ProfiledStep](), 0
    for step in steps:
        begin, end = spans[step.number]
        own = [(call, each) for call, each in calls if begin <= call < end]
        passes = host.passes(begin, end)
        if not own or (trains and not passes):
            left_out += 1
            continue
        # Gloo's thread may end a range after the recording is over: it then has no length, and no size.
        if any(each.begin == each.end for _, each in own):
            continue
        summed = {bisect.bisect_right(passes, call) for call, each in own if each.kind in SUMS and each.in_backward}
        # Without a wrapper's ranges one backward pass may look like several.
        quiet = len(passes) - len(summed - {0}) if host.wrapped and summed - {0} else 0
        made.append(
            step._replace(
                collectives=tuple(each for _, each in own), passes=len(passes) if host.wrapped else 1, quiet=quiet
            )
        )
    return made, left_out


def _refuse(path: Path, recording: Recording, world: int) -> NoReturn:
    """UserError for a file without collectives."""
    if any(each.name == PARAMETERS for each in recording.operators) and not recording.kernels:
        raise UserError(f"{path}: has no kernels; record with ProfilerActivity.CUDA beside ProfilerActivity.CPU")
    job = f", though the job has {world} ranks; record steps of training" if world > 1 else ": one process needs none"
    raise UserError(f"{path}: has no collectives, neither NCCL's kernels nor Gloo's ranges{job}")


def _on_cpu(
    recording: Recording, host: HostPhases, flight: Sequence[Span], waits: Sequence[Span]
) -> list[ProfiledStep]:
    """The steps of a job whose operators compute on the host. waits: what an optimizer's range waits for Horovod."""
    work = (
        (each.begin, each.end)
        for each in recording.operators
        if each.thread in host.threads and "::" in each.name and not each.name.startswith(NO_WORK)
    )
    waiting = union([*minus(flight, union(work, BRIDGE)), *waits])
    steps = []
    for number, begin, end in host.steps:
        window = [(begin, end)]
        exposed = both(waiting, window)
        here = {name: length(minus(both(spans, window), exposed)) for name, spans in host.spans.items()}
        steps.append(_step(host, number, (begin, end), here, exposed, None))
    return steps


def _on_gpu(recording: Recording, host: HostPhases, flight: Sequence[Span]) -> list[ProfiledStep]:
    """The steps of a job whose kernels compute; a step ends with the last kernel that the host launched in it."""
    calls = {each.correlation: each.begin for each in recording.launches if "correlation" in each.args}
    timed = ((calls.get(each.correlation, each.begin), each) for each in _computing(recording))
    launched = sorted(timed, key=lambda pair: pair[0])
    by_label: dict[str, list[Span]] = {}
    for called, kernel in launched:
        by_label.setdefault(host.label(called), []).append((kernel.begin, kernel.end))
    passes, taken = {}, list[Span]()
    for name in ("forward", "backward", "update"):
        passes[name] = minus(union(by_label.get(name, [])), taken)
        taken = union([*taken, *passes[name]])
    busy = union((kernel.begin, kernel.end) for _, kernel in launched)
    at = [called for called, _ in launched]
    steps, last = [], -math.inf
    for number, begin, end in host.steps:
        first, after = bisect.bisect_left(at, begin), bisect.bisect_left(at, end)
        done = max((kernel.end for _, kernel in launched[first:after]), default=-math.inf)
        if done <= last:
            continue
        window = [(begin if last == -math.inf else last, done)]
        exposed = minus(both(flight, window), busy)
        idle = minus(minus(window, busy), flight)
        here = {name: length(both(spans, window)) for name, spans in passes.items()}
        here |= {name: length(both(idle, host.spans[name])) for name in ("data", "before")}
        within = union([*host.spans["forward"], *host.spans["backward"], *host.spans["update"]])
        steps.append(_step(host, number, window[0], here, exposed, length(both(idle, within)) * MICROSECOND))
        last = done
    return steps


def _computing(recording: Recording) -> Iterable[Event]:
    return (each for each in recording.kernels if not each.name.lower().startswith(COMMUNICATION))


def _step(
    host: HostPhases, number: int, span: Span, here: Mapping[str, float], exposed: Sequence[Span], gap: float | None
) -> ProfiledStep:
    """A step from microseconds by label; without a data loader, what passes before the forward pass is data."""
    phases = {name: here.get(name, 0.0) * MICROSECOND for name in PHASES}
    if not host.loads:
        phases["data"] += here.get("before", 0.0) * MICROSECOND
    phases["exchange_exposed"] = length(exposed) * MICROSECOND
    return ProfiledStep(number, *span, phases, exposed, gap, ())


def _of_nccl(recording: Recording, kernels: Sequence[Event], host: HostPhases) -> list[tuple[float, CollectiveSpan]]:
    """(microsecond of the host's call, collective) of NCCL's kernels; what a kernel does not say, its call may."""
    launches = {each.correlation: each for each in recording.launches if "correlation" in each.args}
    comms = [each for each in recording.operators if each.name == PARAMETERS and NAME in each.args]
    by_id = {str(each.args["External id"]): each for each in comms if "External id" in each.args}
    by_thread: dict[tuple[str, str], list[Event]] = {}
    for each in comms:
        by_thread.setdefault(each.thread, []).append(each)
    found = []
    for kernel in kernels:
        launch = launches.get(kernel.correlation)
        args = kernel.args
        if NAME not in args:
            call = by_id.get(str(args.get("External id"))) or _around(by_thread, launch)
            args = call.args if call else {}
        called = launch.begin if launch else kernel.begin
        found.append((called, _nccl(kernel, args, host.label(called) in IN_BACKWARD)))
    return found


def _around(by_thread: Mapping[tuple[str, str], Sequence[Event]], launch: Event | None) -> Event | None:
    """The last of a thread's events that contains the launch."""
    those = by_thread.get(launch.thread, ()) if launch else ()
    place = bisect.bisect_right(those, launch.begin, key=lambda each: each.begin) - 1 if launch else -1
    return those[place] if launch and place >= 0 and those[place].end >= launch.begin else None


def _nccl(kernel: Event, args: Mapping[str, Any], in_backward: bool) -> CollectiveSpan:
    # Collectives that are called together are recorded as `coalesced`.
    kind = _kind(str(args.get(NAME, ""))) or _kind(kernel.name)
    counts = [_whole(args.get(key)) for key in ("In msg nelems", "Out msg nelems")]
    elements = counts[1] if kind == "all_gather" else counts[0]
    dtype = str(args.get("dtype")).lower()
    each = _BYTES.get(dtype)
    size = _whole(args.get("Group size")) or 0
    num_bytes = elements * each if elements and each and size else None
    group = str(args.get("Process Group Ranks") or args.get("Process Group Name") or "")
    gradients = in_backward and dtype not in COUNTS
    return CollectiveSpan(kind, elements or 0, num_bytes, max(size, 1), kernel.begin, kernel.end, gradients, group)


def _of_gloo(recording: Recording, host: HostPhases, world: int) -> list[tuple[float, CollectiveSpan]]:
    """(microsecond, collective) of Gloo's ranges; they say no group, which counts as the whole job."""
    found = []
    for event in [*recording.notes, *recording.operators]:
        if not event.name.startswith(GLOO):
            continue
        kind, shapes = _kind(event.name), event.shapes
        types = event.args.get("Input type")
        first = str(types[0] if isinstance(types, list) and types else "").lower().removeprefix("c10::")
        elements = sum(math.prod(shape) for shape in shapes) * (max(world, 1) if kind == "all_gather" else 1)
        # A sparse tensor's shape says nothing of what it sends.
        known = bool(shapes) and first in _BYTES and (world > 0 or kind != "all_gather") and "sparse" not in event.name
        num_bytes = elements * _BYTES[first] if known else None
        backward = host.label(event.begin) in IN_BACKWARD and first not in COUNTS
        found.append(
            (event.begin, CollectiveSpan(kind, elements, num_bytes, max(world, 1), event.begin, event.end, backward))
        )
    return sorted(found, key=lambda pair: pair[0])


def _kind(name: str) -> str:
    found = _KIND.search(name)
    return _KINDS[found[0].lower().replace("_", "")] if found else ""


def _framework(host: HostPhases) -> str:
    names = [each.name for each in host.notes]
    if any(name.startswith(FSDP) for name in names):
        return "fsdp"
    if DDP in names:
        return "ddp"
    return "horovod" if host.waits else "other"


def _optimizer(host: HostPhases) -> str:
    name = host.updates[0].name.removeprefix(UPDATE) if host.updates else ""
    return name.partition(".")[0].lower()


def _rank(path: Path, told: Mapping[str, Any]) -> int | None:
    """The rank, by the file's content, else by its name."""
    found = re.search(r"rank[-_.]?(\d+)", path.name, re.IGNORECASE)
    rank = _whole(told.get("rank"))
    return rank if rank is not None else int(found[1]) if found else None


def _host_name(path: Path, about: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The host: by the file's content, else by the name that TensorBoard's handler gives a file."""
    found = re.match(r"(.+)_\d+\.\d+\.pt\.trace\.json", path.name)
    return str(facts.get("host") or about.get("host_name") or (found[1] if found else ""))


def _facts(value: Any) -> dict[str, Any]:
    """What wirebench.watch has written of a rank, as far as it has the right types."""
    given = value if isinstance(value, Mapping) else {}
    numbers = {key: given[key] for key in NUMBERS if _is_number(given.get(key))}
    texts = {key: given[key] for key in TEXTS if isinstance(given.get(key), str)}
    tables = {key: given[key] for key in TABLES if isinstance(given.get(key), Mapping)}
    return {
        **numbers, **texts,
        **{key: {str(name): each for name, each in table.items() if _is_number(each)} for key, table in tables.items()},
    }  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _whole(value: Any) -> int | None:
    """A whole number from 0 on; None for anything else."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number >= 0 else None
