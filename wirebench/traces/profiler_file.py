"""The file that PyTorch's profiler writes (Kineto, as Chrome's trace events): read, checked, sorted by kind."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wirebench.errors import UserError
from wirebench.utils import user_files
from wirebench.utils.parsing import json_of

FRAME = re.compile(r'("cat": "python_function", "name": ").*?(", "pid": )', re.DOTALL)
"""A frame's name in the file: many releases write quotes in it without a backslash, or memory that was freed."""
LATEST = 1e18
"""Microseconds: times from there on are no clock's."""
LARGEST = 2**40
"""Elements along an axis: what is more is no tensor's shape."""
LOST = 0.01
"""Share of a file's events from which on those without a time count: the profiler has lost them."""
NODE = "autograd::engine::evaluate_function: "
ASYNCHRONOUS = ("gloo:", "nccl:")
"""Begins of ranges that last until a collective is done, whatever their thread does meanwhile."""
Kind = Literal["operator", "kernel", "launch", "flow", "note"]
KINDS: dict[Kind, tuple[str, ...]] = {
    "operator": ("cpu_op", "operator"),
    "kernel": ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "mtia_ccp_events", "hpu_op"),
    "launch": (
        "runtime", "cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime", "glow_runtime",
        "privateuse1_runtime", "privateuse1_driver",
    ),
    "flow": ("fwdbwd", "forward_backward"),
    "note": (
        "trace", "overhead", "user_annotation", "gpu_user_annotation", "python_function", "cpu_instant_event",
        "external_correlation", "cuda_sync", "cuda_event", "cuda_profiler_range", "collective_comm", "ac2g",
        "async_cpu_to_gpu", "async_gpu", "mtia_insight", "mtia_counters", "mtia_workloadd", "gpu_pm_counter",
        "xpu_sync", "xpu_scope_profiler",
    ),
}  # fmt: skip
"""Categories in lower case. PyTorch up to 1.12 wrote Operator, Kernel, Memcpy, Memset and Runtime."""
_KIND_OF = {category: kind for kind, categories in KINDS.items() for category in categories}
UNREAD = "python_function"
"""The category of Python's frames, which with_stack=True records: most of a large file, and nothing that is read."""
READ = {
    "correlation", "External id", "Sequence number", "Fwd thread id", "Input Dims", "Input dims", "Input type",
    "Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size", "Process Group Name",
    "Process Group Ranks",
}  # fmt: skip
"""Arguments of events that are read; all others are dropped, since a large file's would fill the memory."""


class Event:
    """An event with a begin and an end, in microseconds.

    category  as the file has it, in lower case
    thread  process and thread; correlation: of a kernel and its launch
    root    the outermost operator with a sequence number that contains this one, or itself; None without one
    node    the outermost backward node that contains this one, or itself; None outside of the backward pass
    """

    __slots__ = ("args", "begin", "category", "correlation", "end", "name", "node", "root", "sequence", "thread")

    def __init__(self, event: Mapping[str, Any]) -> None:
        args = event.get("args")
        self.args: Mapping[str, Any] = (
            {key: value for key, value in args.items() if key in READ} if isinstance(args, dict) else {}
        )
        self.name = sys.intern(event["name"])
        self.category = sys.intern(str(event.get("cat")).lower())
        self.begin = float(event["ts"])
        self.end = self.begin + float(event.get("dur", 0.0))
        self.thread = sys.intern(str(event.get("pid"))), sys.intern(str(event.get("tid")))
        self.correlation = str(self.args.get("correlation"))
        self.root: Event | None = None
        self.node: Event | None = None
        number = self.args.get("Sequence number")
        self.sequence = number if isinstance(number, int) and number >= 0 else None

    @property
    def records(self) -> bool:
        """Whether it may record backward nodes: autograd watched it, and it is none itself."""
        return self.sequence is not None and not self.args.get("Fwd thread id")

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of its arguments; () for a scalar and for what is no tensor. A list has one for each tensor."""
        return list(_shapes(self.args.get("Input Dims", self.args.get("Input dims"))))


class Recording(NamedTuple):
    """A profiler's file, in order of time.

    operators  the host's, the containing one first
    kernels    what ran on the device, by correlation; copies too
    launches   the host's calls for these
    arrows     from (thread, microsecond) of a backward node to (thread, microsecond) of its forward operator
    notes      annotations of the host, such as an optimizer's step
    hardware   the device that the file names; "" for a CPU
    about      what the file says beside its events, such as `distributedInfo`
    """

    operators: list[Event]
    kernels: list[Event]
    launches: list[Event]
    arrows: dict[tuple[tuple[str, str], float], tuple[tuple[str, str], float]]
    notes: list[Event]
    hardware: str
    about: Mapping[str, Any]


def read(path: Path) -> bytes:
    """The file's text, unpacked; UserError where it is damaged, empty, or cannot be read to its end."""
    text = user_files.unpacked(path)
    if not text.strip():
        raise UserError(f"{path}: is empty")
    return text


