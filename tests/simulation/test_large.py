"""100,000 workers: what their simulation costs; and 64, of whom the plans can still be written down."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import schedulers
from suite.planner.compositions import DENSE, collective_of
from tests.simulation import large
from wirebench.costmodel import plan_cost, request_cost

ROOT = Path(__file__).resolve().parents[2]
FIVE = ("fp16", "topk", "powersgd", "gtopk", "oktopk")
"""Of each kind of request: sums, gathers, sums of matrices, merges up a tree, parts for every rank."""
SECONDS, KILOBYTES = 30.0, 4 * 2**20


def test_100_000_workers_in_thirty_seconds_and_four_gigabytes():
    """Under every schedule, on machines in racks below a spine; the process starts anew, and its start counts."""
    command = [sys.executable, "-m", "tests.simulation.large", "100000", "32", DENSE, *FIVE]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    found = json.loads(printed)
    assert set(found) == {DENSE, *FIVE}
    alone = large.MODEL.forward_seconds + large.MODEL.backward_seconds
    for name, by_collective in found.items():
        tried = set().union(*by_collective.values())
        assert tried == set(schedulers.available()) - (set() if name == DENSE else {"native", "easgd"}), name
        assert all(0.999 * alone < each < 1e3 for steps in by_collective.values() for each in steps.values()), name
    assert used.ru_utime + used.ru_stime < SECONDS
    assert used.ru_maxrss < KILOBYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", [DENSE, *FIVE])
def test_64_workers_cost_what_their_plans_cost(name: str, monkeypatch: pytest.MonkeyPatch):
    """A quicker test holds rounds against plans request by request (tests/costmodel/test_round_cost.py)."""
    topology, collective = large.cluster(64, 4), collective_of(name)
    assert topology.degrees == (8, 4, 2)
    by_rounds = large.steps(name, collective, topology)
    monkeypatch.setattr(request_cost, "MOST_RANKS", topology.size)
    by_plans = large.steps(name, collective, topology)
    plan_cost._shapes.cache_clear()  # of plans of thousands of transfers, which no other test prices
    assert by_rounds.keys() == by_plans.keys()
    alike = {each for each, found in by_rounds.items() if found.groups == by_plans[each].groups}
    assert alike >= {"wfbp", "naive", "sync_easgd", "fused", "dear"}, "they cut by size alone"
    for each, found in by_rounds.items():
        assert found.step.seconds == pytest.approx(by_plans[each].step.seconds, rel=0.02), each
        if each in alike:
            assert found.communicate == pytest.approx(by_plans[each].communicate, rel=0.02), each
