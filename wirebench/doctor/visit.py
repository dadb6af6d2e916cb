"""Ask all hosts, then let each time its way to the next one."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from wirebench.doctor import compare
from wirebench.doctor.compare import HostFinding, Way
from wirebench.doctor.hosts import AskedHost, Unreachable
from wirebench.doctor.wire import LinkTimes
from wirebench.utils.package import TOP

FOLDER = shlex.quote(str(TOP))
"""The project's folder, quoted for commands that users copy into a shell."""


@dataclass
class Visit:
    """What the visit found.

    ways  the connections that were timed, from one host to the next
    """

    findings: list[HostFinding] = field(default_factory=list)
    ways: dict[Way, LinkTimes] = field(default_factory=dict)


def examine(names: Sequence[str], options: argparse.Namespace) -> Visit:
    """Visit the hosts; those that do not answer are findings, and the rest are compared without them."""
    seen = Visit()
    with ExitStack() as stack:
        hosts = [stack.enter_context(closing(AskedHost(name, options.ssh))) for name in names]
        facts = _ask_all(hosts, options, seen)
        here = [host for host in hosts if host.name in facts]
        if facts:
            seen.findings += compare.differing(facts, FOLDER)
            seen.findings += compare.lacking(facts, options.config, options.interface)
            ahead = _clocks(here, seen)
            seen.findings += compare.clocks(ahead)
            here = [host for host in here if host.name in ahead]
        _time_links(here, facts, options, seen)
    return seen


def _clocks(hosts: Sequence[AskedHost], seen: Visit) -> dict[str, float]:
    """Seconds by which each host's clock is ahead of ours; a host that gives no answer any more is a finding."""
    ahead = {}
    for host in hosts:
        try:
            ahead[host.name] = host.clock_ahead()
        except (Unreachable, OSError) as error:
            seen.findings.append(HostFinding(host.name, f"ended: {error}", "look at it"))
    return ahead


def _ask_all(hosts: Sequence[AskedHost], options: argparse.Namespace, seen: Visit) -> dict[str, dict[str, Any]]:
    """The facts of all hosts that answer, asked at once: importing torch takes seconds on each."""
    print(f"asking {len(hosts)} host{'s' if len(hosts) > 1 else ''}", file=sys.stderr, flush=True)

    def ask(host: AskedHost) -> dict[str, Any] | HostFinding:
        try:
            return dict(host.ask("facts", config=options.config, interface=options.interface))
        except (Unreachable, OSError) as error:
            return HostFinding(host.name, f"gives no answer: {error}", f"try: {options.ssh} {host.name} ls {FOLDER}")

    with ThreadPoolExecutor(len(hosts)) as pool:
        answers = list(pool.map(ask, hosts))
    seen.findings += [each for each in answers if isinstance(each, HostFinding)]
    return {host.name: each for host, each in zip(hosts, answers, strict=True) if isinstance(each, dict)}


def _time_links(
    hosts: Sequence[AskedHost], facts: dict[str, dict[str, Any]], options: argparse.Namespace, seen: Visit
) -> None:
    """Each host's way to the next, one after the other: they would share the links."""
    if len(hosts) < 2:
        return
    for here, there in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
        print(f"timing {here.name} -> {there.name}", file=sys.stderr, flush=True)
        way = here.name, there.name
        for port in (0, options.port):
            if port is None:
                continue
            seconds = options.seconds if port == 0 else 0.1
            try:
                named = facts[there.name].get("address")
                address = named or here.ask("resolve", host=there.name)
                if not named and address.startswith("127."):
                    mend = f"name the interface (--interface), or mend {here.name}'s /etc/hosts"
                    seen.findings.append(HostFinding(there.name, f"its name leads to {address} on {here.name}", mend))
                    break
                listening = _listen(there, port, seen)
                if listening is None:
                    break
                timed = here.ask("measure", address=address, port=listening, seconds=seconds)
            except OSError as error:
                seen.findings += compare.unreachable({way: str(error)}, port or None)
                break
            except Unreachable as error:
                seen.findings.append(HostFinding(f"{here.name} or {there.name}", f"ended: {error}", "look at it"))
                return
            else:
                if port == 0:
                    seen.ways[way] = LinkTimes(timed["round_trip"], timed["bytes_per_second"])


def _listen(host: AskedHost, port: int, seen: Visit) -> int | None:
    """The port at which the host listens; None, and a finding, where it cannot."""
    try:
        return int(host.ask("listen", port=port))
    except OSError as error:
        seen.findings.append(compare.not_listening(host.name, port, str(error)))
        return None
