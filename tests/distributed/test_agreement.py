"""All engines compute the same losses, whatever is composed; the engines' own synchronisers too."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.distributed.ends import losses
from tests.distributed.forked import fork
from tests.distributed.launch import CONFIG, Ended, here, launch

Job = Callable[..., Ended]

# 20 steps, dense, at a rate with which another order of additions stays another rounding.
BASE = ["compressor.name=none", "compressor.dense_below=0", "train.accumulation=1", "train.checkpoint_every_steps=0"]
LENGTH = ["train.max_steps=20"]
TOPK = ["compressor.name=topk", "compressor.density=0.05"]


def overrides(compressor: str, scheduler: str, collective: str) -> list[str]:
    chosen = [*BASE, *LENGTH, f"scheduler.name={scheduler}", f"collective.name={collective}"]
    chosen += TOPK if compressor == "topk" else []
    return chosen + (["scheduler.bucket_cap_mb=0.001"] if scheduler == "fused" else [])


def trained(
    engine: str, size: int, chosen: Sequence[str], folder: Path, script: str = "train.py", job: Job = fork
) -> list[float]:
    arguments = [dense_config(folder.parent), *chosen, f"output.dir={folder}"]
    if engine == "local":
        assert here(size, arguments) == 0
    else:
        ended = job(engine, size, arguments, folder.parent / "logs", script=script)
        assert ended.code == 0, ended.said
    return losses(folder)


def dense_config(folder: Path) -> Path:
    """run.toml without the compressor's option, which other compressors do not have."""
    path = folder / "dense.toml"
    path.write_text(CONFIG.read_text().replace("density = 0.05\n", ""))
    return path


def compare(engine: str, size: int, chosen: Sequence[str], folder: Path, job: Job = fork) -> None:
    ours = trained(engine, size, chosen, folder / engine, job=job)
    local = trained("local", size, chosen, folder / "local")
    assert len(local) == 20
    assert local[-1] < local[0] / 2
    assert ours == pytest.approx(local, rel=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("engine", "size", "compressor", "scheduler", "collective"),
    [
        ("torch", 2, "none", "wfbp", "native"),
        ("horovod", 2, "none", "sync_easgd", "ring"),
        ("torch", 3, "none", "dear", "ring"),
        ("torch", 2, "none", "easgd", "ring"),
        ("horovod", 2, "topk", "dear", "tree"),
        ("horovod", 4, "none", "fused", "native"),
        pytest.param("torch", 4, "topk", "fused", "ring", marks=pytest.mark.weekly),
        pytest.param("torch", 4, "topk", "sync_easgd", "native", marks=pytest.mark.weekly),
        ("torch", 2, "none", "optimal", "native"),
    ],
)
def test_engines_agree(
    engine: str, size: int, compressor: str, scheduler: str, collective: str, tmp_path: Path
) -> None:
    compare(engine, size, overrides(compressor, scheduler, collective), tmp_path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("engine", "size", "scheduler", "collective", "wire"),
    [
        ("torch", 3, "dear", "one_hop", "int8"),
        ("horovod", 2, "wfbp", "ring", "mxfp8"),
        ("torch", 4, "fused", "halving_doubling", "bf16"),
    ],
)
def test_engines_agree_in_a_wire_format(
    engine: str, size: int, scheduler: str, collective: str, wire: str, tmp_path: Path
) -> None:
    """Also in two halves."""
    chosen = overrides("none", scheduler, collective)
    compare(engine, size, [*chosen, f"collective.wire={wire}"], tmp_path)
    requests = json.loads((tmp_path / engine / "record.json").read_text())["requests"]
    assert {request["plan"] for request in requests} == {f"{collective} in {wire}"}


@pytest.mark.parametrize("engine", [pytest.param("torch", marks=pytest.mark.weekly), "horovod"])
def test_launched_ranks_agree(engine: str, tmp_path: Path) -> None:
    """By horovodrun, as a user starts them; torchrun launches a run in test_resume.py, too."""
    compare(engine, 2, overrides("topk", "dear", "tree"), tmp_path, launch)


@pytest.mark.parametrize("engine", ["torch", pytest.param("horovod", marks=pytest.mark.slow)])
def test_builtin_synchronisers_agree_with_ours(engine: str, tmp_path: Path) -> None:
    native = [*BASE, *LENGTH, "scheduler.name=builtin", "train.accumulation=2"]
    theirs = trained(engine, 2, native, tmp_path / engine)
    ours = trained("local", 2, [*BASE, *LENGTH, "train.accumulation=2"], tmp_path / "local")
    assert theirs == pytest.approx(ours, rel=1e-5)


def test_a_plain_loop_agrees_with_ours(tmp_path: Path) -> None:
    plain = trained("torch", 2, [*BASE, *LENGTH], tmp_path / "plain", script="tests/distributed/plain_ddp.py")
    ours = trained("local", 2, [*BASE, *LENGTH], tmp_path / "local")
    assert plain == pytest.approx(ours, rel=1e-5)
