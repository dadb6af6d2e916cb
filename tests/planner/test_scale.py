"""What predictions cost: of 100,000 workers, and of README's example; and 64 workers beside their plans."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.planner import large
from wirebench import compressors, schedulers
from wirebench.costmodel import plan_cost, request_cost
from wirebench.errors import UserError
from wirebench.planner.compositions import DENSE, collective_of, needs_whole

ROOT = Path(__file__).resolve().parents[2]
FIVE = ("fp16", "topk", "powersgd", "gtopk", "oktopk")
OTHERS = ("fp16", "topk", "gtopk")
"""They ask for requests of the same kinds as dense gradients and the two others."""
"""Of each kind of request: sums, gathers, sums of matrices, merges up a tree, parts for every rank."""


class Cost(NamedTuple):
    """What a process printed, and the seconds of its processors' time."""

    printed: str
    seconds: float


def cost(*words: str) -> Cost:
    """Run `python WORDS...` anew, so that its start counts."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        printed = process.stdout.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return Cost(printed, used.ru_utime + used.ru_stime)


@pytest.mark.slow
@pytest.mark.clock
def test_100_000_workers_in_thirty_seconds_and_four_gigabytes():
    """Dense gradients and all compressors, under every schedule, on machines in racks below a spine."""
    names = sorted(set(compressors.available()) - {"int8"})
    printed, seconds = cost("-m", "tests.planner.large", "100000", "32", *names)
    steps_found, peak = printed.splitlines()
    found = json.loads(steps_found)
    assert list(found) == names and {DENSE, *FIVE} < set(names)
    alone = large.MODEL.forward_seconds + large.MODEL.backward_seconds
    for name, by_collective in found.items():
        fitting = {"single"} if needs_whole(name) else set(schedulers.available())
        tried = set().union(*by_collective.values())
        momentum = {"outer"} if compressors.build(name).owns_momentum else set()
        assert tried == fitting - (set() if name == DENSE else {"builtin", "easgd", *momentum}), name
        steps = [each for by_schedule in by_collective.values() for each in by_schedule.values()]
        assert all(0.999 * alone < each < math.inf for each in steps), name
    assert seconds < 30 and int(peak) / 2**20 < 4


def test_what_cannot_be_summed_of_so_many_is_refused():
    with pytest.raises(UserError, match="8 bits hold the sum of 127 ranks, not of 128"):
        large.steps("int8", "ring", large.cluster(128, 4))


VERB = """
import sys
from wirebench.cli.main import main

code = main(sys.argv[1:])
print("brought along:", *sorted({"altair", "torchvision"} & set(sys.modules)))
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.clock
def test_readmes_example_takes_less_than_three_imports_of_pytorch():
    """Of a core, however fast it is at the time; for that neither what draws nor the model itself is imported.

    Nor is any exchange played (test_known_sizes.py).
    """
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    example = next(line for line in lines if line.startswith("wirebench advise --model "))
    printed, seconds = cost("-c", VERB, *example.split()[1:])
    assert " images/s" in printed and printed.endswith("brought along:\n")
    importing = min(cost("-c", "import torch").seconds for _ in range(3))
    assert seconds < 3 * importing


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [DENSE, "powersgd", "oktopk", *(pytest.param(each, marks=pytest.mark.weekly) for each in OTHERS)]
)
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
    assert alike >= {"wfbp", "naive", "single", "fused", "dear"}, "they cut by size alone"
    for each, found in by_rounds.items():
        assert found.step.seconds == pytest.approx(by_plans[each].step.seconds, rel=0.02), each
        if each in alike:
            assert found.communicate == pytest.approx(by_plans[each].communicate, rel=0.02), each
