"""A run that goes wrong stops at that step with exit code 3, says where, and keeps what was good."""

import re
from pathlib import Path

import pytest

from tests.distributed.ends import assert_same_end, checkpoints, losses, record, tensors
from tests.distributed.launch import CONFIG, here, trouble

DENSE = ["compressor.name=none", "compressor.dense_below=0"]


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    path = tmp_path / "dense.toml"
    path.write_text(CONFIG.read_text().replace("density = 0.05\n", ""))
    return path


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["not_a_number", "infinite_loss"])
@pytest.mark.parametrize("compressor", ["topk", "none"])
def test_it_stops_at_once_and_can_go_on_from_before(
    kind: str, compressor: str, dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start: list[object] = [CONFIG] if compressor == "topk" else [dense, *DENSE]
    folder = tmp_path / "run"
    assert here(2, [*start, f"output.dir={folder}"], trouble(kind, 7)) == 3
    said = capsys.readouterr().err
    assert re.fullmatch(r"error: step 7: the gradient of layers linear\.bias to \S+ \(\d\) is not finite\n", said), said
    found = record(folder)
    assert (found["status"], found["steps_done"], found["final"]["top1"]) == ("diverged", 7, None)
    assert [entry["epoch"] for entry in found["history"]] == [0]
    assert checkpoints(folder)[-1].name == "step-00000006"
    assert len(losses(folder)) == 7
    assert here(2, [*start, f"output.dir={folder}", "train.resume=auto"]) == 0
    assert here(2, [*start, f"output.dir={tmp_path / 'unbroken'}"]) == 0
    assert_same_end(folder, tmp_path / "unbroken")


@pytest.mark.parametrize(
    ("schedule", "step", "said"),
    [
        (["outer", "scheduler.every=4"], 6, "step 7: a worker's weights are no longer finite"),
        (["outer", "scheduler.every=4"], 5, r"step 5: the update made layer \S+ infinite or NaN"),  # an epoch ends
        (["easgd", "compressor.name=none"], 6, "step 7: a worker's weights are no longer finite"),
    ],
)
def test_workers_that_train_alone_hear_of_it_when_they_meet(
    schedule: list[str], step: int, said: str, dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = [f"scheduler.name={schedule[0]}", *schedule[1:], "train.checkpoint_every_steps=5"]
    start = [CONFIG] if schedule[0] == "outer" else [dense, *DENSE]
    assert here(2, [*start, f"output.dir={folder}", *words], trouble("not_a_number", step)) == 3
    assert re.fullmatch(f"error: {said}\n", capsys.readouterr().err)
    assert record(folder)["status"] == "diverged"
    assert all(int(path.name.removeprefix("step-")) <= 5 for path in checkpoints(folder))


@pytest.mark.parametrize("rate", [1e30, 3e38])
def test_a_rate_beyond_reason(rate: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the update has spoilt is not saved, even if nobody has trained on it yet."""
    folder = tmp_path / "run"
    assert here(2, [CONFIG, f"output.dir={folder}", f"optimizer.lr={rate}", "train.checkpoint_every_steps=1"]) == 3
    assert capsys.readouterr().err.startswith("error: step ")
    assert record(folder)["status"] == "diverged"
    if checkpoints(folder):
        assert all(bool(tensor.isfinite().all()) for tensor in tensors(folder).values())


def test_a_test_set_that_gives_no_finite_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One step, whose own gradient was fine: the evaluation shows what became of the model."""
    folder = tmp_path / "run"
    assert here(2, [CONFIG, f"output.dir={folder}", "optimizer.lr=1e30", "train.max_steps=1"]) == 3
    assert "step 0: the loss on the test set is " in capsys.readouterr().err
    assert record(folder)["status"] == "diverged"
