"""Each thing that differs between hosts is found, named with its host, and comes with its mend."""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.cli.verbs import Done, run
from tests.doctor.visiting import HERE, ROOT, SSH, doctor, facts
from tests.golden import check
from wirebench.cli.jobs import doctor as verb
from wirebench.comm.host_list import ListedHost
from wirebench.doctor import agent, answers, compare, hosts, links, tables, visit, wire
from wirebench.doctor.hosts import AskedHost, Unreachable
from wirebench.doctor.links import Seen
from wirebench.doctor.sums import RankTimes, SumTimes, joined
from wirebench.doctor.wire import LinkTimes
from wirebench.errors import UserError

ON_LO = {"GLOO_SOCKET_IFNAME": "lo"}
PARTS = ("wirebench", "compressors", "models", "schedulers", "configs")
"""What an agent imports, and the config."""


class ToldTimes(AskedHost):
    """A host whose agent gives facts and the time; what it would measure is told, however busy this machine is."""

    def ask(self, what: str, **more: Any) -> Any:
        if what == "measure":
            return LinkTimes(1e-4, 117e6, ((4096, 8.5e-5),), 1448, "127.0.0.1")._asdict()
        if what == "sum":
            return RankTimes(5e-5, 117e6, 1e-10, 0.04, 0.1)._asdict()
        return 40000 if what in ("listen", "free_port") else super().ask(what, **more)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Four hosts of which three differ, in one visit: each agent imports torch, which takes seconds."""
    clone = tmp_path_factory.mktemp("clone") / "wirebench"
    for name in PARTS:
        shutil.copytree(ROOT / name, clone / name, symlinks=True)
    shutil.copy(ROOT / ".gitignore", clone)
    (clone / "configs/smoke.toml").write_text("# another one\n")
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "--no-verify", "-m", "another"]):
        subprocess.run([*git, *words], check=True)
    differs = {
        "h2": {"folder": shlex.quote(str(clone)), "instead of": HERE},
        "h3": {"clock": 10, "torch": "2.9.0"},
        "h4": {"refuses": "h4: Permission denied (publickey)."},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(visit, "AskedHost", ToldTimes)
        patch.setattr(hosts, "PATIENCE", 280.0)  # a slow machine's agents take long to import torch
        patch.setenv("DIFFERS", json.dumps(differs))
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        options = ("--config", "configs/smoke.toml", "--interface", "lo", "--ssh", SSH, "--seconds", "0.2")
        return run("doctor", "h1:2,h2:2,h3:2,h4:2", *options)


def about(told: Done, host: str) -> list[str]:
    return [line for line in told.stdout.splitlines() if line.startswith(f"{host}: ")]


def test_another_commit_and_config_are_named(everything: Done) -> None:
    assert everything.returncode == 1
    lines = about(everything, "h2")
    [commit] = [line for line in lines if line.startswith("h2: commit: ")]
    assert ", h1 has " in commit and f"git -C {HERE} fetch && git -C {HERE} checkout" in commit
    assert any(line.startswith("h2: config: ") for line in lines)


def test_another_torch_and_a_clock_that_is_off_are_named(everything: Done) -> None:
    torch, clock = about(everything, "h3")
    assert torch.startswith("h3: torch: 2.9.0, h1 has ") and torch.endswith(f"run make setup in {HERE} there")
    ahead = re.fullmatch(r"h3: clock: (\d+\.\d) s ahead; run an NTP client there .*", clock)
    assert ahead and 5 < float(ahead[1]) < 15, clock  # a busy machine answers late


def test_a_host_that_gives_no_answer_says_why(everything: Done) -> None:
    [line] = about(everything, "h4")
    assert line.startswith("h4: gives no answer: h4: Permission denied (publickey).; try: ")


def test_hosts_that_are_alike_are_not_named(everything: Done) -> None:
    assert about(everything, "h1") == [] and about(everything, "all hosts") == []
    assert "\n4 hosts; links carry 936 Mbit/s to 936 Mbit/s, " in everything.stdout
    assert "all-reduce (gloo) has a bus bandwidth of " in everything.stdout and "things are wrong" in everything.stdout
    assert "Traceback" not in everything.stderr and "again" not in everything.stderr


@pytest.mark.slow
@pytest.mark.clock
def test_links_and_an_all_reduce_are_timed() -> None:
    """On the loopback interface, which carries what the cores do: its times may look wrong, nothing else does."""
    told = doctor("h1:2,h2:2,h3:2", "--interface", "lo", variables=ON_LO)
    assert [line for line in told.lines[:-1] if ": link: " not in line and not line.startswith("all hosts: ")] == []
    assert re.match(r"3 hosts; links carry .*; all-reduce \(gloo\) has a bus bandwidth of ", told.lines[-1]), told


@pytest.mark.slow
def test_one_host_alone_is_well() -> None:
    told = doctor("h1", "--interface", "lo", variables=ON_LO)
    if told.code:  # a work tree with changes is like itself, all the same
        pytest.fail("\n".join(told.lines))
    assert told.lines == ["1 host, so no link was measured; nothing is wrong"]


def test_a_host_that_has_gone_before_it_is_asked_is_left_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a question could not be sent is a finding. It does not end the doctor as `| head` would."""
    monkeypatch.setenv("DIFFERS", json.dumps({"h4": {"refuses": "h4: Permission denied"}}))
    host = AskedHost("h4", SSH)
    host._agent.wait(30)
    with pytest.raises(Unreachable, match="h4: Permission denied"):
        host.ask("facts")
    host.close()


