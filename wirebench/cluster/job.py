"""The first process of a job: starts the ranks in their hosts, passes on what they print, and ends them.

It is the first process of a PID namespace, so when it ends, nothing of the job lives on. Standard input comes from the
command that the user typed: a line is the number of a signal to pass on, its end means that the command is gone.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import IO

from wirebench.cluster import plan
from wirebench.cluster.plan import SWITCH_ADDRESS, ClusterPlan
from wirebench.cluster.ranks import environment
from wirebench.cluster.supervisor import Abandoned, Event, RankEnded, StopRequest, conduct
from wirebench.cluster.traffic import read_counts
from wirebench.comm.host_list import written
from wirebench.errors import UserError

HOSTS_FILE = Path("/etc/hosts")
PORTS = range(20_000, 32_000)
"""Ports for rank 0's store, below the ports of outgoing connections; a host has no other services that use one."""
LAST_WORDS_SECONDS = 1.0
"""Time to read the ranks' output to its end; a process that outlives its rank may keep the pipe open for ever."""


@dataclass(frozen=True)
class Order:
    """A job: `command` on every rank of `plan`.

    typed   the user's own command line, for the ranks' records
    counts  folder for the ranks' byte counts; in its place they see one in memory, which is gone with the job
    report  open descriptor to which the bytes that each host's ranks sent to other hosts are written, as JSON
    spaces  open descriptors of each host's network and host-name namespace, by host
    """

    plan: ClusterPlan
    engine: str
    command: list[str]
    typed: str
    counts: str
    report: int
    spaces: dict[str, tuple[int, int]]

    def dump(self) -> str:
        """The order as JSON, which `load` reads."""
        return json.dumps({**self.__dict__, "plan": self.plan.dump()})


def load(text: str) -> Order:
    """The order that `Order.dump` wrote."""
    content = json.loads(text)
    spaces = {host: (network, name) for host, (network, name) in content.pop("spaces").items()}
    return Order(plan=plan.load(content.pop("plan")), spaces=spaces, **content)


def main() -> int:
    """Run the job of the first argument; the exit code of the first rank that failed, else 0."""
    order = load(sys.argv[1])
    events: Queue[Event] = Queue()
    try:
        _name_hosts(order.plan)
        _mount("tmpfs", "-t", "tmpfs", order.counts)
        port = _rendezvous(order.plan) if order.engine == "horovod" else random.choice(PORTS)
    except UserError as error:
        print(f"wirebench cluster: {error}", file=sys.stderr)
        return error.exit_code
    threading.Thread(target=_listen, args=(events,), daemon=True).start()
    ranks, talk = _start(order, port, events)
    code = conduct(ranks, events, order.plan.host_of)
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    for thread in talk:
        thread.join(max(0.0, deadline - time.monotonic()))
    with open(order.report, "w") as report:
        json.dump(read_counts(Path(order.counts), order.plan), report)
    sys.stdout.flush()
    sys.stderr.flush()
    # Without waiting for the threads, which may be blocked reading.
    os._exit(code)


def _name_hosts(planned: ClusterPlan) -> None:
    """Let host names be resolved, in this mount namespace only.

    A copy of /etc/hosts with the cluster's names is mounted over it, and then loses its own name: nothing is left.
    """
    names = {SWITCH_ADDRESS: "switch", **{host.address: host.name for host in planned.hosts}}
    lines = [f"{address} {name}" for address, name in names.items()]
    # Sockets that take IPv6 too, such as that of torch's store, see IPv4 addresses in this form and resolve them.
    lines += [f"::ffff:{address} {name}.cluster" for address, name in names.items()]
    if not HOSTS_FILE.exists():
        return
    with tempfile.NamedTemporaryFile("w", prefix="wirebench-hosts-") as file:
        file.write(HOSTS_FILE.read_text() + "\n" + "\n".join(lines) + "\n")
        file.flush()
        os.chmod(file.name, 0o644)
        _mount(file.name, "--bind", str(HOSTS_FILE))


def _mount(source: str, *words: str) -> None:
    done = subprocess.run(["mount", *words[:-1], source, words[-1]], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{source} cannot be mounted: {' '.join(done.stderr.split())}")


def _rendezvous(planned: ClusterPlan) -> int:
    """Start Horovod's rendezvous server on the switch, as horovodrun does; returns its port."""
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousServer
    except ImportError as error:
        raise UserError(
            f"--engine horovod: Horovod cannot be loaded ({error}); `make setup` in a clone builds it"
        ) from error
    server = RendezvousServer()
    port = server.start()
    slots = written({host.name: len(host.ranks) for host in planned.hosts})
    server.init(get_host_assignments(parse_hosts(slots), planned.size))
    return int(port)


def _start(order: Order, port: int, events: Queue[Event]) -> tuple[dict[int, subprocess.Popen], list[threading.Thread]]:
    """Start every rank's process, and the threads that pass on what ranks print."""
    ranks, talk = {}, []
    for rank, host in order.plan.host_of.items():
        spaces = order.spaces[host]
        out, err = _streams(rank)
        enter = ("nsenter", f"--net=/proc/self/fd/{spaces[0]}", f"--uts=/proc/self/fd/{spaces[1]}", "--")
        process = subprocess.Popen(
            [*enter, *order.command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(os.environ, order.engine, order.plan, rank, port, order.counts, order.typed),
            pass_fds=spaces,
            start_new_session=True,
        )
        ranks[rank] = process
        prefix = f"[{rank}] ".encode() if rank else b""
        for source, target in ((process.stdout, 1), (process.stderr, 2)):
            if source is not None:
                talk.append(_thread(_pass_on, source, target, prefix))
        _thread(_bury, rank, process, events)
    return ranks, talk


def _streams(rank: int) -> tuple[int | None, int | None]:
    """What a rank gets as standard output and error: pipes that are read by lines.

    Without one, an unbuffered program's line could be cut by another rank's. A terminal is rank 0's own: programs draw
    progress there. Where both go to one place they share a pipe, which keeps their order.
    """
    out, err = (None if rank == 0 and os.isatty(target) else subprocess.PIPE for target in (1, 2))
    if out and err and os.path.sameopenfile(1, 2):
        err = subprocess.STDOUT
    return out, err


def _thread(target: object, *arguments: object) -> threading.Thread:
    assert callable(target)
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def _pass_on(source: IO[bytes], target: int, prefix: bytes) -> None:
    """Write a rank's lines to a descriptor, each in one piece with its prefix."""
    try:
        for line in source:
            os.write(target, prefix + line.rstrip(b"\n") + b"\n")
    except BrokenPipeError:
        # Nobody reads any more: with its pipe closed the rank gets the error that it would get without this process.
        source.close()


def _bury(rank: int, process: subprocess.Popen, events: Queue[Event]) -> None:
    code = process.wait()
    events.put(RankEnded(rank, code if code >= 0 else 128 - code))


def _listen(events: Queue[Event]) -> None:
    for line in sys.stdin:
        events.put(StopRequest(int(line)))
    events.put(Abandoned())
