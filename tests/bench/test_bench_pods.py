"""Trainings in pods: what their records have, and that all dense ways end alike."""

import math
from pathlib import Path

import pytest

from tests.bench.pods_ranks import RUNS
from tests.distributed.forked import fork
from wirebench.bench.pods import main, refuse
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.record import schema
from wirebench.record.rules import broken


def test_every_way_between_pods_leaves_a_record(tmp_path: Path) -> None:
    ended = fork("torch", 4, [tmp_path], tmp_path / "logs", script="tests/bench/pods_ranks.py")
    assert ended.code == 0, ended.said
    assert [line for line in ended.out.splitlines() if line.startswith("over")] == [f"over: {name}" for name in RUNS]
    records = {name: schema.read(tmp_path / name) for name in RUNS}
    for name, record in records.items():
        assert record["world_size"] == 4 and record["shards"] == 2 and record["levels"] is None, name
        assert record["images_per_second"]["steps"] == 5 and record["steps_done"] == 7
        assert not {each.rule for each in broken(record)} - {"commit", "load"}, (name, broken(record))
    assert records.pop("diverged")["status"] == "diverged"
    losses = {name: record["final"]["loss"] for name, record in records.items()}
    for name in ("none", "single"):
        assert math.isclose(losses[name], losses["native"], rel_tol=1e-5), losses
    assert len({round(loss, 5) for loss in losses.values()}) == 4 and all(4 < loss < 5.7 for loss in losses.values())
    sizes = {name: record["bytes_per_step"] for name, record in records.items()}
    assert sizes["native"]["payload"] is None and sizes["none"]["payload"] == sizes["none"]["dense"]
    assert sizes["topk"]["payload"] < 0.12 * sizes["none"]["dense"] and sizes["local"]["payload"] > 0
    assert (records["none"]["messages"], records["single"]["messages"]) == (2, 1)
    # Half of the model, and a row of padding at most for each parameter.
    assert 2 * records["none"]["parameters"] <= sizes["none"]["dense"] < 2.2 * records["none"]["parameters"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.accumulation=2"], "train.accumulation: nothing of wirebench bench pods reads it"),
        (["output.health_every=5"], "output.health_every: nothing"),
        (["network.interface=eth1"], "network.interface: nothing"),
        (["engine.name=horovod"], "engine.name: FSDP2 is torch.distributed's"),
        (["optimizer.name=muon"], "muon orthogonalises whole matrices"),
        (["compressor.name=topk", "compressor.warmup=[0.5]"], "compressor.warmup: a run in pods has one density"),
        (["compressor.name=demo", "optimizer.name=sgd", "optimizer.momentum=0", "optimizer.beta2=0.999",
          "scheduler.name=single"], "optimizer.clip: no rank has a whole gradient"),
    ],
)  # fmt: skip
def test_what_pods_do_not_go_with_is_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        refuse(resolve(loader.load("tables/pods_gpt", words)))


def test_a_process_alone_is_told_how_to_start_ranks() -> None:
    with pytest.raises(UserError, match="needs ranks: torchrun"):
        main(["tables/pods_gpt"])
