"""What differs between hosts, each in a line with its mend. Nothing here asks anybody."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from wirebench.doctor.answers import FACTS, Facts
from wirebench.utils.own import set_up

CLOCK_SECONDS = 1.0
"""Clocks may differ by this much: records and logs are put side by side by time, nothing else depends on it."""
FREE_GB = 1.0
STOPS = math.inf
"""The cost of what keeps the run from starting, hangs it, or makes it another one than was meant."""
LEAST_SHOWN = 1.05
MOST_NAMED = 6


class HostFinding(NamedTuple):
    """What is wrong at one host, and what mends it.

    cost  how many times as long an all-reduce takes; STOPS if it does not run; 1 if it is not known to be slower
    """

    host: str
    what: str
    mend: str
    cost: float = 1.0

    def line(self) -> str:
        """The finding as one printed line."""
        slower = f" (all-reduce: {self.cost:.1f}x the time)" if LEAST_SHOWN <= self.cost < STOPS else ""
        return f"{self.host}: {self.what}{slower}; {self.mend}"


def ranked(findings: Iterable[HostFinding]) -> list[HostFinding]:
    """The findings, what costs most first, equal ones in their order; what is the same on several hosts is one."""
    alike: dict[tuple[str, str], list[HostFinding]] = {}
    for each in findings:
        alike.setdefault((each.what, each.mend), []).append(each)
    merged = [
        some[0]._replace(host=_named([each.host for each in some]), cost=max(each.cost for each in some))
        for some in alike.values()
    ]
    return sorted(merged, key=lambda each: -each.cost)


def _named(hosts: Iterable[str]) -> str:
    """The hosts in words, each once; of many the first ones."""
    names = list(dict.fromkeys(hosts))
    shown = names if len(names) <= MOST_NAMED else names[: MOST_NAMED - 1]
    more = f" and {len(names) - len(shown)} other hosts" if shown is not names else ""
    return ", ".join(shown) + more


def mends(folder: str) -> dict[str, str]:
    """What to do about a fact that differs; {most} is what most hosts have. folder: quoted for a shell."""
    setup = f"run {set_up(folder)} there"
    return {
        "commit": f"git -C {folder} fetch && git -C {folder} checkout {{most}} there",
        "dirty": f"git -C {folder} status says which files there",
        "wirebench": setup,
        "python": setup,
        "torch": setup,
        "torchvision": setup,
        "horovod": setup,
        "cuda": setup,
        "nccl": setup,
        "horovod_build": "build it alike on all hosts: scripts/build_horovod.sh --help",
        "config": "copy the file to all hosts, or commit it",
        "gpus": "see nvidia-smi there",
        "driver": "install the same driver on all hosts",
    }


_NAMES = {"dirty": "uncommitted changes", "horovod_build": "Horovod's build", "gpus": "GPUs", "driver": "GPU driver"}


def differing(facts: Mapping[str, Facts], folder: str) -> list[HostFinding]:
    """Hosts that have something else than most; where it is even, than the first host."""
    found = []
    for name, mend in mends(folder).items():
        shown = {host: _shown(known.get(name)) for host, known in facts.items()}
        most, like = shared_by_most(shown)
        found += [
            HostFinding(
                host, f"{_NAMES.get(name, name)}: {value}, {like} has {most}", mend.format(most=most),
                1.0 if name in ("dirty", "driver") else STOPS,
            )
            for host, value in shown.items()
            if value != most
        ]  # fmt: skip
    return found


def shared_by_most(values: Mapping[str, Any]) -> tuple[Any, str]:
    """The value that most hosts have, and the first host that has it; where it is even, the first host's."""
    if not values:
        return None, ""
    # Counter keeps the order of the hosts, and most_common is stable.
    most = Counter(values.values()).most_common(1)[0][0]
    return most, next(host for host in values if values[host] == most)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        counted = [f"{len(list(same))} {gpu}" for gpu, same in itertools.groupby(value)]
        return ", ".join(counted) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def lacking(facts: Mapping[str, Facts], config: str | None, interface: str | None) -> list[HostFinding]:
    """Hosts that lack what a run needs, whatever the others have."""
    found = []
    for host, known in facts.items():
        if missing := [name for name in FACTS if name not in known]:
            mend = "another version of Wirebench answers there: bring it to the same commit"
            found.append(HostFinding(host, f"facts: it does not say {', '.join(missing)}", mend, STOPS))
        if config and known.get("config") is None:
            found.append(HostFinding(host, f"config: {config} is not there", "copy it there", STOPS))
        if interface and known.get("address") is None:
            has = ", ".join(known.get("links", {})) or "none"
            found.append(HostFinding(host, f"interface: {interface} has no address", f"it has {has}", STOPS))
        for name, what in (("free_gb", "the project's folder"), ("shared_memory_gb", "/dev/shm")):
            free = known.get(name)
            if free is not None and free < (FREE_GB if name == "free_gb" else FREE_GB / 10):
                found.append(HostFinding(host, f"disk: {free:.2f} GB are free in {what}", "make room there"))
    return found


def clocks(ahead: Mapping[str, float]) -> list[HostFinding]:
    """Clocks that are off, against the middle one of all; `ahead`: seconds by which each is ahead of ours."""
    if not ahead:
        return []
    middle = sorted(ahead.values())[(len(ahead) - 1) // 2]
    return [
        HostFinding(
            host, f"clock: {abs(off - middle):.1f} s {'ahead' if off > middle else 'behind'}",
            "run an NTP client there (systemctl enable --now systemd-timesyncd)",
        )
        for host, off in ahead.items()
        if abs(off - middle) > CLOCK_SECONDS
    ]  # fmt: skip


Way = tuple[str, str]
"""A pair of hosts: (from, to)."""


def unreachable(ways: Mapping[Way, str], port: int | None) -> list[HostFinding]:
    """Ways on which no connection came about, with why."""
    what = f"port {port}" if port else "a free port"
    return [
        HostFinding(
            there, f"{what} is not reached from {here}: {why}", "open the ports between the hosts in their firewalls",
            STOPS,
        )
        for (here, there), why in ways.items()
    ]  # fmt: skip


def not_listening(host: str, port: int, why: str) -> HostFinding:
    """A port that a host itself cannot have: no firewall between the hosts is the reason."""
    what = f"port {port}" if port else "a free port"
    mend = "see what has it there (ss -ltnp), or name another port"
    return HostFinding(host, f"{what} cannot be listened on: {why}", mend, STOPS)
