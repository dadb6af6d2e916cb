"""What wirebench diagnose --kineto says of a job: changes that fit its framework, and the steps that count."""

import json
from pathlib import Path

import pytest

from tests.diagnose.made_up import Plan, write
from wirebench.diagnose import causes, kineto
from wirebench.diagnose.drawn import DrawnSteps
from wirebench.diagnose.evidence import Evidence
from wirebench.diagnose.job import DDP, FRAMEWORKS, Job
from wirebench.diagnose.link import FittedLink, TimedMessage


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_ddp_alone_takes_the_planner_s_merge(framework: str) -> None:
    job = Job(framework, 5, "rank0.json", True, merge=(1000, 2000), merge_gain=0.004)
    phases = {"compress": 0.0, "exchange_exposed": 0.01}
    messages = [TimedMessage("all_reduce", 0.0011, 4000.0, 1)] * 5
    evidence = Evidence({}, [{"phases": phases}], DrawnSteps(messages), FittedLink(1e-3, 1e9), job=job)
    found = causes.small_messages(evidence, None)
    assert found is not None
    [change] = found.changes
    assert ("bucket_cap_mb_list" in change.what) == (framework == DDP)
    assert framework == DDP or change.what == causes.LARGER[framework]


@pytest.mark.parametrize(("watched", "kept"), [(True, 1), (False, 2)])
def test_the_profiler_s_start_is_no_step_of_watch(watched: bool, kept: int, tmp_path: Path) -> None:
    """Of two steps, too: watch records one more than it was asked for."""
    paths = [write(tmp_path / f"{rank}.json", Plan(rank=rank, steps=2)) for rank in range(2)]
    for rank, path in enumerate(paths if watched else ()):
        path.write_text(json.dumps({**json.loads(path.read_text()), "wirebench": {"rank": rank, "world_size": 2}}))
    job = kineto.read(paths).job
    assert job is not None and job.steps == kept
