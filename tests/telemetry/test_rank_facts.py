"""What a rank knows of its links' rates and of its core."""

from pathlib import Path

import pytest

from wirebench.telemetry import rank_facts
from wirebench.telemetry.rank_facts import CoreWatch, link_mbit
from wirebench.utils import this_machine


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
