"""An elastic job loses a host of four and gains another: it goes on, and the record says what that has cost."""

import os
import uuid
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from papers.failures.hosts import ENGINES, lose_and_gain
from tests.distributed.ends import checkpoints, record
from tests.distributed.launch import BIN, CONFIG, LIMIT_SECONDS, PLUGINS
from tests.distributed.mine.net import HURRY, PAUSE
from wirebench.chaos import job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give hosts names"),
    pytest.mark.timeout(900),  # each wait has a limit of its own
]

STEPS, COMMIT_STEPS = 120, 3
WORDS = [
    str(CONFIG), "data.train_size=960", "compressor.name=mine.keepsake", "compressor.dense_below=0",
    f"train.max_steps={STEPS}", f"train.checkpoint_every_steps={STEPS}",
    "train.elastic=true", f"train.commit_every_steps={COMMIT_STEPS}",
]  # fmt: skip


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Steps are slow until this file is there."""
    hurry = tmp_path / "hurry"
    monkeypatch.setenv(PAUSE, "400")
    monkeypatch.setenv(HURRY, str(hurry))
    monkeypatch.setenv("PYTHONPATH", f"{PLUGINS}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # see docs/elastic.md
    return hurry


@pytest.mark.parametrize(
    ("launcher", "engine", "mirror"),
    [
        pytest.param([str(BIN / "torchrun")], "torch", 1, id="torchrun-mirror", marks=pytest.mark.weekly),
        pytest.param(job.TORCHRUN, "torch", 0, id="forking"),
        pytest.param([], "horovod", 1, id="horovodrun-mirror", marks=pytest.mark.weekly),
    ],
)
def test_from_four_hosts_to_three_and_back(
    launcher: list[str], engine: str, mirror: int, tmp_path: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps are slow until all has happened, so that the run is not over before."""
    monkeypatch.setattr(job, "TORCHRUN", launcher)
    run = tmp_path / f"run-{uuid.uuid4().hex}"
    with ENGINES[engine](tmp_path, [*WORDS, f"train.mirror={mirror}", f"output.dir={run}"]) as hosts:
        lose_and_gain(hosts, 2 * COMMIT_STEPS, COMMIT_STEPS, LIMIT_SECONDS)
        slow.touch()
        hosts.finish(LIMIT_SECONDS)
        left = [hosts.commits(host, size) for host in ("h0", "hv0", "hv1") for size in (3, 4)]
    told = record(run)
    assert (told["status"], told["engine"], told["world_size"]) == ("finished", engine, 4)
    shrunk, grown = told["worlds"]
    assert [(each["workers_before"], each["workers"]) for each in (shrunk, grown)] == [(4, 3), (3, 4)]
    # A commit that was being written when the rank was lost is none.
    assert 0 <= shrunk["steps_lost"] < 2 * COMMIT_STEPS and shrunk["seconds"] > 0
    # Of 1 + 2 + 3 + 4 the lost rank, whichever that was, had its number and one.
    assert len(shrunk["lost_ranks"]) == 1 - mirror and grown["lost_ranks"] == []
    lost = sum(rank + 1 for rank in shrunk["lost_ranks"]) / 10
    assert (shrunk["lost_residual"], grown["lost_residual"]) == (pytest.approx(lost, rel=1e-6), 0)
    kept = mean_residual(checkpoints(run)[-1])
    torch.testing.assert_close(kept, torch.full_like(kept, 2.5 * (1 - shrunk["lost_residual"])), rtol=1e-6, atol=0)
    assert [entry["epoch"] for entry in told["history"]] == list(range(len(told["history"])))
    assert not any(left)


def test_local_steps_go_on_with_three_hosts_and_with_four_again(tmp_path: Path, slow: Path) -> None:
    """A mean is under way two steps of three; ranks have met only where one has been applied."""
    run = tmp_path / "run"
    local = ["scheduler.name=outer", "scheduler.every=3", "scheduler.delay=2", "scheduler.momentum=0"]
    words = [*WORDS[:2], "compressor.name=chunk_topk", "compressor.dense_below=0", *local, *WORDS[4:]]
    words += ["scheduler.nesterov=false", "train.mirror=1", f"output.dir={run}"]
    with ENGINES["torch"](tmp_path, words) as hosts:
        lose_and_gain(hosts, 2 * COMMIT_STEPS, COMMIT_STEPS, LIMIT_SECONDS)
        slow.touch()
        hosts.finish(LIMIT_SECONDS)
    told = record(run)
    assert (told["status"], told["world_size"]) == ("finished", 4)
    assert [(each["workers_before"], each["workers"], each["lost_residual"]) for each in told["worlds"]] == [
        (4, 3, 0), (3, 4, 0),
    ]  # fmt: skip
    anchors = [load_file(file)["compressor.shared.outer.anchor"] for file in checkpoints(run)[-1].glob("rank-*")]
    assert len(anchors) == 4 and all(torch.equal(each, anchors[0]) for each in anchors)


def mean_residual(checkpoint: Path) -> torch.Tensor:
    """Of a checkpoint of four ranks, by element, as it would enter an average."""
    states = [load_file(file) for file in sorted(checkpoint.glob("rank-*.safetensors"))]
    held = [state["compressor.residual"].double() for state in states if "compressor.residual" in state]
    assert len(states) == 4
    return torch.stack(held).sum(0) / len(states)
