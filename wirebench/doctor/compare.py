"""What differs between hosts, each in a line with its mend. Nothing here asks anybody."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wirebench.doctor.answers import FACTS
from wirebench.doctor.wire import LinkTimes
from wirebench.topology.rates import show_rate
from wirebench.utils.own import set_up

CLOCK_SECONDS = 1.0
"""Clocks may differ by this much: records and logs are put side by side by time, nothing else depends on it."""
FREE_GB = 1.0
SLOW_SHARE = 0.5
"""A link that carries less than this share of what the fastest one does is slow."""
OF_NOMINAL = 0.8
"""A link that carries less than this share of what it should is slow; headers take 6 %."""

Facts = Mapping[str, Any]


class HostFinding(NamedTuple):
    """What is wrong at one host, and what mends it."""

    host: str
    what: str
    mend: str

    def line(self) -> str:
        return f"{self.host}: {self.what}; {self.mend}"


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
        # Counter keeps the order of the hosts, and most_common is stable: of equals the first host's.
        most = Counter(shown.values()).most_common(1)[0][0]
        like = next(host for host in shown if shown[host] == most)
        found += [
            HostFinding(host, f"{_NAMES.get(name, name)}: {value}, {like} has {most}", mend.format(most=most))
            for host, value in shown.items()
            if value != most
        ]
    return found


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
            found.append(HostFinding(host, f"facts: it does not say {', '.join(missing)}", mend))
        if config and known.get("config") is None:
            found.append(HostFinding(host, f"config: {config} is not there", "copy it there"))
        if interface and known.get("address") is None:
            has = ", ".join(known.get("interfaces", [])) or "none"
            found.append(HostFinding(host, f"interface: {interface} has no IPv4 address", f"it has {has}"))
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
            there, f"{what} is not reached from {here}: {why}", "open the ports between the hosts in their firewalls"
        )
        for (here, there), why in ways.items()
    ]


def not_listening(host: str, port: int, why: str) -> HostFinding:
    """A port that a host itself cannot have: no firewall between the hosts is the reason."""
    what = f"port {port}" if port else "a free port"
    mend = "see what has it there (ss -ltnp), or name another port"
    return HostFinding(host, f"{what} cannot be listened on: {why}", mend)


def slow(ways: Mapping[Way, LinkTimes], nominal: float | None) -> list[HostFinding]:
    """Links that carry much less than the fastest, or than `nominal` bits per second."""
    if not ways:
        return []
    best = max(each.bytes_per_second for each in ways.values()) * 8
    found = []
    for (here, there), timed in ways.items():
        rate = timed.bytes_per_second * 8
        if not rate:
            reason = "nothing came through in time"
        elif nominal is not None and rate < OF_NOMINAL * nominal:
            reason = f"{show_rate(nominal)} is asked for"
        elif rate < SLOW_SHARE * best:
            reason = f"the fastest link carries {_rate(best)}"
        else:
            continue
        mend = "look at its cable, switch port and interface (ethtool), or name another with --interface"
        found.append(HostFinding(here, f"link: {_rate(rate)} to {there}, {reason}", mend))
    return found


def summary(hosts: Sequence[str], ways: Mapping[Way, LinkTimes], nominal: float | None = None) -> str:
    """What was measured, in a line; `nominal`: what each link should carry, bits per second."""
    if not ways:
        return f"{len(hosts)} hosts" if len(hosts) > 1 else "1 host, so no link was measured"
    rates = [each.bytes_per_second * 8 for each in ways.values()]
    trips = [each.round_trip for each in ways.values()]
    # Both ways between two hosts are one link, and there is no other to compare it with.
    alone = len(hosts) == 2 and nominal is None
    return (
        f"{len(hosts)} hosts; links carry {_rate(min(rates))} to {_rate(max(rates))}, "
        f"a byte there and back takes {1e3 * min(trips):.2f} to {1e3 * max(trips):.2f} ms"
        + ("; whether the one link is slow --link RATE alone can tell" if alone else "")
    )


def _rate(bits: float) -> str:
    return f"{bits / 1e9:.2f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.0f} Mbit/s"
