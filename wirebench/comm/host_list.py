"""Lists of hosts as launchers take them: words of a command line, Slurm's node lists, and host files.

| form | whose |
| --- | --- |
| `h1:4,h2:4`, `h1 h2`, `[fd00::1]:4`, `fd00::1` | horovodrun -H, and a list of ours |
| `node[01-03,07],login`, `a[1-2]b[3-4]`, `gpu[3,5-6]-ib` | Slurm |
| `h1 slots=4`, `h1 slots=4 max_slots=8` | host files of horovodrun, DeepSpeed and Open MPI |
| `h1:4` | host files of MPICH, Intel MPI and Hydra |
| `h1` | host files that name a host once for each process (Torque, Open MPI) |

In host files `#` begins a comment. Nothing here imports torch.
"""

import ipaddress
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wirebench.errors import UserError
from wirebench.utils.files import readable

MOST_HOSTS = 65_536
_NODES = r"(?![-.\[])(?:[A-Za-z0-9_.-]|\[[0-9,-]+\])+"
"""Not with a dash at its beginning, which ssh would take for an option."""
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_LIST_FORMS = "hosts read h1:4,h2:4 (as for horovodrun), h1 h2, node[01-04] or [fd00::1]:4"
_NODE_FORMS = "it reads node[01-03,07],login or a[1-2]b[3-4]"
_LINE_FORMS = "a line reads h1, h1:4 or h1 slots=4 [max_slots=8]"


class ListedHost(NamedTuple):
    """A host of a list.

    name   its name or address, an IPv6 address without brackets
    slots  how many processes it is to have; None where the list does not say it
    """

    name: str
    slots: int | None = None

    @property
    def word(self) -> str:
        """The host as a word of horovodrun's -H: h1:4, [fd00::1]:4."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.slots is None else f"{name}:{self.slots}"


def written(slots: Mapping[str, int]) -> str:
    """The list of horovodrun's -H, `h1:4,h2:4`, of the slots by host."""
    return ",".join(ListedHost(name, count).word for name, count in slots.items())


def parse_words(words: Sequence[str]) -> list[ListedHost]:
    """The hosts of `h1:4,h2:4`, `h1 h2` or `node[01-04]:8`, in order.

    Raises UserError for anything else, and for a host that is named twice.
    """
    hosts = [host for word in words for part in _parts(word) for host in _hosts(part, "", _LIST_FORMS)]
    seen: set[str] = set()
    for host in hosts:
        if host.name in seen:
            raise UserError(f"{host.name}: is named twice")
        seen.add(host.name)
    return hosts


def nodes(text: str, where: str) -> Iterator[str]:
    """The names of a Slurm node list, in its order; the bounds of a range give the width: node[08-10] has node08.

    where  what the list comes from, for the error
    Raises UserError, with what is allowed, for any other text and for more than MOST_HOSTS names.
    """
    whole, count = f"{where}: {text!r}", 0
    parsed = [_pieces(part, whole) for part in _parts(text)]
    for pieces in parsed:
        count += math.prod(sum(len(numbers) for numbers, _ in piece) for piece in pieces if not isinstance(piece, str))
        if count > MOST_HOSTS:
            raise UserError(f"{whole} has more than {MOST_HOSTS:,} nodes")
    for pieces in parsed:
        choices = [[piece] if isinstance(piece, str) else list(_numbers(piece)) for piece in pieces]
        yield from map("".join, itertools.product(*choices))


def task_counts(text: str, where: str, most: int) -> Iterator[tuple[int, int]]:
    """(tasks, nodes) of Slurm's list of counts: 2(x3),1 is three nodes with two tasks each, then one with one.

    where  what the list comes from, for the error
    Raises UserError for any other text, and for more tasks on a node than `most`.
    """
    for part in text.split(","):
        known = re.fullmatch(r"([0-9]{1,9})(?:\(x([1-9][0-9]{0,17})\))?", part)
        if not known or not 1 <= int(known[1]) <= most:
            raise UserError(f"{where}: must be counts from 1 to {most}, such as 2(x3),1, got {text!r}")
        yield int(known[1]), int(known[2] or 1)