def load(path: Path, text: bytes) -> Recording:
    """The recording of a file's text; UserError unless it is a profiler's, or for a category that is not known."""
    try:
        whole = _decoded(text)
        del text  # a large file's would take the memory twice
        events, table = _parsed(path, whole)
        del whole
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error
    # Chrome's format has two forms: an object, and the list of its events alone.
    if not isinstance(table.get("traceEvents") if isinstance(table, dict) else table, list):
        raise UserError(f"{path}: has no traceEvents; torch.profiler's export_chrome_trace() writes them")
    found = events.found
    if events.lost > LOST * (events.lost + sum(map(len, found.values()))):
        raise UserError(
            f"{path}: {events.lost:,} events have no time (ts 0, dur 0): the profiler lost it; record fewer steps"
        )
    for each in found.values():
        each.sort(key=lambda event: (event.begin, -event.end))
    _nest(found["operator"])
    ends = events.ends
    arrows = {back: ends["s"][number] for number, back in ends["f"].items() if number in ends["s"]}
    hardware = _device(table) if found["kernel"] else ""
    about = {key: value for key, value in table.items() if key != "traceEvents"} if isinstance(table, dict) else {}
    return Recording(found["operator"], found["kernel"], found["launch"], arrows, found["note"], hardware, about)


def _decoded(text: bytes) -> str:
    """The text; ValueError where it is none, but for the names of Python's frames."""
    encoding = json.detect_encoding(text)
    return text.decode(encoding, "replace" if UNREAD.encode() in text else "surrogatepass")


def _parsed(path: Path, whole: str) -> tuple["_Events", Any]:
    """The events, and what is beside them; ValueError for what is no JSON without the names of Python's frames, too."""
    events = _Events(path)
    try:
        # Each event is taken as it is parsed, to save memory. Names of functions may have line breaks in them.
        return events, json_of(whole, events.take, strict=False)
    except UserError:
        raise
    except ValueError as damage:
        whole, events = FRAME.sub(r"\1\2", whole), _Events(path)
        try:
            return events, json_of(whole, events.take, strict=False)
        except UserError:
            raise
        except ValueError:
            raise damage from None  # it says the place in the file


class _Events:
    """The events of a file, by kind, and the ends of its arrows; `lost` of them have neither a begin nor a length."""

    def __init__(self, path: Path) -> None:
        self._path, self._place, self.lost = path, -1, 0
        self.found: dict[Kind, list[Event]] = {kind: [] for kind in KINDS}
        self.ends: dict[str, dict[Any, tuple[tuple[str, str], float]]] = {"s": {}, "f": {}}

    def take(self, table: dict[str, Any]) -> dict[str, Any] | None:
        """Keep an event, and leave nothing in its place; any other object stays."""
        if "ph" not in table:
            return table
        self._place += 1
        kind = _KIND_OF.get(str(table.get("cat")).lower())
        if isinstance(table.get("name"), str) and "ts" in table and table.get("cat") != UNREAD:
            where = f"{self._path}: traceEvents[{self._place}]"
            _check_times(where, table)
            if table["ph"] == "X":
                self._keep(where, kind, table)
            elif kind == "flow" and table["ph"] in self.ends:
                end = Event(table)
                self.ends[table["ph"]][str(table.get("id"))] = end.thread, end.begin
        return None

    def _keep(self, where: str, kind: Kind | None, table: dict[str, Any]) -> None:
        if "cat" not in table:
            raise UserError(
                f"{where} has no category, as torch.profiler's have; a run's trace.json is a timeline, and the trace "
                "of its model is layers.json in the same folder"
            )
        if kind is None:
            raise UserError(f"{where}: category {table.get('cat')!r} is not known")
        event = Event(table)
        if event.begin == event.end == 0:
            self.lost += 1
        else:
            self.found[kind].append(event)


def _check_times(where: str, event: Mapping[str, Any]) -> None:
    for key in ("ts", "dur"):
        value = event.get(key, 0)
        try:
            fits = abs(float(value)) < LATEST and (key == "ts" or float(value) >= 0)
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise UserError(f"{where}.{key}: needs a number of microseconds, got {value!r}")


def _device(table: Any) -> str:
    properties = table.get("deviceProperties") if isinstance(table, dict) else None
    first = properties[0] if isinstance(properties, list) and properties else {}
    return str(first.get("name", "")) if isinstance(first, dict) else ""


def _nest(operators: list[Event]) -> None:
    """Let each operator know what contains it on its thread."""
    open_by_thread: dict[tuple[str, str], list[Event]] = {}
    for event in operators:
        if event.name.startswith(ASYNCHRONOUS):
            continue
        stack = open_by_thread.setdefault(event.thread, [])
        while stack and stack[-1].end <= event.begin:
            stack.pop()
        outer = stack[-1] if stack else None
        is_node = event.name.startswith(NODE)
        event.node = outer.node if outer and outer.node else (event if is_node else None)
        if not is_node:
            # A node begins anew: what is recomputed in it has operators of its own.
            inside = outer.root if outer and not outer.name.startswith(NODE) else None
            event.root = inside or (event if event.records else None)
        stack.append(event)


def _shapes(value: Any) -> Iterator[tuple[int, ...]]:
    if isinstance(value, list):
        for each in value:
            if isinstance(each, list) and all(type(size) is int and 0 <= size <= LARGEST for size in each):
                yield tuple(each)
            else:
                yield from _shapes(each)
