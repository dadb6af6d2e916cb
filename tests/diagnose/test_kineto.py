"""wirebench diagnose --kineto: jobs that PyTorch's profiler has really recorded, each with one fault, or none."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.diagnose.made_up import diagnosed
from tests.distributed.forked import fork
from tests.distributed.launch import PLUGINS, ROOT, Job

JOB = "tests/diagnose/watched_job.py"


def recorded(kind: str, fault: str, folder: Path) -> list[Path]:
    """The files of two ranks."""
    engine = "horovod" if kind == "horovod" else "torch"
    ended = fork(engine, 2, [kind, fault, folder / "watched"], folder / "logs", {"GLOO_SOCKET_IFNAME": "lo"}, JOB)
    assert ended.code == 0, ended.said
    paths = sorted((folder / "watched").glob("rank*.json*"))
    if kind != "plain":
        assert f"wirebench diagnose --kineto {' '.join(map(str, paths))}" in ended.out, ended.said
    assert len(paths) == 2
    return paths


PLANTED = {
    "slow rank": ("ddp", "slow rank"), "data": ("ddp", "data"), "late rank": ("ddp", "late rank"),
    "small messages": ("ddp", "tiny"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.clock
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named_first(name: str, tmp_path: Path) -> None:
    told = diagnosed(*recorded(*PLANTED[name], tmp_path))
    assert told["findings"] and told["findings"][0]["name"] == name, told


@pytest.mark.slow
@pytest.mark.clock
def test_a_full_link_is_named_first(begin: Callable[..., Job], tmp_path: Path) -> None:
    """On a link of a known rate: compressing may not pay at the loopback's."""
    words = ("env", f"PYTHONPATH={PLUGINS}:{ROOT}", "python", JOB, "ddp", "huge", tmp_path / "watched")
    ended = begin("run", "--hosts", 2, "--link", "1gbit", "--", *words).wait()
    assert ended.code == 0, ended.said
    told = diagnosed(*sorted((tmp_path / "watched").glob("rank*.json*")))
    assert told["findings"] and told["findings"][0]["name"] == "full link", told


@pytest.mark.slow
@pytest.mark.clock
@pytest.mark.parametrize("kind", ["ddp", "plain", "fsdp", "horovod"])
def test_a_healthy_job_has_no_finding(kind: str, tmp_path: Path) -> None:
    """Recorded by watch, and by PyTorch's profiler alone; the phases add up to the step."""
    told = diagnosed(*recorded(kind, "none", tmp_path))
    assert told["findings"] == [], told
    assert told["job"]["framework"] == ("ddp" if kind == "plain" else kind) and told["job"]["steps"] >= 7
    assert sum(told["parts"].values()) == pytest.approx(told["step_seconds"], rel=0.2)


@pytest.mark.slow
@pytest.mark.clock
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("fsdp", "data"),
        *(pytest.param("horovod", each, marks=pytest.mark.weekly) for each in ("slow rank", "late rank")),
        pytest.param("fsdp", "slow rank", marks=pytest.mark.weekly),
    ],
)
def test_a_fault_under_other_frameworks(kind: str, fault: str, tmp_path: Path) -> None:
    told = diagnosed(*recorded(kind, fault, tmp_path))
    assert told["findings"] and told["findings"][0]["name"] == fault, told
