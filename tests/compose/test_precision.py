"""The precision that a run computes in: what auto takes and why, without a trace; the warning of a slow bf16."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from tests.distributed.ends import assert_same_end, checkpoints, record
from tests.distributed.launch import CONFIG, here
from tests.distributed.launch import ROOT as TOP
from tests.helpers import Gathering
from wirebench.comm.engine import Engine
from wirebench.compose import precision
from wirebench.compose.build import compose
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.profiling.precision_trial import PASSES, time_passes
from wirebench.telemetry.timers import HostTimer
from wirebench.utils import this_machine

FAST, SLOW = 1.0, 4.0


class Net(nn.Module):
    """Batch statistics and a draw; notes the precision of its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(12, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.passes: list[torch.dtype] = []

    def forward(self, images: Tensor) -> Tensor:
        out = self.linear(images.flatten(1))
        self.passes.append(out.dtype)
        return self.dropout(self.norm(out))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Net":
        other = Net()
        other.load_state_dict(self.state_dict())
        other.passes = self.passes
        return other


class Script(HostTimer):
    """A clock on which the passes, in fp32 and in bf16 by turns, take what `passes` says; the last two go on."""

    def __init__(self, passes: Sequence[float]) -> None:
        self.passes, self.marks, self.now = list(passes), 0, 0.0

    def mark(self) -> float:
        number, end = divmod(self.marks, 2)
        self.marks += 1
        if end:
            self.now += self.passes[number if number < len(self.passes) else number % 2 - 2]
        return self.now


def clock(fp32: float, bf16: float) -> Script:
    return Script([fp32, bf16])


def trial(timer: Script, net: Net | None = None):
    return time_passes(
        net or Net(), torch.eye(5, 12).view(5, 3, 2, 2), lambda output: output.float().square().mean(), timer
    )


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch):
    """Says what passes take, and on what CPU; the clocks that were asked for are counted."""
    clocks: list[Script] = []

    def say(fp32: float, bf16: float, flags: list[str] | None = None) -> list[Script]:
        def timer_for(device: torch.device) -> Script:
            clocks.append(clock(fp32, bf16))
            return clocks[-1]

        monkeypatch.setattr(precision, "timer_for", timer_for)
        monkeypatch.setattr(this_machine, "cpu", lambda: this_machine.CPU("A", flags))
        return clocks

    return say


def run(folder: Path, *overrides: str) -> int:
    return here(2, [CONFIG, f"output.dir={folder}", *overrides])


def test_a_trial_takes_medians_and_does_not_count_the_first_passes():
    net = Net()
    seconds = trial(Script([0.9, 0.8, 0.1, 0.2, 0.3, 3.0, 0.2, 0.4]), net)
    assert net.passes == [torch.float32, torch.bfloat16] * (PASSES + 1)
    assert seconds == pytest.approx((0.2, 0.4))
    assert not seconds.bf16_is_faster
    assert trial(clock(4, 2)).bf16_is_faster
    assert trial(clock(4, 3.5)).bf16_is_faster and not trial(clock(4, 3.7)).bf16_is_faster, "trials differ by as much"
    assert not trial(clock(2, 2)).bf16_is_faster, "it rounds for nothing"


def test_a_trial_of_slow_passes_ends_early():
    net = Net()
    assert trial(clock(3, 40), net) == (3, 40)
    assert len(net.passes) == 4, "one untimed and one timed in each precision"


def test_a_trial_leaves_no_trace():
    net = Net()
    net.linear.weight.grad = torch.ones_like(net.linear.weight)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    stream = torch.get_rng_state()
    trial(clock(1, 2), net)
    assert torch.equal(torch.get_rng_state(), stream)
    after = net.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert torch.equal(net.linear.weight.grad, torch.ones_like(net.linear.weight))
    assert net.linear.bias.grad is None and net.training


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("fp32", "bf16", "chosen"), [(FAST, SLOW, "fp32"), (SLOW, FAST, "bf16")])
def test_auto_runs_as_if_its_choice_had_been_named(fp32, bf16, chosen, timed, tmp_path, capsys):
    clocks = timed(fp32, bf16, ["avx512_bf16"])
    assert run(tmp_path / "auto", "train.precision=auto") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("train.precision")]
    assert line == (f"train.precision: {chosen}; a pass over 4 images takes {fp32:.3g} s in fp32, {bf16:.3g} s in bf16")
    assert len(clocks) == 1
    assert run(tmp_path / "named", f"train.precision={chosen}") == 0
    assert len(clocks) == 1
    assert_same_end(tmp_path / "auto", tmp_path / "named")
    assert record(tmp_path / "auto")["config"]["train"]["precision"] == chosen
    stored = loader.load(tmp_path / "auto" / "config.toml")
    assert stored.train.precision == chosen and "train" not in stored.asked
    assert record(tmp_path / "auto")["warnings"] == []