def read_hostfile(path: Path) -> list[ListedHost]:
    """The hosts of a host file, in order.

    A host that stands alone in several lines has as many slots. Raises UserError with the file, the line's number and
    what is allowed.
    """
    try:
        lines = readable(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no text") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    known: dict[str, tuple[int, int | None, bool]] = {}  # first line, slots, whether the line says them
    for number, line in enumerate(lines, 1):
        where = f"{path}: line {number}"
        for host in _of_line(line.partition("#")[0].strip(), where):
            first, slots, said = known.get(host.name, (number, None, host.slots is not None))
            if host.name in known and (said or host.slots is not None):
                raise UserError(f"{where}: {host.name} is in line {first}, too; a host has one line with its slots")
            known[host.name] = first, host.slots if said else (slots or 0) + 1, said
    if not known:
        raise UserError(f"{path}: names no host; {_LINE_FORMS}")
    once = all(slots == 1 for _, slots, said in known.values() if not said)
    return [ListedHost(name, None if once and not said else slots) for name, (_, slots, said) in known.items()]


def select(hosts: Sequence[ListedHost], include: str = "", exclude: str = "") -> list[ListedHost]:
    """The hosts that DeepSpeed's --include or --exclude leaves: `h1@h2:0,2` is h1 with all slots and two of h2's.

    Raises UserError for a filter that cannot be read, for a host that is not listed or a slot that it has not, and
    where no host is left.
    """
    if include and exclude:
        raise UserError("--include: stands alone, without --exclude")
    option, text = ("--include", include) if include else ("--exclude", exclude)
    chosen = _filter(hosts, option, text) if text else {}
    left = []
    for host in hosts:
        slots = chosen.get(host.name)
        if include and slots is not None:
            left.append(host._replace(slots=len(slots)) if slots else host)
        elif exclude and (slots is None or (slots and len(slots) < (host.slots or 0))):
            left.append(host if slots is None else host._replace(slots=(host.slots or 0) - len(slots)))
        elif not text:
            left.append(host)
    if not left:
        raise UserError(f"{option}: {text!r} leaves no host")
    return left


def _filter(hosts: Sequence[ListedHost], option: str, text: str) -> dict[str, set[int]]:
    """The slots by host that a filter names; an empty set: all of them."""
    known, chosen = {host.name: host.slots for host in hosts}, {}
    for part in text.split("@"):
        name, slots = _name_and_slots(part, known)
        if name not in known:
            raise UserError(
                f"{option}: no host {name!r} is listed; it reads h1@h2:0,2, and there is: {', '.join(known)}"
            )
        numbers = [] if slots is None else slots.split(",")
        if not all(re.fullmatch("[0-9]{1,6}", each) for each in numbers):
            raise UserError(f"{option}: {part!r}: slots read 0,2")
        most = known[name]
        if numbers and (most is None or max(map(int, numbers)) >= most):
            raise UserError(
                f"{option}: {part!r}: {name} has {'no slots' if most is None else f'slots 0 to {most - 1}'}"
            )
        chosen[name] = set(map(int, numbers))
    return chosen


def _name_and_slots(part: str, known: Collection[str]) -> tuple[str, str | None]:
    """A host of a filter, and its slots; an IPv6 address stands alone, or in brackets before its slots."""
    if part in known:
        return part, None
    address = re.fullmatch(r"\[([^\]]+)\](?::(.*))?", part)
    if address:
        return address[1], address[2]
    name, colon, slots = part.partition(":")
    return name, slots if colon else None


def _of_line(line: str, where: str) -> list[ListedHost]:
    """The hosts of a host file's line without its comment; [] of an empty one."""
    if not line:
        return []
    word, *more = re.sub(r"\s*=\s*", "=", line).split()
    hosts = _hosts(word, f"{where}: ", _LINE_FORMS)
    said = {}
    for each in more:
        match = re.fullmatch(r"(slots|max[_-]slots)=([0-9]{1,6})", each)
        if match is None or int(match[2]) < 1 or match[1] in said:
            raise UserError(f"{where}: {each!r} cannot be read; {_LINE_FORMS}")
        said[match[1]] = int(match[2])
    if "slots" in said and any(host.slots is not None for host in hosts):
        raise UserError(f"{where}: {line!r} gives the slots twice; {_LINE_FORMS}")
    return [host._replace(slots=said.get("slots", host.slots)) for host in hosts]


def _hosts(part: str, where: str, forms: str) -> list[ListedHost]:
    """The hosts of one word: a name, a node list, an IPv6 address, each with or without its slots."""
    if _is_ipv6(part):
        return [ListedHost(part)]
    address = re.fullmatch(r"\[([^\[\]]*:[^\[\]]*)\](?::([0-9]{1,6}))?", part)
    listed = re.fullmatch(rf"({_NODES})(?::([0-9]{{1,6}}))?", part)
    match = address or listed
    if match is None or (address and not _is_ipv6(address[1])) or (match[2] and int(match[2]) < 1):
        raise UserError(f"{where}{part!r} is no host; {forms}")
    slots = int(match[2]) if match[2] else None
    names = [match[1]] if address or "[" not in part else nodes(match[1], where.removesuffix(": ") or "hosts")
    return [ListedHost(name, slots) for name in names]


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _parts(text: str) -> list[str]:
    """What stands between the commas that are outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


Numbers = list[tuple[range, int]]
"""Ranges with the width to which their numbers are filled with zeros."""


def _pieces(part: str, whole: str) -> list[str | Numbers]:
    """A node list's item as the texts and ranges that it is made of."""
    if not re.fullmatch(_NODES, part):
        raise UserError(f"{whole} is no list of nodes; {_NODE_FORMS}")
    pieces: list[str | Numbers] = []
    for text in re.findall(r"[^\[\]]+|\[[^\]]*\]", part):
        pieces.append(_ranges(text[1:-1], whole) if text.startswith("[") else text)
    return pieces


def _ranges(text: str, whole: str) -> Numbers:
    found = []
    for each in text.split(","):
        match = _RANGE.fullmatch(each)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UserError(f"{whole}: {each!r} is no range of numbers; {_NODE_FORMS}")
        found.append((range(int(match[1]), int(match[2] or match[1]) + 1), len(match[1])))
    return found


def _numbers(ranges: Iterable[tuple[range, int]]) -> Iterator[str]:
    return (f"{number:0{width}d}" for numbers, width in ranges for number in numbers)
