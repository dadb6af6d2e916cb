"""Resuming with another number of ranks: who gets whose state, and where in the run it goes on."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_tensors

from tests.distributed.ends import checkpoints, record
from tests.distributed.launch import CONFIG, here
from wirebench.compose.build import compose
from wirebench.config.loader import load
from wirebench.training.state_files import from_bytes, to_bytes
from wirebench.training.train_state import RankState, rank_states

# 96 images in batches of 8: 6 steps an epoch with 2 workers, 4 with 3, 2 with 5, 12 with 1.
BASE = [
    "engine.threads=1",
    "train.max_steps=0",
    "train.epochs=3",
    "train.checkpoint_every_epochs=1",
    "train.checkpoint_every_steps=0",
]


def run(folder: Path, size: int, *overrides: str) -> int:
    return here(size, [CONFIG, *BASE, f"output.dir={folder}", *overrides])


def held(folder: Path) -> torch.Tensor:
    """Sum over ranks of the residuals in the newest checkpoint."""
    files = sorted(checkpoints(folder)[-1].glob("rank-*.safetensors"))
    return torch.stack([load_tensors(file.read_bytes())["compressor.residual"] for file in files]).sum(0)


def test_every_file_goes_to_one_rank_and_every_rank_gets_one():
    files = [b"0", b"1", b"2", b"3", b"4"]
    assert rank_states(files, 2) == [RankState([b"0", b"2", b"4"], False, 0.4), RankState([b"1", b"3"], False, 0.4)]
    assert rank_states(files, 5) == [RankState([file], False, 1) for file in files]
    assert rank_states(files[:1], 2) == [RankState([b"0"], False, 2), RankState([b"0"], True, 2)]


@pytest.mark.parametrize("state", [RankState([b""], True, 1.5), RankState([b"one", b"", b"three"], False, 0.6)])
def test_rank_states_travel(state):
    assert from_bytes(to_bytes(state)) == state


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("before", "now"), [(3, 2), (5, 2), (2, 3), (3, 1)])
def test_between_epochs_the_number_of_ranks_may_change(before: int, now: int, tmp_path: Path) -> None:
    steps = {1: 12, 2: 6, 3: 4, 5: 2}
    folder = tmp_path / "run"
    assert run(folder, before, f"train.max_steps={steps[before]}") == 0
    left = held(folder)
    assert left.abs().sum() > 0
    resumed = compose(load(CONFIG, [*BASE, f"engine.workers={now}", f"output.dir={folder}", "train.resume=auto"]))
    residuals = [lane.compressor.state_dict() for lane in resumed.lanes]
    assert [bool(state) for state in residuals] == [rank < before for rank in range(now)]
    arrived = torch.stack([state["residual"] for state in residuals if state]).sum(0)
    torch.testing.assert_close(arrived, left * now / before, rtol=0, atol=1e-6)
    resumed.close()
    assert run(folder, now, "train.resume=auto") == 0
    done = record(folder)
    assert (done["steps_done"], done["resumed_at"], done["world_size"]) == (3 * steps[now], steps[now], now)
    assert [entry["epoch"] for entry in done["history"]] == [0, 1, 2]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("before", "now", "step"), [(2, 3, 10), (3, 2, 7), (2, 5, 4)])
def test_within_an_epoch_the_number_of_ranks_may_change(before: int, now: int, step: int, tmp_path: Path) -> None:
    """After 64, 72 and 64 of an epoch's 96 images: a step of 24 and one of 8; one of 16 and one of 8; one of 32."""
    steps = {2: 6, 3: 4, 5: 2}
    folder = tmp_path / "run"
    assert run(folder, before, f"train.max_steps={step}", f"train.checkpoint_every_steps={step}") == 0
    epoch = step // steps[before]
    entered = {3: 6, 2: 10, 5: 1}[now]
    assert run(folder, now, "train.resume=auto", "train.checkpoint_every_steps=1") == 0
    done = record(folder)
    assert (done["status"], done["steps_done"], done["resumed_at"]) == ("finished", 3 * steps[now], entered)
    assert [entry["epoch"] for entry in done["history"]] == [0, 1, 2]
    assert all(0 < entry["loss"] < 4 for entry in done["history"]), epoch


@pytest.mark.parametrize("end", [11, 12])
def test_an_epoch_without_a_step_for_the_new_ranks_is_summed_up(end: int, tmp_path: Path) -> None:
    """After 88 of an epoch's 96 images; the run had, or had not, summed the epoch up itself."""
    folder = tmp_path / "run"
    every = ["train.checkpoint_every_steps=11", "train.checkpoint_every_epochs=0"]
    assert run(folder, 1, f"train.max_steps={end}", *every) == 0
    assert [file.name for file in checkpoints(folder)] == ["step-00000011"]
    assert run(folder, 5, "train.resume=auto") == 0
    done = record(folder)
    assert (done["status"], done["steps_done"], done["resumed_at"]) == ("finished", 6, 2)
    assert [entry["epoch"] for entry in done["history"]] == [0, 1, 2]
    assert all(0 < entry["loss"] < 4 for entry in done["history"])


def test_a_world_that_took_an_epoch_over_can_be_resumed_itself(tmp_path: Path) -> None:
    """And ends, bit for bit, as if it had not stopped."""
    results = []
    for name, pieces in (("unbroken", []), ("broken", ["train.max_steps=3"])):
        folder = tmp_path / name
        assert run(folder, 2, "train.max_steps=4", "train.checkpoint_every_steps=1") == 0
        for piece in [*pieces, "train.epochs=3"]:
            assert run(folder, 3, "train.resume=auto", "train.checkpoint_every_steps=1", piece) == 0
        results.append([file.read_bytes() for file in sorted(checkpoints(folder)[-1].glob("*.safetensors"))])
    assert results[0] == results[1] and results[0]
