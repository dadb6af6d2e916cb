"""Clusters that run: who is where, what is shaped, what is counted, what is answered."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.running import CLUSTER, NOBODY, STREAMS, count, rootless, table
from tests.distributed.ends import record
from tests.distributed.launch import CONFIG, PLUGINS, Ended, Job

Run = Callable[..., Ended]
SAY = "echo $(uname -n) $RANK of $WORLD_SIZE; echo trouble $RANK >&2"


def speed(said: str) -> float:
    """What rank 0 of streams.py says, in Mbit/s."""
    [line] = [line for line in said.splitlines() if "Mbit/s of" in line]
    return float(line.split()[0])


def test_ranks_are_in_their_hosts(cluster: Run):
    ended = cluster("run", "--layout", "1+2", "--link", "100mbit", "--", "sh", "-c", SAY)
    assert ended.code == 0, ended.said
    assert sorted(ended.out.splitlines()) == ["[1] h1 1 of 3", "[2] h1 2 of 3", "h0 0 of 3"]
    assert {"trouble 0", "[1] trouble 1", "[2] trouble 2"} < set(ended.err.splitlines())
    assert table(ended.err) == {
        "h0": ["0", "100mbit", "0", "0", "-", "-"],
        "h1": ["1,2", "100mbit", "0", "0", "-", "-"],
    }


def test_ranks_know_what_was_typed_and_their_links_rate(cluster: Run):
    say = "echo $WIREBENCH_LINK_MBIT; echo $WIREBENCH_LAUNCHED_BY"
    shape = ("run", "--hosts", 2, "--link", "1gbit,20mbit")
    ended = cluster(*shape, "--", "sh", "-c", say)
    assert ended.code == 0, ended.said
    typed = shlex.join([*CLUSTER, *map(str, shape), "--", "sh", "-c", say])
    assert sorted(ended.out.splitlines()) == sorted(["1000", "[1] 20", typed, f"[1] {typed}"])


def test_hosts_know_each_other_and_nobody_else(cluster: Run):
    """And what an unbuffered program prints in pieces comes as whole lines."""
    program = (
        "import socket, time; place = socket.gethostbyname('h0'), socket.gethostbyname('h1'), socket.gethostname()\n"
        "time.sleep(1 - time.time() % 1)  # Both ranks at once.\n"
        "for _ in range(500): print(*place, len(socket.if_nameindex()))"
    )
    ended = cluster("run", "--hosts", 2, "--", "python", "-u", "-c", program)
    said = ["10.77.1.1 10.77.1.2 h0 2", "[1] 10.77.1.1 10.77.1.2 h1 2"]
    assert sorted(ended.out.splitlines()) == [line for line in said for _ in range(500)], ended.said


def test_a_rank_sees_what_its_switches_have_carried(cluster: Run):
    program = "from wirebench.cluster.traffic import read_levels; print(read_levels())"
    ended = cluster("run", "--layout", "(1+1)+1", "--link", "1gbit", "--", "python", "-c", program)
    assert ended.out.count("LevelBytes(sent=0, up=0, switches=1)") == 3, ended.said


FEW = """
import os, socket, subprocess, time
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(place) as server:
        connection = server.accept()[0]
        while connection.recv(1 << 16):
            continue
        connection.sendall(b"all")
else:
    while True:
        try:
            connection = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    began = time.monotonic()
    connection.sendall(bytes(200_000))
    connection.shutdown(socket.SHUT_WR)
    answer, seconds = connection.recv(3).decode(), time.monotonic() - began
    shaper = subprocess.run(["tc", "qdisc", "show", "dev", "eth0"], capture_output=True, text=True).stdout.split()
    print(answer, seconds, shaper[shaper.index("rate") + 1])
