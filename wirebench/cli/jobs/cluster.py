"""Run a command on an emulated cluster: hosts with shaped links, on this machine alone.

  wirebench cluster run --hosts 4 --link 1gbit -- wirebench train synthetic/toy
  wirebench cluster run --layout 2+3 --engine horovod -- wirebench train synthetic/toy
  wirebench cluster up --name lab --hosts 2 --link 100mbit
  wirebench cluster run --name lab -- wirebench train synthetic/toy
  wirebench cluster status
  wirebench cluster down --name lab

docs/clusters.md says what it measures and what not.
"""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import IO

from rich.table import Table

from wirebench.cluster import launcher, state, traffic
from wirebench.cluster.plan import ClusterPlan, make_plan
from wirebench.cluster.ranks import ENGINES
from wirebench.cluster.signals import Relay
from wirebench.errors import UserError
from wirebench.utils.cli import naming, parser_of
from wirebench.utils.console import console
from wirebench.utils.own import ours

DEFAULT_LINK = "1gbit"
DEFAULT_NAME = "cluster"
WIDTH = 200
"""Columns of a table in a file or a pipe: nothing is folded."""
SHAPE = ("hosts", "ranks_per_host", "layout", "link", "dilation")


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; the exit code of the first rank that failed."""
    words = list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    options = _parse(words[:cut])
    options.command = words[cut + 1 :]
    if options.command and options.action is not run:
        raise UserError("a command after -- is for run")
    with Relay() as relay:
        return int(options.action(options, relay))


def run(options: argparse.Namespace, relay: Relay) -> int:
    """Run the command on every rank, in a cluster of its own or in the one that is named."""
    with ExitStack() as stack:
        if options.name is not None:
            asked = [word for word in SHAPE if getattr(options, word) is not None]
            if asked:
                raise UserError(f"--{asked[0].replace('_', '-')}: cluster {options.name!r} has its shape from `up`")
            cluster = state.find(options.name).cluster
            command = _command(options.command, cluster.plan)
        else:
            plan = _plan(options)
            command = _command(options.command, plan)
            cluster = stack.enter_context(launcher.attached(plan))
        holders = cluster.find_hosts()
        before = traffic.read_counters(holders)
        code, counts = launcher.run_job(cluster, options.engine, command, state.counts_folder(), relay)
        carried = traffic.difference(before, traffic.read_counters(holders))
        _show(traffic.traffic_table(cluster.plan, carried, counts))
    return code


def up(options: argparse.Namespace, relay: Relay) -> int:
    """Start a cluster that stays."""
    plan, name = _plan(options), options.name or DEFAULT_NAME
    with state.reserve(name):
        launcher.detached(plan, partial(state.save, name))
    print(f"cluster {name} is up: {len(plan.hosts)} hosts, {plan.size} ranks, {plan.links}")
    return 0


def down(options: argparse.Namespace, relay: Relay) -> int:
    """End clusters, and forget those that have ended by themselves."""
    if not options.all:
        name = options.name or DEFAULT_NAME
        chosen = [known for known in state.every() if known.name == name]
        if not chosen:
            state.find(name)
    elif options.name is not None:
        raise UserError("down takes --name or --all, not both")
    else:
        chosen = state.every()
    for known in chosen:
        print(f"cluster {known.name} " + ("is down" if state.end(known) else "had ended already"))
    for known in state.every():
        if not known.alive:
            state.end(known)
    return 0


def status(options: argparse.Namespace, relay: Relay) -> int:
    """List the clusters that run, and what each host's link has carried so far."""
    running = [known for known in state.every() if known.alive]
    if not running:
        print("no cluster is up")
    for known in running:
        plan = known.cluster.plan
        slower = f", {plan.dilation:g} times slower" if plan.dilation != 1 else ""
        print(f"cluster {known.name}: {plan.layout} ranks, {plan.links}{slower}, up for {known.age_seconds:.0f} s")
        try:
            carried = traffic.read_counters(known.cluster.find_hosts())
        except UserError as error:  # one that is broken does not hide the others
            print(f"  {error}")
            continue
        _show(traffic.traffic_table(plan, carried), sys.stdout)
    return 0


def _parse(words: list[str]) -> argparse.Namespace:
    """The words before --; UserError, with the line that was meant, where a command stands among them."""
    options, unknown = _parser().parse_known_args(words)
    if not unknown:
        return options
    first = words.index(unknown[0])
    if options.action is not run or unknown[0].startswith("-"):
        raise UserError(f"unrecognized arguments: {' '.join(unknown)}; see --help")
    meant = shlex.join([*words[:first], "--", *words[first:]])
    raise UserError(f"the command to run stands after --, like this: wirebench cluster {meant}")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("cluster", __doc__)
    actions = parser.add_subparsers(required=True, metavar="run | up | down | status")
    for action in (run, up, down, status):
        about = str(action.__doc__).splitlines()[0]
        sub = actions.add_parser(action.__name__, help=about, description=about)
        sub.set_defaults(action=action)
        if action is not status:
            sub.add_argument("--name", help="name of a cluster that stays")
        if action in (run, up):
            _add_shape(sub)
    actions.choices["run"].usage = "wirebench cluster run [options] -- COMMAND ..."
    actions.choices["run"].add_argument(
        "--engine", choices=ENGINES, default=ENGINES[0], help="engine of the ranks (%(default)s)"
    )
    actions.choices["down"].add_argument("--all", action="store_true", help="every cluster of this user")
    return parser


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=int, metavar="N", help="number of hosts")
    parser.add_argument("--ranks-per-host", type=int, metavar="N", help="ranks on each host (1)")
    parser.add_argument("--layout", help="ranks of each host: 2+3, or with switches below the root (2+2)+(3+3)")
    parser.add_argument(
        "--link",
        help=f"rate of the links ({DEFAULT_LINK}); per host 1gbit,200mbit; per level, hosts' first, 1gbit;200mbit",
    )
    parser.add_argument(
        "--dilation", type=float, help="divide rates by this, append network.dilation to the command (1)"
    )


def _plan(options: argparse.Namespace) -> ClusterPlan:
    if (options.layout is None) == (options.hosts is None):
        raise UserError("give either --hosts N or --layout, such as 2+3")
    if options.layout is not None and options.ranks_per_host is not None:
        raise UserError("--ranks-per-host: a layout says itself how many ranks each host has")
    for name in ("hosts", "ranks_per_host"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')}: must be at least 1, got {value}")
    ranks = 1 if options.ranks_per_host is None else options.ranks_per_host
    layout = options.layout or "+".join([str(ranks)] * options.hosts)
    dilation = 1.0 if options.dilation is None else options.dilation
    with naming({"topology": "--layout"}):
        return make_plan(layout, options.link or DEFAULT_LINK, dilation)


def _command(words: list[str], plan: ClusterPlan) -> list[str]:
    """The command as the ranks run it; what trains learns how slow its cluster is."""
    if not words:
        raise UserError("which command? Put it after --, for example: run --hosts 2 -- wirebench train CONFIG.toml")
    command = ours(words)
    if shutil.which(command[0]) is None:
        raise UserError(f"no such command: {command[0]}")
    if plan.dilation == 1:
        return command
    names = [os.path.basename(word) for word in words]
    if "train.py" not in names and ("wirebench", "train") not in pairwise(names):
        raise UserError("--dilation: slows the links and a replayed model alike, so the command must train one")
    return [*command, f"network.dilation={plan.dilation}"]


def _show(table: Table, stream: IO[str] | None = None) -> None:
    console(WIDTH, stream or sys.stderr, highlight=False).print(table)
