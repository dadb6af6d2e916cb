"""Who waits for whom in a job that hangs, by the dumps of PyTorch's flight recorder (TORCH_FR_BUFFER_SIZE, ...).

A dump has the last collectives of a rank: numbered in each process group, with operation, sizes and state. The first
number at which the ranks of a group differ says what is wrong. Dumps are pickles, or the JSON of the debug server. Only
Python's own containers are unpickled: a file that names any class or function is refused.
"""

import io
import math
import pickle
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.errors import UserError
from wirebench.utils.files import readable
from wirebench.utils.parsing import json_of

DONE, DEFAULT = "completed", "default_pg"
"""The state of a collective that is over; the description of the group of all ranks."""
SAME_SIZES = ("allreduce", "broadcast", "reducescatter", "allgatherbase", "allgatherintotensor")
"""Begins, letters alone, of operations whose tensors have as many elements on every rank."""
MOST_FRAMES = 3


class CalledCollective(NamedTuple):
    """A collective that a rank has called.

    done     whether it is over on this rank, as far as the recorder knows
    created  nanoseconds of the rank's clock
    frames   where it was called, file:line of the innermost functions of the user's
    """

    operation: str
    elements: int
    dtypes: tuple[str, ...]
    done: bool
    created: int
    frames: tuple[str, ...]

    @property
    def alike(self) -> bool:
        """Whether its tensors are as large on every rank."""
        return re.sub("[^a-z]", "", self.operation.lower()).startswith(SAME_SIZES)


class Dump(NamedTuple):
    """A rank's dump: its calls by group and number, the ranks of each group, and the number of its sends and receives.

    names  of the groups
    """

    path: Path
    rank: int
    calls: Mapping[str, Mapping[int, CalledCollective]]
    members: Mapping[str, tuple[int, ...]]
    names: Mapping[str, str]
    pairs: int


class Mismatch(NamedTuple):
    """The first collective of a group at which its ranks differ.

    kind     missing, operation, size, type, stuck: all have called it, and it is not over; or absent: those that have a
             dump have called it, and it is not over
    ranks    the ranks at fault, where known; of absent: the ranks without a dump
    sentence what is wrong; evidence: lines on what each rank did
    """

    group: str
    number: int
    kind: str
    ranks: tuple[int, ...]
    sentence: str
    evidence: tuple[str, ...]


class Flight(NamedTuple):
    """All dumps, and what was found in each group, the earliest call first."""

    dumps: tuple[Dump, ...]
    findings: tuple[Mismatch, ...]


class _Plain(pickle.Unpickler):
    """Reads containers, numbers and texts alone."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}; a flight recorder's dump has containers alone")


def read(paths: Sequence[Path]) -> Flight:
    """The dumps, and what they say; UserError for a file that is no dump, and for two of one rank."""
    dumps: dict[int, Dump] = {}
    for place, path in enumerate(paths):
        dump = _dump(path, place)
        if dump.rank in dumps:
            raise UserError(
                f"{path}: is of rank {dump.rank}, as {dumps[dump.rank].path} is; a dump's name has its rank"
            )
        dumps[dump.rank] = dump
    ordered = tuple(dumps[rank] for rank in sorted(dumps))
    if not any(dump.calls for dump in ordered):
        raise UserError(f"{paths[0]}: has no collectives; set TORCH_FR_BUFFER_SIZE=2000 before the job begins")
    groups = dict.fromkeys(group for dump in ordered for group in dump.calls)
    found = [each for group in groups if (each := _differ(ordered, group))]
    begun = {each: min(_begun(ordered, each), default=0) for each in found}
    return Flight(ordered, tuple(sorted(found, key=begun.__getitem__)))


def _begun(dumps: Sequence[Dump], found: Mismatch) -> list[int]:
    calls = [dump.calls.get(found.group, {}).get(found.number) for dump in dumps]
    return [call.created for call in calls if call is not None]


def _dump(path: Path, place: int) -> Dump:
    content = _content(path)
    entries = content.get("entries") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise UserError(f"{path}: has no entries, as a flight recorder's dump has; it is of another program")
    calls: dict[str, dict[int, CalledCollective]] = defaultdict(dict)
    names: dict[str, str] = {}
    pairs = 0
    for number, entry in enumerate(entries):
        try:
            if entry.get("is_p2p"):
                pairs += 1
                continue
            group = entry["process_group"]
            name = str(group[0]) if group else str(entry["pg_id"])
            names[name] = str(group[1]) if group and len(group) > 1 else ""
            calls[name][int(entry["collective_seq_id"])] = _call(entry)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise UserError(f"{path}: entries[{number}]: is not what a flight recorder writes ({error!r})") from error
    return Dump(path, _rank(path, place), calls, _members(content), names, pairs)


def _content(path: Path) -> Any:
    """The dump: JSON where it begins as JSON does, else a pickle of plain containers."""
    try:
        text = readable(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not text.strip():
        raise UserError(f"{path}: is empty")
    if text.lstrip()[:1] in (b"{", b"["):
        try:
            return json_of(text)
        except ValueError as error:
            raise UserError(f"{path}: not valid JSON: {error}") from error
    try:
        return _Plain(io.BytesIO(text)).load()
    except Exception as error:  # a damaged pickle raises anything
        raise UserError(f"{path}: is no dump of a flight recorder: {error}") from error


def _call(entry: Mapping[str, Any]) -> CalledCollective:
    sizes = entry.get("input_sizes") or []
    frames = [frame for frame in entry.get("frames") or [] if isinstance(frame, dict)]
    own = [frame for frame in frames if "/torch/" not in str(frame.get("filename"))] or frames
    dtypes = entry.get("input_dtypes") or []
    backend, _, operation = str(entry["profiling_name"]).rpartition(":")
    # Gloo's never change their state, and are retired once they are over; of NCCL one may have timed out.
    done = entry.get("state") == DONE or (backend == "gloo" and bool(entry.get("retired")))
    return CalledCollective(
        operation,
        sum(math.prod(int(size) for size in each) for each in sizes),
        tuple(str(each) for each in (dtypes if isinstance(dtypes, list | tuple) else [dtypes])),
        done,
        int(entry.get("time_created_ns") or 0),
        tuple(f"{frame.get('filename')}:{frame.get('line')}" for frame in own[:MOST_FRAMES]),
    )


def _members(content: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The ranks of each group, by its name; a dump of one group alone may leave its name out."""
    found = {}
    table = content.get("pg_config")
    for key, each in table.items() if isinstance(table, dict) else ():
        ranks = each.get("ranks") if isinstance(each, dict) else None
        numbers = re.findall(r"\d+", str(ranks))
        if numbers and "..." not in str(ranks):
            found[str(key)] = tuple(map(int, numbers))
    return found


