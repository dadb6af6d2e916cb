"""Ask all hosts, let each time its ways to its neighbours, and all of them an all-reduce."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from wirebench.comm.host_list import ListedHost
from wirebench.doctor import choices, compare, links
from wirebench.doctor.compare import HostFinding, Way
from wirebench.doctor.hosts import AskedHost, Unreachable
from wirebench.doctor.links import Seen
from wirebench.doctor.sums import RankTimes, SumTimes, joined
from wirebench.doctor.wire import LinkTimes
from wirebench.utils.package import TOP

FOLDER = shlex.quote(str(TOP))
"""The project's folder, quoted for commands that users copy into a shell."""
SUM_SHARE, LEAST_SUM, MOST_SUM = 0.125, 2**18, 2**26
"""What is summed: what the slowest way carries in this share of --seconds, within these bounds in bytes."""
AGAIN, BETTER = 2, 1.05
"""Times that what looks slow is measured again, at most, and how many times as fast a way is that has got better."""


@dataclass
class Visit:
    """What the visit found.

    findings    what is wrong, what costs most first
    links       facts of the hosts that answered, and the connections that were timed between neighbours
    all_reduce  None with one host, or if it could not begin or end
    """

    findings: list[HostFinding] = field(default_factory=list)
    links: Seen = field(default_factory=lambda: Seen({}, {}))
    all_reduce: SumTimes | None = None


def examine(listed: Sequence[ListedHost], options: argparse.Namespace, nominal: float | None = None) -> Visit:
    """Visit the hosts; those that do not answer are findings, and the rest are compared without them.

    nominal  bits per second that each link should carry
    """
    seen = Visit()
    with ExitStack() as stack:
        hosts = [stack.enter_context(closing(AskedHost(each.name, options.ssh))) for each in listed]
        facts = _ask_all(hosts, options, seen)
        here = [host for host in hosts if host.name in facts]
        if facts:
            seen.findings += compare.differing(facts, FOLDER)
            seen.findings += compare.lacking(facts, options.config, options.interface)
            ahead = _clocks(here, seen)
            seen.findings += compare.clocks(ahead)
            here = [host for host in here if host.name in ahead]
        before, ways = len(seen.findings), dict[Way, LinkTimes]()
        slots = {each.name: each.slots for each in listed if each.slots is not None}
        seen.links = Seen(facts, ways, options.interface, nominal, slots)
        _time_links(here, options, seen, ways)
        seen.findings += links.judge(seen.links)
        backend = "nccl" if here and all(facts[host.name].get("gpus") for host in here) else "gloo"
        if ways and not any(_keeps_apart(each, backend) for each in seen.findings[before:]):
            _sum(here, options, seen, backend)
    seen.findings = compare.ranked(seen.findings)
    return seen


def _keeps_apart(finding: HostFinding, backend: str) -> bool:
    """Whether ranks of this back end would wait for each other until their time-out; Gloo's interface is not NCCL's."""
    return finding.cost == compare.STOPS and not (backend == "nccl" and finding.what.startswith("Gloo"))


def _clocks(hosts: Sequence[AskedHost], seen: Visit) -> dict[str, float]:
    """Seconds by which each host's clock is ahead of ours; a host that gives no answer any more is a finding."""
    ahead = {}
    for host in hosts:
        try:
            ahead[host.name] = host.clock_ahead()
        except (Unreachable, OSError) as error:
            seen.findings.append(_ended(host.name, error))
    return ahead


def _ask_all(hosts: Sequence[AskedHost], options: argparse.Namespace, seen: Visit) -> dict[str, dict[str, Any]]:
    """The facts of all hosts that answer, asked at once: importing torch takes seconds on each."""
    print(f"asking {len(hosts)} host{'s' if len(hosts) > 1 else ''}", file=sys.stderr, flush=True)

    def ask(host: AskedHost) -> dict[str, Any] | HostFinding:
        try:
            return dict(host.ask("facts", config=options.config, interface=options.interface, variables=_passed_on()))
        except (Unreachable, OSError) as error:
            mend = f"try: {options.ssh} {host.name} ls {FOLDER}"
            return HostFinding(host.name, f"gives no answer: {error}", mend, compare.STOPS)

    with ThreadPoolExecutor(len(hosts)) as pool:
        answers = list(pool.map(ask, hosts))
    seen.findings += [each for each in answers if isinstance(each, HostFinding)]
    return {host.name: each for host, each in zip(hosts, answers, strict=True) if isinstance(each, dict)}


def _passed_on() -> dict[str, str]:
    """The variables of NCCL and Gloo that horovodrun, srun and mpirun -x would give to all ranks."""
    return choices.variables(os.environ, files=())


def _ring(hosts: Sequence[AskedHost]) -> list[tuple[AskedHost, AskedHost]]:
    """Each host's link to the next, in both directions; of two hosts the one link."""
    pairs = list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))[: None if len(hosts) > 2 else 1]
    return [way for here, there in pairs for way in ((here, there), (there, here))]


