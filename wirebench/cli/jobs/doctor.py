"""Look at the hosts of a run before it: same commit, versions and config, clocks, ports, links, disk, GPUs.

wirebench doctor h1:4,h2:4
wirebench doctor h1 h2 h3 --config configs/smoke.toml --interface eth0 --link 10gbit
wirebench doctor node[01-04] --port 29500
wirebench doctor --hostfile hosts --exclude h3

An agent is started on each host by ssh, in this folder and with this Python, as horovodrun starts ranks. One line per
host and thing that is wrong, with the mend, what costs most first; then what was measured. Exit code 1 if something is
wrong. Without a host in a Slurm job: the job's nodes.
"""

import argparse
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from wirebench.comm.host_list import ListedHost, nodes, parse_words, read_hostfile, select, task_counts
from wirebench.comm.place import MOST
from wirebench.doctor import tables
from wirebench.doctor.hosts import SSH
from wirebench.doctor.visit import examine
from wirebench.topology.rates import parse_rate
from wirebench.utils.cli import parser_of

JOBS_NODES, JOBS_TASKS, ASKED = "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS"


def main(arguments: Sequence[str]) -> int:
    """Examine the hosts; 0 where nothing is wrong, else 1."""
    options = _parse(arguments)
    listed = select(_listed(options), options.include, options.exclude)
    nominal = parse_rate(options.link) if options.link else None
    seen = examine(listed, options, nominal)
    for finding in seen.findings:
        print(finding.line())
    print(f"{tables.summary(seen.links, len(listed), seen.all_reduce)}; {_counted(len(seen.findings))}")
    tables.show(seen.links)
    return 1 if seen.findings else 0


def _listed(options: argparse.Namespace) -> list[ListedHost]:
    if options.hostfile:
        return read_hostfile(options.hostfile)
    if options.hosts:
        return parse_words(options.hosts)
    return _of_job()


def _of_job() -> list[ListedHost]:
    """The Slurm job's nodes, with their tasks where the job asked for a number: else Slurm counts cores."""
    text = os.environ.get(JOBS_TASKS, "") if ASKED in os.environ else ""
    counts = task_counts(text, JOBS_TASKS, MOST) if text else ()
    slots = itertools.chain.from_iterable(itertools.starmap(itertools.repeat, counts))
    return [ListedHost(name, next(slots, None)) for name in nodes(os.environ[JOBS_NODES], JOBS_NODES)]


def _counted(findings: int) -> str:
    if findings < 2:
        return "1 thing is wrong" if findings else "nothing is wrong"
    return f"{findings} things are wrong"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of("doctor", __doc__)
    add = parser.add_argument
    add("hosts", nargs="*", metavar="HOST", help="h1:4,h2:4 as for horovodrun, h1 h2, or node[01-04] as Slurm's")
    add("--hostfile", type=Path, metavar="FILE", help="the hosts, as horovodrun, mpirun and DeepSpeed list them")
    add("--include", default="", metavar="HOSTS", help="these of the listed hosts alone, as DeepSpeed's: h1@h2:0,1")
    add("--exclude", default="", metavar="HOSTS", help="without these of the listed hosts, as DeepSpeed's")
    add("--config", metavar="FILE", help="a config that must be the same on all hosts")
    add("--interface", metavar="NAME", help="the interface by which the hosts reach each other")
    add("--link", metavar="RATE", help="what each link should carry, e.g. 10gbit")
    add("--port", type=int, help="a port that must be reachable, too, e.g. torchrun's 29500")
    add("--seconds", type=float, default=2.0, help="how long each direction of a link is timed (%(default)s)")
    add("--ssh", default=SSH, metavar="COMMAND", help="starts a command on a host (%(default)s)")
    options = parser.parse_args(arguments)
    if options.hosts and options.hostfile:
        parser.error("--hostfile: stands alone, without hosts on the command line")
    if not (options.hosts or options.hostfile or os.environ.get(JOBS_NODES)):
        parser.error("the following arguments are required: HOST or --hostfile")
    if options.port is not None and not 1 <= options.port <= 65535:
        parser.error(f"--port: must be 1 to 65535, got {options.port}")
    if not 0.1 <= options.seconds <= 60:
        parser.error(f"--seconds: must be 0.1 to 60, got {options.seconds:g}")
    return options