"""
"""Rank 1 sends 200,000 bytes to rank 0, and says after how many seconds that has them all, and the rate of its link."""


def check_few(ended: Ended, bits_per_second: float) -> None:
    """They came, and no sooner than this rate lets them, however late a busy machine may be; half of it for a burst.
    The kernel shapes the link to that rate, and not to a lower one.
    """
    assert ended.code == 0, ended.said
    _, came, seconds, rate = ended.out.split()
    assert rate == f"{bits_per_second / 1e6:g}Mbit", ended.said
    assert came == "all" and float(seconds) > 0.5 * 200_000 * 8 / bits_per_second, ended.said


def test_the_slower_link_of_two_counts_and_so_does_what_crosses_it(cluster: Run):
    ended = cluster("run", "--hosts", 2, "--link", "1gbit,2mbit", "--", "python", "-c", FEW)
    check_few(ended, 2e6)
    rows = table(ended.err)
    assert min(count(rows["h1"][2]), count(rows["h0"][3])) >= 200_000, ended.said


@pytest.mark.slow
@pytest.mark.clock
@pytest.mark.parametrize(
    "shape", [("--layout", "(1+1)+(1+1)"), pytest.param(("--hosts", 2), marks=pytest.mark.weekly), ("--hosts", 4)]
)
def test_a_link_carries_its_rate(shape: tuple[str, object], cluster: Run):
    """Whether one stream or three: what arrives at a host comes through its link."""
    ended = cluster("run", *shape, "--link", "40mbit", "--", "python", STREAMS, 1.5)
    assert ended.code == 0, ended.said
    assert 0.7 * 40 < speed(ended.out) < 1.01 * 40, ended.said
    rows = table(ended.err)
    others = sum(count(row[2]) for host, row in rows.items() if host != "h0")
    # What a full queue drops has been sent all the same.
    assert 0.7 * 40e6 / 8 * 1.5 < count(rows["h0"][3]) <= others


@pytest.mark.slow
@pytest.mark.clock
def test_one_stream_loses_nothing(cluster: Run):
    """Shaped on both sides: at the switch's port no queue may build up of what the host's own link let through."""
    ended = cluster("run", "--hosts", 2, "--link", "40mbit", "--", "python", STREAMS, 1.5)
    assert "[1] 0 segments sent again" in ended.out.splitlines(), ended.said


def test_ranks_of_one_host_do_not_use_its_link(cluster: Run):
    ended = cluster("run", "--layout", "2", "--link", "1mbit", "--", "python", "-c", FEW)
    assert ended.code == 0 and "all" in ended.out, ended.said
    assert table(ended.err)["h0"][2:4] == ["0", "0"]


def test_the_first_failing_rank_gives_the_code(cluster: Run):
    ended = cluster("run", "--hosts", 3, "--", "sh", "-c", "sleep 0.$((RANK + 1)); exit $((RANK * 7))")
    assert ended.code == 7, ended.said
    assert "wirebench cluster: rank 1 on h1 ended with exit code 7" in ended.err


@pytest.mark.slow
@pytest.mark.clock
def test_named_clusters_do_not_disturb_each_other(cluster: Run, begin: Callable[..., Job]):
    assert cluster("up", "--name", "a", "--layout", "1+2", "--link", "10mbit", "--dilation", 2).code == 0
    assert cluster("up", "--name", "b", "--hosts", 2).code == 0
    again = cluster("up", "--name", "b", "--hosts", 2)
    assert (again.code, "up already" in again.err) == (2, True), again.said
    job = begin("run", "--name", "b", "--", "python", STREAMS, 1.2)
    ended = cluster("run", "--name", "b", "--", "sh", "-c", "uname -n; exit $((RANK * 5))")
    assert (ended.code, sorted(ended.out.splitlines())) == (5, ["[1] h1", "h0"]), ended.said
    assert job.wait(30).code == 0
    said = cluster("status").out
    assert "cluster a: 1+2 ranks, 10mbit, 2 times slower" in said and "cluster b: 1+1 ranks, 1gbit, up for" in said
    assert count(table(said)["h0"][3]) > 1e6
    assert "cluster a is down" in cluster("down", "--name", "a").out
    assert "cluster a:" not in cluster("status").out
    job = begin("run", "--name", "b", "--", "sleep", 100)
    job.until(lambda: sum(words["RANK"] != "" for words in job.processes().values() if "RANK" in words) == 2)
    assert "cluster b is down" in cluster("down", "--all").out
    assert (job.wait(5).code, job.wait(5).err) == (2, "wirebench cluster: the cluster has been taken down\n")
    assert cluster("status").out == "no cluster is up\n"


def proc_is_covered() -> bool:
    """Whether a file of /proc lies under another, as in a container: the kernel lets root alone mount a new one."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return any(point.startswith("/proc/") and Path(point).is_file() for point in points)


@pytest.mark.skipif(os.geteuid() != 0, reason="drops root's rights, which this user does not have")
@pytest.mark.skipif(proc_is_covered(), reason="only root may mount /proc here")
def test_without_rights(cluster: Run, place: Path):
    place.chmod(0o755)
    mine = place / "wirebench"
    mine.mkdir(mode=0o700)
    os.chown(mine, NOBODY, NOBODY)
    ended = cluster("run", "--hosts", 2, "--link", "2mbit", "--", "python", "-c", FEW, within=rootless())
    check_few(ended, 2e6)
    assert cluster("up", "--hosts", 2, within=rootless()).code == 0
    ended = cluster("run", "--name", "cluster", "--", "uname", "-n", within=rootless())
    assert sorted(ended.out.splitlines()) == ["[1] h1", "h0"], ended.said
    assert cluster("down", within=rootless()).out == "cluster cluster is down\n"


@pytest.mark.slow
def test_dilation_reaches_the_run(cluster: Run):
    """It is appended, so train.py refuses it for a model that is not replayed."""
    ended = cluster("run", "--hosts", 1, "--dilation", 4, "--", "python", "train.py", "configs/synthetic/toy.toml")
    assert ended.code == 2, ended.said
    assert len(ended.errors) == 1 and "network.dilation: only a replayed model" in ended.errors[0], ended.said


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "horovod"])
def test_training(engine: str, cluster: Run, tmp_path: Path):
    folder = tmp_path / "run"
    shape = ("--layout", "1+2", "--link", "100mbit", "--engine", engine)
    # env, since a rank finds the tests' own model there.
    command = ("env", f"PYTHONPATH={PLUGINS}", "python", "train.py", CONFIG, f"output.dir={folder}")
    ended = cluster("run", *shape, "--", *command, "collective.name=ring")
    assert ended.code == 0, ended.said
    assert (record(folder)["status"], record(folder)["world_size"]) == ("finished", 3)
    rows = table(ended.err)
    # Rank 0 sends to rank 1 and rank 2 to rank 0: a third of what all sent crosses each link, in small packets here.
    sent, counted = count(rows["h0"][2]), count(rows["h0"][4])
    assert 0 < counted < sent, ended.said
