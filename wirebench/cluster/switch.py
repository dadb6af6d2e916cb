"""The first process of a cluster: builds the network and keeps it until the caller is gone or this process is killed.

It runs in namespaces of its own; its network namespace is the switch. On standard output it says one line of JSON:
{"holders": {host: process number in its PID namespace}} or {"error": why not}. Then it reads standard input: at its
end, which comes when the caller dies, the cluster ends; after the line `stay` it stays until it is killed.
"""

import json
import os
import signal
import subprocess
import sys

from wirebench.cluster import network, plan
from wirebench.cluster.namespaces import HOST
from wirebench.errors import UserError

# The holder is what keeps a host's namespaces; as `sleep` it costs next to nothing.
HOLDER = """
import os, socket, sys
socket.sethostname(sys.argv[1])
print("ready", flush=True)
os.execvp("sleep", ["sleep", "infinity"])
"""


def main() -> int:
    """Keep the cluster of the plan in the first argument; exit code 0, or 2 where it cannot be built."""
    planned = plan.load(sys.argv[1])
    try:
        holders = _hold([host.name for host in planned.hosts])
        network.build(planned, holders)
    except UserError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return error.exit_code
    print(json.dumps({"holders": holders}), flush=True)
    if sys.stdin.readline().strip() == "stay":
        _stay()
    return 0


def _hold(names: list[str]) -> dict[str, int]:
    """Start a process for each host, in new network and host-name namespaces; returns their numbers by host."""
    command = (*HOST, sys.executable, "-I", "-S", "-c", HOLDER)
    started = {
        name: subprocess.Popen([*command, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        for name in names
    }
    for name, process in started.items():
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise UserError(f"host {name} could not be made: unshare ended with {process.wait()}")
        process.stdout.close()
    return {name: process.pid for name, process in started.items()}


def _stay() -> None:
    """Live on without the caller: close its terminal and pipes, and reap orphans."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.chdir("/")
    # Processes of jobs that lost their parent become this one's children; ignored, they leave no zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        signal.pause()
