"""Which interface a back end takes on a host, and why, by the rules of its own source; from facts alone.

Gloo (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp): the interfaces of GLOO_SOCKET_IFNAME; else the first address of
the host's own name that is the host's; else the loopback interface.

NCCL (src/misc/socket.cc, src/os/linux.cc): NCCL_SOCKET_IFNAME is a list of prefixes, of names after `=`, of what is
left out after `^`. Without it: interfaces that begin with `ib`; else those in the subnet of NCCL_COMM_ID; else all but
docker, lo and virbr; else docker; lo; virbr. Interfaces without a carrier are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.doctor.answers import Facts

NCCL_FILES = (Path("/etc/nccl.conf"), Path.home() / ".nccl.conf")
"""Where NCCL finds variables that the environment has not; the user's file counts before the machine's."""
OF_LINKS = ("NCCL_", "GLOO_")

_NCCL_ORDER = {
    "ib": "ib*", "^docker,lo,virbr": "not docker, lo, virbr", "docker": "docker*", "lo": "lo*", "virbr": "virbr*",
}  # fmt: skip
"""What NCCL takes without a variable, in its order, and how it is called."""


class Interfaces(NamedTuple):
    """The interfaces that a back end takes; its first messages go by the first.

    names  none where it fails; why: what they follow from
    """

    names: tuple[str, ...]
    why: str

    @property
    def first(self) -> str:
        """The interface of the first messages; "" if it takes none."""
        return next(iter(self.names), "")

    def __str__(self) -> str:
        return f"{','.join(self.names) or 'none'} ({self.why})"


def variables(environment: Mapping[str, str], files: Sequence[Path] = NCCL_FILES) -> dict[str, str]:
    """The variables of NCCL and Gloo: from the environment, else from NCCL's files."""
    told: dict[str, str] = {}
    for file in files:
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError:  # most machines have none
            continue
        pairs = (line.partition("#")[0].partition("=") for line in lines)
        told |= {name.strip(): value.strip() for name, equals, value in pairs if equals}
    told |= environment
    return {name: text for name, text in sorted(told.items()) if name.startswith(OF_LINKS)}


def gloo(facts: Facts) -> Interfaces:
    """Gloo's interface."""
    links = _links(facts)
    if told := facts.get("variables", {}).get("GLOO_SOCKET_IFNAME"):
        names = told.split(",")
        return Interfaces(tuple(names) if all(name in links for name in names) else (), "GLOO_SOCKET_IFNAME")
    for address in facts.get("name_addresses", ()):
        if name := interface_of(facts, address):
            return Interfaces((name,), f"its name leads to {address}")
    return Interfaces(("lo",) if "lo" in links else (), "its name leads to no address of its own")


def nccl(facts: Facts) -> Interfaces:
    """NCCL's interfaces, for what it does not send by InfiniBand."""
    told = facts.get("variables", {})
    family = told.get("NCCL_SOCKET_FAMILY", "")
    running = [
        name
        for name, link in _links(facts).items()
        if link["running"] and any(_is_of(address, family) for address in link["addresses"])
    ]
    if len(told.get("NCCL_SOCKET_IFNAME", "")) > 1:
        return Interfaces(tuple(filter(matcher(told["NCCL_SOCKET_IFNAME"]), running)), "NCCL_SOCKET_IFNAME")
    for prefixes, why in _NCCL_ORDER.items():
        names = tuple(filter(matcher(prefixes), running))
        # The subnet of NCCL_COMM_ID needs netmasks, and jobs of PyTorch do not set it.
        if names:
            return Interfaces(names, why)
    return Interfaces((), "it has none that is up")


def matcher(told: str) -> Callable[[str], bool]:
    """Whether a list such as ib0,eth or ^docker or =mlx5_0:1 takes a name, as NCCL reads it."""
    without, told = told.startswith("^"), told.removeprefix("^")
    exact, told = told.startswith("="), told.removeprefix("=")
    names = [name.partition(":")[0] for name in told.split(",") if name]
    return lambda name: any(name == each if exact else name.startswith(each) for each in names) != without


def interface_of(facts: Facts, address: str) -> str:
    """The interface that has the address; "" where none has."""
    for name, link in _links(facts).items():
        if address in link["addresses"] or (name == "lo" and address.startswith("127.")):
            return name
    return ""


def usable(facts: Facts) -> list[str]:
    """Interfaces that may lead to another host: they are up, and not the loopback interface."""
    return [name for name, link in _links(facts).items() if link["running"] and name != "lo"]


def _links(facts: Facts) -> Mapping[str, Any]:
    links: Mapping[str, Any] = facts.get("links", {})
    return links


def _is_of(address: str, family: str) -> bool:
    """Whether NCCL looks at an address; it never takes ::1."""
    six = ":" in address
    return address != "::1" and {"AF_INET": not six, "AF_INET6": six}.get(family, True)