def _time_links(
    hosts: Sequence[AskedHost], options: argparse.Namespace, seen: Visit, ways: dict[Way, LinkTimes]
) -> None:
    """Time the ways between neighbours, one after the other, since they share the links; `ways` gets their times.

    What looks slow is timed again, and the faster time counts: a host is not blamed for what ran there for a moment.
    What is as slow again is slow.
    """
    ring = {(here.name, there.name): (here, there) for here, there in (_ring(hosts) if len(hosts) > 1 else ())}
    way = ("", "")
    try:
        for way, ends in ring.items():
            timed = _time_way(*ends, options, seen)
            if timed is not None:
                ways[way] = timed
        for _ in range(AGAIN):
            before = {way: ways[way].bytes_per_second for way in links.doubtful(seen.links)}
            for way in before:
                told = len(seen.findings)
                timed = _time_way(*ring[way], options, seen, again=True)
                del seen.findings[told:]  # a connection that fails now came about before: the times of then count
                ways[way] = ways[way] if timed is None else ways[way].better(timed)
            if all(ways[way].bytes_per_second <= BETTER * rate for way, rate in before.items()):
                break
    except Unreachable as error:
        seen.findings.append(_ended(" or ".join(way), error))


def _time_way(
    here: AskedHost, there: AskedHost, options: argparse.Namespace, seen: Visit, again: bool = False
) -> LinkTimes | None:
    """The times of one way; None, and a finding, where no connection comes about. The first time it tries --port, too.

    Raises Unreachable where one of the hosts gives no answer any more.
    """
    print(f"timing {here.name} -> {there.name}{' again' * again}", file=sys.stderr, flush=True)
    found = None
    for port in (0,) if again or options.port is None else (0, options.port):
        try:
            named = seen.links.facts[there.name].get("address")
            address = named or here.ask("resolve", host=there.name)
            if not named and (address.startswith("127.") or address == "::1"):
                mend = f"name the interface (--interface), or mend {here.name}'s /etc/hosts"
                what = f"its name leads to {address} on {here.name}"
                seen.findings.append(HostFinding(there.name, what, mend, compare.STOPS))
                break
            listening = _listen(there, port, seen)
            if listening is None:
                break
            seconds = options.seconds if port == 0 else 0.1
            timed = here.ask("measure", address=address, port=listening, seconds=seconds)
        except OSError as error:
            seen.findings += compare.unreachable({(here.name, there.name): str(error)}, port or None)
            break
        if port == 0:
            found = LinkTimes(**{**timed, "by_size": tuple((int(n), t) for n, t in timed["by_size"])})
    return found


def _sum(hosts: Sequence[AskedHost], options: argparse.Namespace, seen: Visit, backend: str) -> None:
    """Let a rank on each host take part in an all-reduce; one that fails is a finding, one that is slow is repeated."""
    slowest = min(each.bytes_per_second for each in seen.links.ways.values())
    num_bytes = round(min(max(SUM_SHARE * options.seconds * slowest, LEAST_SUM), MOST_SUM * min(1.0, options.seconds)))
    for turn in range(1 + AGAIN):
        repeats = f"timing an all-reduce of {len(hosts)} hosts by {backend}{' again' * (turn > 0)}"
        print(repeats, file=sys.stderr, flush=True)
        timed = _sum_once(hosts, seen, backend, num_bytes)
        if timed is None:
            return
        if seen.all_reduce is None or timed.bus_rate > seen.all_reduce.bus_rate:
            seen.all_reduce = timed
        found = list(links.all_reduce(seen.links, seen.all_reduce))
        if not found:
            return
    seen.findings += found


def _sum_once(hosts: Sequence[AskedHost], seen: Visit, backend: str, num_bytes: int) -> SumTimes | None:
    """The times of an all-reduce; None, and findings, where it could not begin or end."""
    first = hosts[0]
    try:
        address = seen.links.facts[first.name].get("address") or hosts[1].ask("resolve", host=first.name)
        port = first.ask("free_port")
    except (Unreachable, OSError) as error:
        seen.findings.append(_ended(first.name, error))
        return None

    def ask(rank: int) -> RankTimes | HostFinding:
        host = hosts[rank]
        place = {"address": address, "port": port, "rank": rank, "size": len(hosts)}
        try:
            return RankTimes(**host.ask("sum", backend=backend, bytes=num_bytes, variables=_passed_on(), **place))
        except (Unreachable, OSError) as error:
            return HostFinding(host.name, f"all-reduce: {error}", f"see {backend.upper()}_SOCKET_IFNAME", compare.STOPS)

    with ThreadPoolExecutor(len(hosts)) as pool:
        answers = dict(zip(hosts, pool.map(ask, range(len(hosts))), strict=True))
    ranks = {host.name: each for host, each in answers.items() if isinstance(each, RankTimes)}
    seen.findings += [each for each in answers.values() if isinstance(each, HostFinding)]
    return joined(backend, num_bytes, ranks) if len(ranks) == len(hosts) else None


def _ended(host: str, why: Exception) -> HostFinding:
    return HostFinding(host, f"ended: {why}", "look at it", compare.STOPS)


def _listen(host: AskedHost, port: int, seen: Visit) -> int | None:
    """The port at which the host listens; None, and a finding, where it cannot."""
    try:
        return int(host.ask("listen", port=port))
    except OSError as error:
        seen.findings.append(compare.not_listening(host.name, port, str(error)))
        return None