def _rank(path: Path, place: int) -> int:
    """The rank, the last number of the file's name (nccl_trace_rank_3); without one the file's place."""
    numbers = re.findall(r"\d+", path.name.removesuffix(".json").removesuffix(".pkl").removesuffix(".pickle"))
    return int(numbers[-1]) if numbers else place


def _differ(dumps: Sequence[Dump], group: str) -> Mismatch | None:
    """The first number of a group at which its ranks differ, or at which all wait."""
    whole = any(dump.names.get(group) == DEFAULT for dump in dumps)
    keys = (group, "") if whole else (group,)
    members = next((dump.members[key] for dump in dumps for key in keys if key in dump.members), ())
    mine = [dump for dump in dumps if (dump.rank in members if members else whole or group in dump.calls)]
    absent = sorted({*members} - {dump.rank for dump in mine}) if members else None
    numbers = sorted({number for dump in mine for number in dump.calls.get(group, {})})
    for number in numbers:
        here = {dump.rank: dump.calls.get(group, {}).get(number) for dump in mine}
        called = {rank: call for rank, call in here.items() if call is not None}
        lack = [dump.rank for dump in mine if here[dump.rank] is None and _lacks(dump, group, number)]
        found = _missing(mine, group, number, called, lack) if lack else _unlike(mine, group, number, called, absent)
        if found:
            return found
    return None


def _lacks(dump: Dump, group: str, number: int) -> bool:
    """Whether the rank has not called it; what is older than its oldest entry may have left the buffer."""
    own = dump.calls.get(group, {})
    return not own or number > min(own)


def _missing(
    dumps: Sequence[Dump], group: str, number: int, called: Mapping[int, CalledCollective], lack: Sequence[int]
) -> Mismatch | None:
    if all(call.done for call in called.values()):
        return None  # the dumps were written at different times
    name = _name(dumps, group)
    one = next(iter(called.values()))
    waits, late = _ranks(list(called)), _ranks(lack)
    sentence = f"{late} {_has(lack)} not called collective {number} of {name}, {_words(one)}; "
    sentence += f"{waits.lower()} {_wait(called)} in it."
    return Mismatch(group, number, "missing", tuple(lack), sentence, tuple(_doing(dumps, group, number)))


def _unlike(
    dumps: Sequence[Dump], group: str, number: int, called: Mapping[int, CalledCollective], absent: Sequence[int] | None
) -> Mismatch | None:
    """How the ranks that have called it differ, or that it is not over; absent: without a dump, None if unknown."""
    name = _name(dumps, group)
    kinds = {
        "operation": {rank: call.operation for rank, call in called.items()},
        "type": {rank: " ".join(call.dtypes) for rank, call in called.items()},
        "size": {rank: f"{call.elements} elements" if call.alike else "" for rank, call in called.items()},
    }
    for kind, values in kinds.items():
        if len(set(values.values())) > 1:
            usual = statistics.mode(values.values())
            odd = tuple(rank for rank, value in values.items() if value != usual)
            each = "; ".join(f"rank {rank}: {_words(call)}" for rank, call in list(called.items())[:8])
            sentence = f"The ranks differ in the {kind} of collective {number} of {name}: {each}."
            return Mismatch(group, number, kind, odd, sentence, tuple(_doing(dumps, group, number)))
    stuck = {rank: call for rank, call in called.items() if not call.done}
    if not stuck or len(called) < len(dumps):
        return None
    return _stuck(dumps, group, number, stuck, absent)


