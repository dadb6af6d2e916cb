"""What the links carried: the kernel's counters, and the ranks' own byte counts beside them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from wirebench.cluster.network import INTERFACE, port_of, uplink_of
from wirebench.cluster.plan import HOST_PREFIX, ClusterPlan
from wirebench.errors import UserError
from wirebench.topology.rates import show_rate
from wirebench.utils.console import columns

Counters = Mapping[str, tuple[int, int]]
"""Bytes (sent, received) on each host's eth0."""
MISSING = "-"
SWITCHES = Path("/proc/1/net/dev")
"""For a rank: the first process of its job is in the network namespace of the cluster's switches."""


class LevelBytes(NamedTuple):
    """Bytes that all hosts have sent so far, how many of them have left a switch below the root, and how many such
    switches there are.
    """

    sent: int
    up: int
    switches: int


def read_counters(holders: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Bytes that each host's eth0 has sent and received so far; `holders`: a process in its network namespace."""
    try:
        return {host: _interface(Path(f"/proc/{pid}/net/dev").read_text()) for host, pid in holders.items()}
    except OSError as error:
        raise UserError("the cluster has been taken down") from error


def read_levels(counters: Path = SWITCHES) -> LevelBytes | None:
    """What the levels of an emulated cluster have carried so far, asked by a rank; None where there is no cluster."""
    try:
        lines = (line.partition(":") for line in counters.read_text().splitlines()[2:])
    except OSError:
        return None
    numbers = {name.strip(): words.split() for name, _, words in lines}
    ports = [words for name, words in numbers.items() if name.startswith(port_of(HOST_PREFIX))]
    if not ports:
        return None
    up = [words for name, words in numbers.items() if name.startswith(uplink_of(""))]
    return LevelBytes(sum(int(words[0]) for words in ports), sum(int(words[8]) for words in up), len(up))


def difference(before: Counters, after: Counters) -> dict[str, tuple[int, int]]:
    """Bytes (sent, received) by host between two readings."""
    return {host: (after[host][0] - before[host][0], after[host][1] - before[host][1]) for host in after}


def read_counts(folder: Path, plan: ClusterPlan) -> dict[str, int]:
    """Bytes that each host's ranks sent to other hosts, by their own counts; empty unless all counts are complete."""
    total = {host.name: 0 for host in plan.hosts}
    for rank, host in plan.host_of.items():
        file = folder / f"rank-{rank}.json"
        content = json.loads(file.read_text()) if file.exists() else None
        if content is None or not content["complete"]:
            return {}
        total[host] += sum(count for other, count in content["sent_to"].items() if plan.host_of[int(other)] != host)
    return total


def traffic_table(plan: ClusterPlan, carried: Counters, counts: Mapping[str, int] | None = None) -> Table:
    """One row per host: link, bytes on eth0 (with headers and acknowledgements), and bytes by the ranks' own counts.

    carried  (sent, received) on eth0, by host
    counts   by host, as `read_counts` gives them: `-` is shown for a missing host; None leaves the columns out
    """
    shown = ("by the plans' own count", "sent / count") if counts is not None else ()
    left = ("host", "ranks", "link")
    table = columns((*left, "sent", "received", *shown), left, gap=3)
    for host in plan.hosts:
        sent, received = carried[host.name]
        count = (counts or {}).get(host.name)
        table.add_row(
            host.name,
            ",".join(map(str, host.ranks)),
            show_rate(plan.cable_of(host.name).bits_per_second),
            f"{sent:,}",
            f"{received:,}",
            *(
                (MISSING if count is None else f"{count:,}", f"{sent / count:.3f}" if count else MISSING)
                if shown
                else ()
            ),
        )
    return table


def _interface(text: str) -> tuple[int, int]:
    """(sent, received) of eth0 in the words of /proc/net/dev."""
    line = next(line for line in text.splitlines() if line.strip().startswith(f"{INTERFACE}:"))
    numbers = line.partition(":")[2].split()
    return int(numbers[8]), int(numbers[0])