def odd_host(monkeypatch: pytest.MonkeyPatch, differs: dict[str, Any]) -> AskedHost:
    monkeypatch.setenv("DIFFERS", json.dumps({"h4": differs}))
    return AskedHost("h4", SSH)


@pytest.mark.parametrize(
    "shell",
    [
        ("echo Welcome to h4", ""),
        ("printf 'no end of line'", "echo bye"),
        (r"printf '\\000\\377\\033[31m\\n{\"answer\": 7}\\n'", ""),
        ("head -c 3000000 /dev/zero; yes motd | head -n 20000", ""),
        ("echo banner >&2", "exit 255"),
        ("", "sleep 0.3; echo late"),
    ],
)
def test_what_a_login_shell_prints_is_no_answer(shell: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    host = odd_host(monkeypatch, {"shell": shell})
    before = time.time()
    assert before - 60 < host.ask("clock") < before + 60
    assert host.ask("resolve", host="127.0.0.1") == "127.0.0.1"
    with pytest.raises(OSError, match="no such request"):
        host.ask("nothing")
    host.close()


@pytest.mark.parametrize(
    ("differs", "why"),
    [
        ({"refuses": "Host key verification failed."}, "Host key verification failed."),
        ({"refuses": "me@h4: Permission denied (publickey,password)."}, "Permission denied (publickey,password)."),
        ({"refuses": "ssh: connect to host h4 port 22: Connection refused"}, "Connection refused"),
        ({"prints": "This account is currently not available.\n", "code": 1}, "This account is currently not"),
        ({"prints": "\xff\xfe\x00 gr\xfc\xdfe \x1b[2J\n"}, "gr"),
        ({"prints": ""}, "its agent ended with code 0 and without an answer"),
        ({"command": {sys.executable: "/nowhere/python"}}, "/nowhere/python"),
        ({"command": {"(3, 11)": "(9, 1)"}}, "Python 3."),
        ({"command": {"wirebench.doctor.agent": "wirebench.none"}}, "No module named wirebench.none"),
        ({"command": {"exec ": "sleep 600; exec "}}, "no answer in 0.2 s"),
        ({"shell": ("echo Welcome; touch WELCOMED; exec sleep 600", "")}, "no answer in 0.2 s; it printed 'Welcome'"),
    ],
)
def test_an_odd_host_is_one_line(
    differs: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    welcomed = tmp_path / "welcomed"
    host = odd_host(monkeypatch, json.loads(json.dumps(differs).replace("WELCOMED", str(welcomed))))
    if "no answer" in why:
        monkeypatch.setattr(hosts, "PATIENCE", 0.2)
    while "Welcome" in why and not welcomed.exists():
        time.sleep(0.01)
    with pytest.raises(Unreachable) as said:
        host.ask("clock")
    assert why in str(said.value) and str(said.value).isprintable()
    host.close()


FAKE = """
import sys
sys.stdin.readline()
print({said!r}.replace("MARK", sys.argv[-1]), end="", flush=True)
"""


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ('MARK {"number": 1, "answ', "its answer is cut off"),
        ('MARK {"number": 1, "answer": "noon"}\n', "another version of Wirebench answers there"),
        ('MARK {"number": 1, "answer": 7}\n' * 2, 7),
        ("MARK [1]\n", "another version of Wirebench answers there"),
        (f"MARK {'[' * 100_000}\n", "its answer is cut off"),
        (f'MARK {{"number": 1, "answer": {"9" * 400}}}\n', r"another version of Wirebench answers there \(clock\)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_answer_that_is_cut_off_or_another_kind_or_comes_twice(
    said: str, answer: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fake_agent.py").write_text(FAKE.format(said=said))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    host = odd_host(monkeypatch, {"command": {"wirebench.doctor.agent": "fake_agent"}})
    if isinstance(answer, str):
        with pytest.raises(Unreachable, match=answer):
            host.ask("clock")
    else:
        assert host.ask("clock") == answer
        with pytest.raises(Unreachable):  # the other answer is to no question
            host.ask("clock")
    host.close()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("a\nb\x1b[2J red\n\n" * 50, "b [2J red"),
        ("\ud800 \n", "?"),
        ("", "an error without words"),
        (["x"], "['x']"),
    ],
)
def test_an_agents_error_is_one_line(error: object, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = f"MARK {json.dumps({'number': 1, 'error': error})}\n"
    (tmp_path / "fake_agent.py").write_text(FAKE.format(said=said))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    host = odd_host(monkeypatch, {"command": {"wirebench.doctor.agent": "fake_agent"}})
    with pytest.raises(OSError) as told:
        host.ask("facts")
    assert str(told.value) == line
    host.close()


def test_an_agents_own_answers_are_not_odd() -> None:
    found = agent.answer({"ask": "facts", "config": "configs/smoke.toml", "interface": "lo", "variables": {}})
    assert answers.FACTS.keys() <= found.keys()
    assert answers.odd("clock", agent.answer({"ask": "clock"})) is None
    port = agent.answer({"ask": "listen", "port": 0})
    measured = agent.answer({"ask": "measure", "address": "127.0.0.1", "port": port, "seconds": 0.1})
    # As it comes: JSON has no tuples.
    assert answers.odd("listen", port) is None and answers.odd("measure", json.loads(json.dumps(measured))) is None
    assert answers.odd("facts", json.loads(json.dumps(found))) is None


MEASURED = {
    "round_trip": 1.0, "bytes_per_second": 1, "by_size": [[4096, 0.1]], "segment": 1448, "source": "10.0.0.1",
    "waited": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("what", "answer", "where"),
    [
        ("facts", [], "facts"),
        ("facts", {"free_gb": float("inf")}, "facts: free_gb"),
        ("facts", {"links": 5}, "facts: links"),
        ("facts", {"links": {"eth0": {"addresses": ["10.0.0.1"]}}}, "facts: links"),
        ("facts", {"variables": {"NCCL_ALGO": "\x1b[2J"}}, "facts: variables"),
        ("facts", {"fabric": [{"device": "mlx5_0"}]}, "facts: fabric"),
        ("facts", {"cores": 0}, "facts: cores"),
        ("facts", {"gpus": ["a", 1]}, "facts: gpus"),
        ("facts", {"torch": "2\x1b[2J"}, "facts: torch"),
        ("facts", {"dirty": None}, "facts: dirty"),
        ("resolve", "\x1b[2J", "resolve"),
        ("listen", 65536, "listen"),
        ("listen", True, "listen"),
        ("measure", {"rate": 3}, "measure: round_trip"),
        ("measure", {"round_trip": 1.0, "bytes_per_second": float("nan")}, "measure: bytes_per_second"),
        ("measure", {**MEASURED, "more": ""}, None),
        ("measure", {**MEASURED, "by_size": [[4096, 0.0]]}, "measure: by_size"),
        ("sum", {"start_up": 0.0}, "sum: start_up"),
    ],
)
def test_an_answer_of_another_shape_is_named_by_its_field(what: str, answer: Any, where: str | None) -> None:
    assert answers.odd(what, answer) == where


def test_hosts_come_from_a_list_or_from_slurms_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[ListedHost]] = []

    def look(listed: list[ListedHost], *_: object) -> visit.Visit:
        asked.append(listed)
        return visit.Visit()

    monkeypatch.setattr(verb, "examine", look)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    (tmp_path / "hosts").write_text("h1 slots=4\nh2 slots=4\n")
    listed = ["--hostfile", str(tmp_path / "hosts"), "--include", "h2:0,1"]
    assert verb.main([]) == verb.main(listed) == verb.main(["h1:8", "--exclude", "h1:7"]) == 0
    assert asked == [[ListedHost("n1"), ListedHost("n2")], [ListedHost("h2", 2)], [ListedHost("h1", 7)]]


@pytest.mark.parametrize(
    ("tasks", "slots"),
    [("2(x3),1", [2, 2, 2, 1]), ("8(x999999999999)", [8] * 4), ("4", [4, None, None, None]), ("", [None] * 4)],
)
def test_a_slurm_job_has_its_tasks(tasks: str, slots: list[int | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it asked for tasks: else the list has a node's cores, which are no ranks."""
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-4]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", tasks)
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    assert {each.slots for each in verb._of_job()} == {None}
    monkeypatch.setenv("SLURM_NTASKS", "7")
    assert [each.slots for each in verb._of_job()] == slots
    for wrong in ("2(x", "0", "2,", "2(x3)1", "a"):
        monkeypatch.setenv("SLURM_TASKS_PER_NODE", wrong)
        with pytest.raises(UserError, match=r"^SLURM_TASKS_PER_NODE: must be counts from 1 to "):
            verb._of_job()


# --- What is compared, and how


DIFFERING: tuple[dict[str, Any], ...] = (
    {"horovod": None}, {"gpus": ["H100"]}, {"dirty": True}, {"commit": "2"}, {"torch": "2"},
)  # fmt: skip
LACKING: tuple[dict[str, Any], ...] = (
    {}, {"config": None}, {"address": None}, {"free_gb": 0.5}, {"shared_memory_gb": 0.064},
)  # fmt: skip
GIGABIT = {
    ("h1", "h2"): LinkTimes(1e-4, 117e6),
    ("h2", "h3"): LinkTimes(1e-4, 11.8e6),
    ("h3", "h1"): LinkTimes(1e-4, 115e6),
}


def test_what_is_said_of_hosts(request: pytest.FixtureRequest) -> None:
    """A host is held against most, the second of two; links against the fastest, and what they should carry."""
    two = facts(gpus=["H100", "H100"])
    found = [compare.differing({"h1": two, "h2": two, "h3": two | each}, "/w") for each in DIFFERING]
    found.append(compare.differing({"h1": facts(torch="2"), "h2": facts()}, "/w"))
    found += [compare.lacking({"h1": facts(**each)}, "a.toml", "eth0") for each in LACKING]
    found += [compare.lacking({"h1": {}, "h2": {}}, None, None)]
    found += [compare.clocks(ahead) for ahead in (
        {"h1": 9.9, "h2": 0.1, "h3": 0.0}, {"h1": 0.0, "h2": 0.2, "h3": -30.0}, {"h1": 0.4, "h2": -0.4}, {},
    )]  # fmt: skip
    nothing = dict.fromkeys([("h1", "h2"), ("h2", "h1")], LinkTimes(0.0, 0.0))
    pair = {("h1", "h2"): LinkTimes(1e-4, 11.8e6), ("h2", "h1"): LinkTimes(1e-4, 11.7e6)}
    well = {name: facts(place) for place, name in enumerate(("h1", "h2", "h3"), 1)}
    found += [list(links.slow(Seen(well, GIGABIT, nominal=rate))) for rate in (None, 10e9, 1e9)]
    found += [list(links.slow(Seen(well, ways))) for ways in (nothing, pair)] + [list(links.slow(Seen({}, {})))]
    found.append(compare.unreachable({("h1", "h2"): "timed out"}, 29500))
    lines = [line for some in found for line in (*(each.line() for each in some), "." if some else "nothing")]
    lines += [tables.summary(Seen(well, pair, nominal=rate), 2) for rate in (None, 1e9)]
    lines += [tables.summary(Seen(well, pair), 3), *(tables.summary(Seen(well, {}), hosts) for hosts in (1, 2))]
    check("doctor/findings", "\n".join(lines) + "\n", request.config.getoption("update"))


def test_a_connection_is_timed() -> None:
    timed = wire.measure("127.0.0.1", wire.listen(0), 0.2)
    assert timed.bytes_per_second > 0 and timed.round_trip > 0
    with pytest.raises(OSError, match="refused"):
        wire.measure("127.0.0.1", 1, 0.2)


def test_a_stream_that_comes_at_once_has_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener had no core while all of it came: a rate of 0 would mean that long messages do not come through."""
    monkeypatch.setattr(wire, "_CHUNK", b"a few bytes")
    assert wire.measure("127.0.0.1", wire.listen(0), 0.0).bytes_per_second > 0


def test_a_pause_at_its_end_leaves_a_stream_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three chunks of 1 kB within 2 ms, and the last one after a second."""
    got, at = iter([1000, 1000, 1000, 1000, 0]), iter([0.0, 0.001, 0.002, 1.0])
    monkeypatch.setattr(wire, "time", argparse.Namespace(perf_counter=lambda: next(at)))
    connection: Any = argparse.Namespace(recv_into=lambda room: next(got))
    assert wire._rate(connection) == pytest.approx(3000)


@pytest.mark.parametrize(("ahead", "found"), [(10.0, 10.0), (-3.0, -3.0), (0.4, 0.0)])
def test_a_clock_is_off_by_more_than_the_answer_took(
    ahead: float, found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer takes 4 s, on a machine without a free core, and is of the middle of that."""
    now = iter(range(0, 100, 2))
    monkeypatch.setattr(hosts, "time", argparse.Namespace(time=lambda: float(next(now))))
    host = AskedHost.__new__(AskedHost)
    monkeypatch.setattr(host, "ask", lambda what: next(now) + ahead)
    assert host.clock_ahead() == pytest.approx(found)


class Ended:
    """A host whose agent ends, or cannot have a port; it stands in for one that is asked by ssh."""

    def __init__(self, name: str, ssh: str) -> None:
        self.name = name

    def ask(self, what: str, **more: Any) -> Any:
        if what == "facts":
            return facts(int(self.name[1:]))
        if what == "listen" and self.name == "h2" and more["port"]:
            raise OSError("Address already in use")
        return self.measured()._asdict() if what == "measure" else 40000

    def measured(self) -> LinkTimes:
        return LinkTimes(1e-4, 1e8)

    def clock_ahead(self) -> float:
        if self.name == "h3":
            raise Unreachable("Connection to h3 closed")
        return 0.0

    def close(self) -> None:
        return None


def test_a_host_that_ends_and_a_port_that_is_taken_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit, "AskedHost", Ended)
    options = argparse.Namespace(ssh="ssh", config=None, interface="eth0", port=29500, seconds=0.1)
    seen = visit.examine([ListedHost("h1"), ListedHost("h2"), ListedHost("h3")], options)
    assert [each.line() for each in seen.findings] == [
        "h3: ended: Connection to h3 closed; look at it",
        "h2: port 29500 cannot be listened on: Address already in use; see what has it there (ss -ltnp), or name "
        "another port",
    ]
    assert set(seen.links.ways) == {("h1", "h2"), ("h2", "h1")}


class Disturbed(Ended):
    """h1 sends at a tenth of the rate at first, and so does h2 always, which had no core."""

    turns: ClassVar[list[str]] = []

    def measured(self) -> LinkTimes:
        self.turns.append(self.name)
        slow = self.name == "h2" or self.turns.count("h1") < 2
        return LinkTimes(1e-4, 1e7 if slow else 1e8, waited=0.4 if self.name == "h2" else 0.0)

    def clock_ahead(self) -> float:
        return 0.0


def test_what_looks_slow_is_timed_again_before_a_host_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit, "AskedHost", Disturbed)
    monkeypatch.setattr(Disturbed, "turns", [])
    monkeypatch.setattr(visit, "_sum", lambda *_: None)
    options = argparse.Namespace(ssh="ssh", config=None, interface="eth0", port=None, seconds=0.1)
    seen = visit.examine([ListedHost("h1"), ListedHost("h2")], options, nominal=8e8)
    assert [each.line() for each in seen.findings] == [
        "h2: link: 80 Mbit/s to h1, 800mbit is asked for, disturbed: h2 had no core 40% of the time; "
        "ask again when nothing else runs there"
    ]
    assert Disturbed.turns == ["h1", "h2", "h1", "h2", "h2"]


@pytest.mark.parametrize("slow", [1, 3])
def test_an_all_reduce_that_looks_slow_is_repeated(slow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first turns take ten times as long as the messages allow."""
    took = iter([0.1] * slow + [0.01] * 3)
    ways = dict.fromkeys([("h1", "h2"), ("h2", "h1")], LinkTimes(1e-4, 1e8))
    seen = visit.Visit(links=Seen({"h1": facts(1), "h2": facts(2)}, ways))

    def once(hosts: Any, seen: Any, backend: str, num_bytes: int) -> SumTimes:
        return joined(backend, 10**6, dict.fromkeys(("h1", "h2"), RankTimes(5e-5, 1e8, 1e-10, next(took), 0.1)))

    monkeypatch.setattr(visit, "_sum_once", once)
    visit._sum([Ended("h1", ""), Ended("h2", "")], argparse.Namespace(seconds=1.0), seen, "gloo")  # type: ignore[list-item]
    assert len(seen.findings) == (slow == 3) and seen.all_reduce is not None
    assert seen.all_reduce.seconds == (0.1 if slow == 3 else 0.01)


# --- Emulated hosts: a slow link and a closed port are real ones


@pytest.mark.slow
def test_a_slow_link_and_a_closed_port_are_found(cluster: Callable[[str], Any]) -> None:
    hosts = cluster("1gbit,1gbit,1gbit,100mbit")
    # h3 does not reach h0, and the port 29500 of h2 is taken.
    inside = ["nsenter", *hosts["h2"]["inside"], "--"]
    route = ["nsenter", *hosts["h3"]["inside"], "--", "ip", "route", "add", "unreachable", "10.77.1.1/32"]
    subprocess.run(route, check=True)
    taken = "import socket, time; server = socket.create_server(('', 29500)); print(flush=True); time.sleep(60)"
    with subprocess.Popen([*inside, sys.executable, "-c", taken], stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline()
        words = ("--interface", "eth0", "--port", "29500", "--seconds", "1")
        told = doctor(*hosts, *words, variables={"GLOO_SOCKET_IFNAME": "eth0"}, **hosts)
        holder.kill()
    assert len(told.lines) == 5, told
    closed, apart, back, slow = told.lines[:-1]
    assert closed.startswith("h2: port 29500 cannot be listened on: Address already in use; see what has it"), told
    assert apart.startswith("h0: a free port is not reached from h3: No route to host; open the ports"), told
    assert back.startswith("h3: a free port is not reached from h0: timed out; open the ports"), told
    assert slow.startswith("h3: link: it sends and receives 9"), told
    assert "Mbit/s, the fastest link carries 9" in slow and "(all-reduce: 10." in slow, told
    assert told.code == 1
