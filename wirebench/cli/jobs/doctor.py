"""Look at the hosts of a run before it: same commit, versions and config, clocks, ports, links, disk, GPUs.

wirebench doctor h1:4,h2:4
wirebench doctor h1 h2 h3 --config configs/smoke.toml --interface eth0 --link 10gbit
wirebench doctor h1 h2 --port 29500

An agent is started on each host by ssh, in this folder and with this Python, as horovodrun starts ranks. One line per
host and thing that differs, with the mend; exit code 1 if there is one.
"""

import argparse
from collections.abc import Sequence

from wirebench.doctor import compare
from wirebench.doctor.hosts import SSH, parse_hosts
from wirebench.doctor.visit import examine
from wirebench.topology.rates import parse_rate
from wirebench.utils.cli import parser_of


def main(arguments: Sequence[str]) -> int:
    """Examine the hosts; 0 where nothing is wrong, else 1."""
    options = _parse(arguments)
    names = parse_hosts(options.hosts)
    nominal = parse_rate(options.link) if options.link else None
    seen = examine(names, options)
    findings = [*seen.findings, *compare.slow(seen.ways, nominal)]
    for finding in findings:
        print(finding.line())
    print(f"{compare.summary(names, seen.ways, nominal)}; {_counted(len(findings))}")
    return 1 if findings else 0


def _counted(findings: int) -> str:
    if findings < 2:
        return "1 thing is wrong" if findings else "nothing is wrong"
    return f"{findings} things are wrong"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of("doctor", __doc__)
    parser.add_argument("hosts", nargs="+", metavar="HOST", help="h1:4,h2:4 as for horovodrun, or h1 h2")
    parser.add_argument("--config", metavar="FILE", help="a config that must be the same on all hosts")
    parser.add_argument("--interface", metavar="NAME", help="the interface by which the hosts reach each other")
    parser.add_argument("--link", metavar="RATE", help="what each link should carry, e.g. 10gbit")
    parser.add_argument("--port", type=int, help="a port that must be reachable, too, e.g. torchrun's 29500")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each link is timed (%(default)s)")
    parser.add_argument("--ssh", default=SSH, metavar="COMMAND", help="starts a command on a host (%(default)s)")
    options = parser.parse_args(arguments)
    if options.port is not None and not 1 <= options.port <= 65535:
        parser.error(f"--port: must be 1 to 65535, got {options.port}")
    if not 0.1 <= options.seconds <= 60:
        parser.error(f"--seconds: must be 0.1 to 60, got {options.seconds:g}")
    return options
