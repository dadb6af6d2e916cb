"""Profiler files with NCCL's kernels, made up in the forms of two versions of PyTorch: results are known exactly."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.verbs import run
from tests.diagnose.made_up import Plan, diagnosed, write
from wirebench.diagnose import kineto
from wirebench.traces import profiler_file

FORMS = ("2.4", "2.15")


def two(folder: Path, mine: Plan, /, **other: Any) -> list[Path]:
    plans = mine, mine._replace(rank=1, **other)
    return [write(folder / f"{plan.rank}.json{'.gz' * plan.rank}", plan) for plan in plans]


@pytest.mark.parametrize("form", FORMS)
def test_a_healthy_job_has_no_finding(form: str, tmp_path: Path) -> None:
    told = diagnosed(*two(tmp_path, Plan(form=form), ahead=4321.0), "--link", "100gbit")
    assert told["findings"] == []
    expected = {"forward": 3e-3, "backward": 5e-3, "update": 1.5e-3, "exchange, not hidden": 0, "data": 5e-5}
    assert {name: told["parts"][name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert told["step_seconds"] == pytest.approx(0.01)
    [clock] = told["job"]["clocks"]
    assert clock["offset"] == pytest.approx(4321e-6) and clock["spread"] == pytest.approx(0, abs=1e-9)
    [sizes] = told["job"]["sizes"]
    # Of two ranks a ring sends all bytes once.
    assert (sizes["kind"], sizes["number"], sizes["num_bytes"]) == ("all_reduce", 1, 4e6)
    assert sizes["bus"] == pytest.approx(4e6 / 2e-3) and sizes["exposed"] == 0
    assert told["job"]["buckets"] == [4_000_000] and told["job"]["framework"] == "ddp"


@pytest.mark.parametrize("form", FORMS)
def test_a_rank_that_comes_late(form: str, tmp_path: Path) -> None:
    """Rank 1 begins each step 3 ms late, on a clock of its own; rank 0 waits for it in NCCL's kernel."""
    plan = Plan(form=form, begin=8000, length=14_700, others_late=3000)
    told = diagnosed(*two(tmp_path, plan, late=3000.0, others_late=0.0, ahead=-1e5))
    assert told["findings"][0]["name"] == "late rank", told["findings"]
    assert told["findings"][0]["gain"] == pytest.approx(2.8e-3, rel=0.01)  # 0.2 ms hide behind the backward pass
    first, second = told["job"]["arrivals"]
    assert (first["held"], second["waited"]) == (0, 0) and (first["last"], second["last"]) == (0, 1)
    assert second["held"] == first["waited"] == pytest.approx(2.8e-3, rel=0.01)


@pytest.mark.parametrize("form", FORMS)
def test_a_gpu_that_waits_for_its_host(form: str, tmp_path: Path) -> None:
    told = diagnosed(*two(tmp_path, Plan(form=form, host=6000, begin=9000, length=13_000)))
    assert told["findings"][0]["name"] == "launch gaps", told["findings"]
    assert told["findings"][0]["gain"] == pytest.approx(
        3e-3, rel=0.01
    )  # 2.9 before the backward pass, 0.1 before the forward pass


def test_an_exposed_all_reduce_fills_the_link(tmp_path: Path) -> None:
    """40 MB in 20 ms of which 3 hide behind the backward pass: rows by size, rate beside the link's, what saves."""
    plan = Plan(comm=20_000, length=27_600, elements=10_000_000)
    paths = two(tmp_path, plan)
    told = diagnosed(*paths, "--link", "20gbit")
    assert told["findings"][0]["name"] == "full link", told["findings"]
    assert told["parts"]["exchange, not hidden"] == pytest.approx((26_000 - 8200) * 1e-6)
    [sizes] = told["job"]["sizes"]
    assert sizes["bus"] == pytest.approx(40e6 / 20e-3) and (sizes["least"], sizes["most"]) == (16e6, 256e6)
    even = told["job"]["break_evens"]
    assert "fp16" in even and all(rate > 0 for rate in even.values())
    said = run("diagnose", "--kineto", *paths, "--link", "20gbit").stdout
    assert "all_reduce, 16 MB to 256 MB" in said and "80%" in said and "Your link is full" in said
    assert 'compressors.build("fp16")' in said and "register_comm_hook" in said and "compressor.name" not in said


@pytest.mark.parametrize(
    ("name", "kind"), [("_allgather_base", "all_gather"), ("_reduce_scatter_base", "reduce_scatter")]
)
def test_the_collectives_of_fsdp_count_all_that_they_gather_or_take(name: str, kind: str, tmp_path: Path) -> None:
    plan = Plan(name=name, dtype="BFloat16", framework="FSDP::root_pre_forward", begin=8300, length=12_000)
    evidence = kineto.read(two(tmp_path, plan))
    [message] = evidence.messages
    assert message.kind == kind and message.wire_bytes == 1_000_000  # half of 2 MB
    assert evidence.job is not None and evidence.job.framework == "fsdp" and evidence.layers is None


def test_steps_that_one_rank_lacks_are_left_out(tmp_path: Path) -> None:
    evidence = kineto.read(two(tmp_path, Plan(steps=6), first=2, steps=6, ahead=77.0))
    assert evidence.job is not None
    [clock] = evidence.job.clocks
    assert clock.ends == 3 and clock.offset == pytest.approx(77e-6)  # steps 3 to 5: a file's first one warms up


def test_without_numbers_the_ends_of_the_collectives_place_the_steps(tmp_path: Path) -> None:
    """Steps of several lengths; rank 1's recording begins a step later."""
    paths = two(tmp_path, Plan(steps=8))
    for path, left_out in zip(paths, (0, 1), strict=True):
        kept, content = [], json.loads(profiler_file.read(path))
        for event in content["traceEvents"]:
            number = int((event["ts"] - 1e6) // 10_000)
            event["ts"] += 200.0 * number * number
            if number >= left_out and not event["name"].startswith("ProfilerStep"):
                kept.append(event)
        path.with_suffix("").with_suffix(".json").write_text(json.dumps({**content, "traceEvents": kept}))
    evidence = kineto.read([tmp_path / "0.json", tmp_path / "1.json"])
    assert evidence.job is not None
    [clock] = evidence.job.clocks
    assert clock.offset == pytest.approx(0, abs=1e-9) and clock.spread == pytest.approx(0, abs=1e-9)


def test_one_file_of_two_ranks_says_so(tmp_path: Path) -> None:
    said = run("diagnose", "--kineto", write(tmp_path / "a.json", Plan(rank=1))).stdout
    assert "1 of 2 ranks" in said and "One file says nothing of other ranks" in said


BAD = {
    "the same rank": ([Plan(), Plan()], "is of rank 0, as "),
    "steps of other numbers": ([Plan(), Plan(rank=1, first=50)], "has no step of a number that"),
    "no collective in common": ([Plan(), Plan(rank=1, elements=5)], "has no collective in common"),
    "a rank beyond the job": ([Plan(), Plan(rank=7)], "is of rank 7, and the job has 2 ranks"),
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_do_not_go_together(name: str, tmp_path: Path) -> None:
    plans, reason = BAD[name]
    paths = [write(tmp_path / f"{place}.json", plan) for place, plan in enumerate(plans)]
    done = run("diagnose", "--kineto", *paths)
    assert done.returncode == 2 and reason in done.stderr and done.stderr.count("\n") == 1, done.stderr
