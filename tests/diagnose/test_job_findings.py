"""What wirebench diagnose --kineto says of a job: changes that fit its framework, and the steps that count."""

import json
from pathlib import Path

import pytest

from tests.diagnose.made_up import Plan, write
from wirebench.diagnose import causes, kineto
from wirebench.diagnose.drawn import DrawnSteps
from wirebench.diagnose.evidence import Evidence
from wirebench.diagnose.job import DDP, FRAMEWORKS, Arrival, RecordedJob, steadily
from wirebench.diagnose.link import FittedLink, TimedMessage


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_ddp_alone_takes_the_planner_s_merge(framework: str) -> None:
    job = RecordedJob(framework, 5, "rank0.json", True, merge=(1000, 2000), merge_gain=0.004)
    phases = {"compress": 0.0, "exchange_exposed": 0.01}
    messages = [TimedMessage("all_reduce", 0.0011, 4000.0, 1)] * 5
    evidence = Evidence({}, [{"phases": phases}], DrawnSteps(messages), FittedLink(1e-3, 1e9), job=job)
    found = causes.small_messages(evidence, None)
    assert found is not None
    [change] = found.changes
    assert ("bucket_cap_mb_list" in change.what) == (framework == DDP)
    assert framework == DDP or change.what == causes.LARGER[framework]


@pytest.mark.parametrize(
    ("late", "other", "named"),
    [
        ((0.03, 0.04, 0.03, 0.05, 0.04), (0.0,) * 5, True),
        ((0.03, 0.04, 0.00, 0.05, 0.04), (0.0, 0.0, 0.06, 0.0, 0.0), False),
        ((0.03, 0.04, 0.00, 0.05, 0.04, 0.03, 0.03, 0.04), (0.0, 0.0, 0.06, 0.0, 0.0, 0.0, 0.0, 0.0), True),
    ],
    ids=["always", "in turn with another one", "always but once of eight"],
)
def test_a_rank_that_is_late_now_and_then_is_no_straggler(
    late: tuple[float, ...], other: tuple[float, ...], named: bool
) -> None:
    """Ranks without a free core wait for each other in turn: most of five steps say nothing of one of them."""
    ranks = [{"rank": rank, "compute_seconds": 0.1, "phases": {"data": 0.0}} for rank in range(2)]
    arrivals = (Arrival(0, 0.4, 0.0, 0.0, other), Arrival(1, 0.6, 0.04, 0.0, late))
    job = RecordedJob(DDP, len(late), "rank0.json", True, arrivals=arrivals)
    found = causes.late_rank(Evidence({}, ranks, job=job), None)
    assert (found is not None) == named
    assert found is None or (found.gain == pytest.approx(0.035, abs=0.006) and "Rank 1 comes late" in found.sentence)


@pytest.mark.parametrize(("computed", "named"), [((0.1, 0.5, 0.1, 0.5, 0.5), False), ((0.4, 0.5, 0.4, 0.5, 0.5), True)])
def test_a_rank_that_computes_longer_in_some_steps_is_not_slow(computed: tuple[float, ...], named: bool) -> None:
    slow = {"compute_seconds": 0.5, "compute_steadily": steadily(computed)}
    ranks = [{"rank": 0, "host": "a", "compute_seconds": 0.12}, {"rank": 1, "host": "b", **slow}]
    evidence = Evidence({"world_size": 2}, ranks, job=RecordedJob(DDP, 5, "rank0.json", True))
    assert (causes.slow_rank(evidence, None) is not None) == named


@pytest.mark.parametrize(("watched", "kept"), [(True, 1), (False, 2)])
def test_the_profiler_s_start_is_no_step_of_watch(watched: bool, kept: int, tmp_path: Path) -> None:
    """Of two steps, too: watch records one more than it was asked for."""
    paths = [write(tmp_path / f"{rank}.json", Plan(rank=rank, steps=2)) for rank in range(2)]
    for rank, path in enumerate(paths if watched else ()):
        path.write_text(json.dumps({**json.loads(path.read_text()), "wirebench": {"rank": rank, "world_size": 2}}))
    job = kineto.read(paths).job
    assert job is not None and job.steps == kept