def _stuck(
    dumps: Sequence[Dump], group: str, number: int, stuck: Mapping[int, CalledCollective], absent: Sequence[int] | None
) -> Mismatch:
    """All dumps have the same collective, and it is not over; a rank without a dump may not have called it."""
    what = f"collective {number} of {_name(dumps, group)}, {_words(next(iter(stuck.values())))}"
    evidence = tuple(_doing(dumps, group, number))
    if absent or (absent is None and len(dumps) == 1):
        others = _ranks(absent).lower() if absent else "any other rank"
        sentence = f"{_ranks(list(stuck))} {_wait(stuck)} in {what}, and there is no dump of {others}: "
        sentence += "look first whether it still runs." if absent and len(absent) == 1 else "look first who still runs."
        return Mismatch(group, number, "absent", tuple(absent or ()), sentence, evidence)
    sentence = f"All ranks{' with a dump' * (absent is None)} have called {what}, and "
    sentence += "it is not over: the network, or a GPU, is stuck." if len(stuck) == len(dumps) else (
        f"it is over for all but {_ranks(list(stuck)).lower()}."
    )  # fmt: skip
    return Mismatch(group, number, "stuck", tuple(stuck), sentence, evidence)


def _doing(dumps: Sequence[Dump], group: str, number: int) -> list[str]:
    """A line for each rank: what it called last before or at this number, and where in its program."""
    lines = []
    for dump in dumps:
        own = dump.calls.get(group, {})
        last = max((each for each in own if each <= number), default=None)
        after = max(own, default=0)
        if last is None:
            lines.append(f"rank {dump.rank}: has called none of them")
            continue
        call = own[last]
        state = "over" if call.done else "not over"
        where = f", at {', '.join(call.frames)}" if call.frames else ""
        more = f"; it has gone on to number {after}" if after > number else ""
        lines.append(f"rank {dump.rank}: number {last}, {_words(call)}, {state}{where}{more}")
    return lines


def lines(flight: Flight) -> list[str]:
    """Return the findings in words, and what the dumps lack."""
    ranks = [dump.rank for dump in flight.dumps]
    groups = dict.fromkeys(group for dump in flight.dumps for group in dump.calls)
    count = sum(len(calls) for dump in flight.dumps for calls in dump.calls.values())
    told = [
        f"Dumps of {_ranks(ranks).lower()}: {_many(count, 'collective')} of {_many(len(groups), 'process group')}.",
        "",
    ]
    if not flight.findings:
        waiting = _unfinished(flight)
        told += (
            ["The dumps do not differ in what they have in common, but not all is over:", *waiting]
            if waiting
            else ["No rank waits for another: all collectives that all ranks have are alike and over."]
        )
    for number, each in enumerate(flight.findings, 1):
        told += [f"{number}. {each.sentence}", *(f"   {line}" for line in each.evidence)]
    pairs = sum(dump.pairs for dump in flight.dumps)
    if pairs:
        told += ["", f"{pairs} sends and receives are not judged."]
    lacking = _lacking(flight)
    if lacking:
        told += ["", f"No dump of {_ranks(lacking).lower()}; a rank that has ended writes none."]
    return told


def _unfinished(flight: Flight) -> list[str]:
    """A line for each rank and group: its first collective that is not over."""
    return [
        f"rank {dump.rank}: number {number} of {_name([dump], group)}, {_words(calls[number])}"
        for dump in flight.dumps
        for group, calls in dump.calls.items()
        if (number := min((each for each, call in calls.items() if not call.done), default=None)) is not None
    ]


def as_json(flight: Flight) -> dict[str, Any]:
    """Return the findings as JSON values."""
    return {
        "ranks": [dump.rank for dump in flight.dumps],
        "ranks_without_dump": _lacking(flight),
        "findings": [each._asdict() for each in flight.findings],
    }


def _lacking(flight: Flight) -> list[int]:
    """Ranks of the groups whose dumps were not given."""
    members = {rank for dump in flight.dumps for ranks in dump.members.values() for rank in ranks}
    return sorted(members - {dump.rank for dump in flight.dumps})


def _name(dumps: Sequence[Dump], group: str) -> str:
    described = next((name for dump in dumps if (name := dump.names.get(group))), "")
    return f"group {group}" + (f" ({described})" if described else "")


def _words(call: CalledCollective) -> str:
    return f"{call.operation} of {_many(call.elements, 'element')}" + (
        f" ({', '.join(call.dtypes)})" if call.dtypes else ""
    )


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:-1][:15]))
    return f"Ranks {shown} and {ranks[-1]}" if len(ranks) <= 16 else f"Ranks {shown} and {len(ranks) - 15} more"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _has(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _wait(called: Mapping[int, CalledCollective]) -> str:
    return "waits" if len(called) == 1 else "wait"
