"""Bytes that the kernel counted on a network interface: a check on the bytes that the plans predict.

The counters are read from /proc/net/dev because that file follows the network namespace of the process. The files in
/sys/class/net show the namespace in which /sys was mounted, which on an emulated host is another one.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wirebench.errors import UserError

HEADER_BYTES = 14 + 20 + 32
"""Headers of a packet: Ethernet, IPv4 and TCP with time stamps. A large packet that the card splits is counted once."""

COUNTERS = Path("/proc/net/dev")
ROUTES = Path("/proc/net/route")
_EXACT = ("GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
"""Variables with exact names, separated by commas; NCCL_SOCKET_IFNAME has prefixes."""


class Counters(NamedTuple):
    """Bytes sent and received and packets sent since the interface came up."""

    sent: int
    received: int
    packets: int


class InterfaceCounter:
    """Byte counters of one interface; with `interface` None it reads None.

    They count everything that crosses the interface: all ranks of this host, headers and acknowledgements too. On `lo`
    what is sent is also received. Raises UserError where the machine has no such interface.
    """

    def __init__(self, interface: str | None) -> None:
        self.interface = interface
        known = _counters()
        if interface is not None and known is not None and interface not in known:
            raise UserError(f"network.interface: no interface {interface!r}; there is: {', '.join(known) or 'none'}")

    def read(self) -> Counters | None:
        """The counters now; None where they cannot be read."""
        if self.interface is None:
            return None
        return next((_parsed(numbers) for name, numbers in _lines() or () if name == self.interface), None)


def find_interface(all_on_one_host: bool, environment: Mapping[str, str] | None = None) -> str | None:
    """The interface that carries the run's traffic; None if it cannot be determined.

    `lo` if every rank is on this host; else the first existing one that the back ends' variables name; else the one of
    the default route. `environment` is the process's own unless given.
    """
    known = list(_counters() or ())
    if all_on_one_host:
        return "lo" if "lo" in known else None
    environment = os.environ if environment is None else environment
    for variable in _EXACT:
        for name in environment.get(variable, "").split(","):
            if name.strip() in known:
                return name.strip()
    return _of_nccl(environment.get("NCCL_SOCKET_IFNAME", ""), known)


def _of_nccl(told: str, known: Sequence[str]) -> str | None:
    """The interface that NCCL_SOCKET_IFNAME names; else the default route's, unless it is excluded.

    A `^` or `=` at the beginning holds for the whole list: all interfaces but these, and exact names in place of
    prefixes. Where several are allowed, it is the default route's if that is one, else the first but `lo`.
    """
    excluded, exact = told.startswith("^"), told.removeprefix("^").startswith("=")
    names = [name.strip().removeprefix("=") for name in told.removeprefix("^").split(",")]
    named = [each for name in names if name for each in known if (each == name if exact else each.startswith(name))]
    if named and not excluded:
        return named[0]  # sorted, so an exact name comes before those that it begins
    usual = _default_route()
    if usual not in named:
        return usual
    return next((each for each in known if each not in ("lo", *named)), None)


def sent_bytes() -> dict[str, int]:
    """Bytes that each interface of this host has sent since it came up; {} on a system that does not count."""
    return {name: each.sent for name, each in (_counters() or {}).items()}


def _lines() -> list[tuple[str, str]] | None:
    """Each interface's name and numbers; None on a system without the file. Read in every step, so it must be quick."""
    try:
        with COUNTERS.open("rb", buffering=0) as file:
            lines = file.readall().decode().splitlines()[2:]
    except OSError:
        return None
    pairs = (line.split(":", 1) for line in lines)
    return [(name.strip(), numbers) for name, numbers in pairs]


def _parsed(numbers: str) -> Counters:
    received_first = numbers.split()
    return Counters(int(received_first[8]), int(received_first[0]), int(received_first[9]))


def _counters() -> dict[str, Counters] | None:
    """The counters by interface; None on a system without the file."""
    lines = _lines()
    if lines is None:
        return None
    table = {name: _parsed(numbers) for name, numbers in lines}
    return dict(sorted(table.items(), key=lambda item: (item[0] != "lo", item[0])))


def _default_route() -> str | None:
    try:
        rows = [line.split() for line in ROUTES.read_text().splitlines()[1:]]
    except OSError:
        return None
    defaults = [(int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"]
    return min(defaults)[1] if defaults else None