def test_a_resumed_run_keeps_the_checkpoints_precision(timed, tmp_path, capsys):
    clocks = timed(SLOW, FAST)
    every = ["train.precision=auto", "train.resume=auto"]
    assert run(tmp_path / "unbroken", *every) == 0, "auto resumes where there is a checkpoint"
    assert run(tmp_path / "resumed", *every, "train.max_steps=6") == 0
    assert len(clocks) == 2
    timed(FAST, SLOW)
    (checkpoints(tmp_path / "resumed")[-1] / "state.json").write_text("damaged")
    capsys.readouterr()
    assert run(tmp_path / "resumed", *every) == 0
    assert len(clocks) == 2, "no trial"
    assert "train.precision: bf16, as the checkpoint has it" in capsys.readouterr().out
    assert record(tmp_path / "resumed")["resumed_at"] == 4
    assert_same_end(tmp_path / "resumed", tmp_path / "unbroken")
    assert run(tmp_path / "nowhere", "train.precision=auto", f"train.resume={tmp_path / 'no'}") == 2
    assert "error: train.resume:" in capsys.readouterr().err


def test_a_replayed_model_is_not_timed(timed, tmp_path):
    clocks = timed(SLOW, FAST)
    for asked, ran in (("auto", "fp32"), ("bf16", "bf16")):
        table = {
            "model": {"name": "replay", "trace": str(TOP / "configs/traces/resnet20_gtx1080ti.json")},
            "data": {"name": "synthetic", "batch_size": 2},
            "engine": {"workers": 2, "device": "cpu"},
            "train": {"precision": asked},
            "output": {"dir": str(tmp_path), "tensorboard": False},
        }
        built = compose(loader.from_dict(table))
        built.close()
        assert built.config.train.precision == ran
        assert built.workers[0].section.precision == ran
    assert not clocks


def rank_1(first: object) -> Engine:
    """The engine of rank 1, to which rank 0 says `first`."""
    fields = {"distributed": True, "is_first": False, "communicators": [Gathering(first, rank=1)]}
    return cast(Engine, SimpleNamespace(**fields, device=torch.device("cpu")))


def chosen_by_rank_1(first: object, folder: Path, **train: str) -> precision.ChosenPrecision:
    table = {
        "model": {"name": "toy"}, "data": {"name": "synthetic", "image_size": 4, "train_size": 32, "batch_size": 8},
        "train": {"precision": "auto", **train}, "output": {"dir": str(folder)}, "engine": {"device": "cpu"},
    }  # fmt: skip
    built = compose(loader.from_dict({**table, "train": {}}))
    built.close()
    return precision.choose(loader.from_dict(table), rank_1(first), built.workers[0], lambda text: None)


def test_rank_0_chooses_for_all(timed, tmp_path):
    clocks = timed(SLOW, FAST)
    assert chosen_by_rank_1([FAST, SLOW], tmp_path).precision == "fp32"
    assert len(clocks) == 1, "all ranks compute at once, as they will in training"
    assert chosen_by_rank_1(["bf16", ""], tmp_path, resume="auto").precision == "bf16"
    with pytest.raises(UserError, match="of rank 0"):
        chosen_by_rank_1([None, "of rank 0"], tmp_path, resume="auto")
    assert len(clocks) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fp32", "bf16", "flags", "trials", "warned"),
    [
        (FAST, SLOW, ["avx2"], 1, True),
        (FAST, SLOW, None, 1, True),
        (SLOW, FAST, ["avx2"], 1, False),
        (FAST, SLOW, ["amx_bf16", "avx2"], 0, False),
        (FAST, SLOW, ["asimd", "bf16"], 0, False),
    ],
)
def test_a_bf16_that_is_slower_here_is_warned_of(fp32, bf16, flags, trials, warned, timed, tmp_path, capsys):
    clocks = timed(fp32, bf16, flags)
    assert run(tmp_path, "train.precision=bf16", "train.max_steps=4") == 0
    line = "train.precision: bf16 is slower than fp32 on this CPU: 1 against 4 images/s in a trial of one worker; "
    line += "take auto"
    assert len(clocks) == trials
    assert record(tmp_path)["warnings"] == ([line] if warned else [])
    assert (f"warning: {line}" in capsys.readouterr().out) is warned
    if warned:
        timed(FAST, 2 * SLOW, flags)
        assert run(tmp_path, "train.precision=bf16", "train.max_steps=6", "train.resume=auto") == 0
        assert record(tmp_path)["warnings"] == [line.replace("1 against", "0.5 against")], "once, with its own rates"
    assert record(tmp_path)["config"]["train"]["precision"] == "bf16"
