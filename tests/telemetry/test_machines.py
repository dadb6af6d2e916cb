"""The machines of a run: each is described once, with what others did on it; what a rank knows of links and cores."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers import Gathering
from wirebench.telemetry import environment, machines, rank_facts
from wirebench.telemetry.machines import COUNTED, LoadMeter, hosts
from wirebench.telemetry.rank_facts import CoreWatch, link_mbit
from wirebench.utils import this_machine


def engine(*others: dict[str, Any], ranks: tuple[int, ...] = (0,)) -> Any:
    return SimpleNamespace(distributed=bool(others), ranks=ranks, communicators=[Gathering(*others)])


def test_a_machine_is_described_once_with_all_its_ranks() -> None:
    here = environment.host()
    other = json.loads(json.dumps(here)) | {"hostname": "there"}
    alike = {"identity": here, "ranks": [2], "more": {}}
    [first, second] = hosts(engine({"identity": other, "ranks": [1], "more": {}}, alike))
    assert first == {"ranks": [0, 2], **here}
    assert second == {"ranks": [1], **other}
    assert hosts(engine(ranks=(0, 1, 2))) == [{"ranks": [0, 1, 2], **here}]


def counters(*numbers: float | None) -> dict[str, Any]:
    return dict(zip((*COUNTED, "load"), numbers, strict=True))


def told(*numbers: float | None) -> dict[str, Any]:
    return dict(zip((*COUNTED, "load_begin", "load_end"), numbers, strict=True))


def measured(monkeypatch: pytest.MonkeyPatch, begin: Any, end: Any, job: Any) -> list[dict[str, Any]]:
    readings = iter((begin, end))
    monkeypatch.setattr(machines, "_read", lambda: next(readings))
    monkeypatch.setattr(this_machine, "all_cores", lambda: 4)
    return LoadMeter().loads(job)


def test_what_no_rank_did_is_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulated host has a name of its own, and the machine of the others."""
    mine = {"boot": this_machine.boot()}
    theirs = {"hostname": "h1", "cores": 4, **told(9.0, 0.0, None, 12.0, 7.0, 7.0)}
    away = {"hostname": "there", "cores": 2, **told(5.0, 6.0, None, 5.5, 0.25, 1.0)}
    job = engine(
        {"identity": mine, "ranks": [1], "more": theirs},
        {"identity": {"boot": "another"}, "ranks": [2], "more": away},
    )
    begin, end = counters(100.0, 50.0, 1.0, 3.0, 0.5), counters(110.0, 77.0, 3.0, 13.0, 3.5)
    [here, there] = measured(monkeypatch, begin, end, job)
    # 27 s of the processors' time, of which the two ranks used 10 and 12; 2 of 40 s were stolen.
    assert here == {
        "ranks": [0, 1], "hostname": this_machine.hostname(), "cores": 4, "seconds": 10.0,
        "load_average": [0.5, 3.5], "others_cores": pytest.approx(0.5), "steal": pytest.approx(0.05),
    }  # fmt: skip
    assert there["ranks"] == [2] and there["others_cores"] == pytest.approx(0.1) and there["steal"] is None


def test_it_is_never_less_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's two clocks differ by their ticks."""
    [here] = measured(monkeypatch, counters(0.0, 0.0, None, 0.0, 0.0), counters(1.0, 0.98, None, 1.0, 1.0), engine())
    assert here["others_cores"] == 0.0


def test_children_count_as_the_process_itself_while_they_run_and_afterwards() -> None:
    spin = "import time, sys\nwhile time.process_time() < 0.3: pass\nprint(flush=True); sys.stdin.read()"
    before = machines._own_seconds()
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert machines._own_seconds() - before > 0.2  # the kernel counts in hundredths
    assert machines._own_seconds() - before > 0.2  # the kernel counts in hundredths


def test_this_machines_figures_are_sound() -> None:
    [here] = LoadMeter().loads(engine())
    assert here["cores"] == this_machine.all_cores() and here["seconds"] >= 0
    assert all(0 <= load < 10_000 for load in here["load_average"])
    assert json.loads(json.dumps(here, allow_nan=False)) == here


@pytest.mark.real_machine
@pytest.mark.parametrize(
    ("told", "rates"),
    [
        ({"WIREBENCH_LINK_MBIT": "2.5", "GLOO_SOCKET_IFNAME": "eth0"}, {"eth0": 2.5}),
        ({"WIREBENCH_LINK_MBIT": "2.5", "GLOO_SOCKET_IFNAME": "eth0,eth1"}, {"eth0": 2.5}),
        ({"WIREBENCH_LINK_MBIT": "eth0=1000,eth1=100"}, {"eth0": 1000.0, "eth1": 100.0}),
        ({"WIREBENCH_LINK_MBIT": "2.5"}, {}),
        ({"WIREBENCH_LINK_MBIT": "fast", "GLOO_SOCKET_IFNAME": "eth0"}, {}),
        ({}, {"eth7": 40_000.0}),
    ],
)
def test_the_launcher_goes_before_the_system(told, rates, tmp_path: Path, monkeypatch):
    """What the system shows in an emulated host is another namespace's."""
    monkeypatch.setattr(this_machine, "INTERFACES", tmp_path)
    for name, text in (("eth7", "40000\n"), ("bridge", "-1\n"), ("odd", "?")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(text)
    assert link_mbit(["eth7", "bridge", "odd", "lo"], told) == rates


def test_waiting_for_a_core_is_a_share_of_the_time(monkeypatch):
    here = CoreWatch().share()
    assert here is None or 0 <= here <= 1
    seconds, clock = iter([1.0, 1.5, None]), iter([10.0, 12.0, 13.0])
    monkeypatch.setattr(rank_facts, "_waited_for_a_core", lambda: next(seconds))
    monkeypatch.setattr(rank_facts.time, "perf_counter", lambda: next(clock))
    watch = CoreWatch()
    assert watch.share() == pytest.approx(0.25)
    assert watch.share() is None
