"""A loss or gradient that is not finite ends the run with exit code 3: where is said, and what was good is kept."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.distributed.ends import assert_same_end, checkpoints, losses, record, tensors
from tests.distributed.launch import CONFIG, here, trouble
from tests.exchange.lanes import ORDER, Net
from wirebench.errors import Diverged
from wirebench.gradient.flat import FlatGradient
from wirebench.training.divergence import Guard, seeded

BAD = [torch.nan, torch.inf, -torch.inf]
FINE = torch.tensor(1.5)


@pytest.fixture
def flat() -> FlatGradient:
    """A flat gradient of ones that the parameters' gradients are views of."""
    made = FlatGradient(Net(), ORDER)
    made.grad.fill_(1)
    for parameter, view in zip(made.parameters, made.views, strict=True):
        parameter.grad = view
    return made


def apart(flat: FlatGradient) -> None:
    """Give every parameter a gradient of its own, as the engines' synchronisers do."""
    for parameter in flat.parameters:
        parameter.grad = torch.ones_like(parameter)


def gradient(flat: FlatGradient, name: str) -> Tensor:
    found = flat.parameters[ORDER.index(name)].grad
    assert found is not None
    return found


def test_losses_come_back_in_order_up_to_a_step(flat):
    guard, loss = Guard(flat), torch.tensor(0.0)
    assert guard.lag == 0, "on a CPU a step is known at once"
    for step in range(3):
        guard.note(step, loss)
        loss += 1  # what was noted stays as it was
    assert guard.losses(1) == [(0, 0.0), (1, 1.0)]
    assert guard.losses(1) == []
    assert guard.losses(9) == [(2, 2.0)]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("views", [True, False])
def test_the_layer_of_a_bad_gradient_is_named(flat, bad, name, views):
    if not views:
        apart(flat)
    gradient(flat, name).view(-1)[-1] = bad
    with pytest.raises(Diverged, match=rf"^step 4: the gradient of layer {name} is not finite$"):
        Guard(flat).note(4, FINE)


def test_several_bad_layers_are_counted(flat):
    """A method that cannot tell whose NaN it got makes a whole bucket NaN, of which the first is not the guilty one."""
    for layer in flat.layers:
        gradient(flat, layer.name).fill_(torch.nan)
    first, last = flat.layers[0].name, flat.layers[-1].name
    named = f"the gradient of layers {first} to {last} ({len(flat.layers)}) is not finite"
    with pytest.raises(Diverged, match=rf"^step 4: {re.escape(named)}$"):
        Guard(flat).note(4, FINE)


def test_layers_without_a_gradient_do_not_shift_the_names(flat):
    apart(flat)
    flat.parameters[0].grad = None
    gradient(flat, "middle.weight").fill_(torch.nan)
    with pytest.raises(Diverged, match=r"layer middle\.weight"):
        Guard(flat).note(0, FINE)


def test_what_a_layer_without_a_gradient_left_behind_does_not_count(flat):
    flat.parameters[-1].grad = None
    flat.views[-1].fill_(torch.nan)
    guard = Guard(flat)
    guard.note(0, FINE)
    assert guard.losses(0) == [(0, 1.5)]


@pytest.mark.parametrize("views", [True, False])
def test_large_finite_values_are_no_divergence(flat, views):
    if not views:
        apart(flat)
    for parameter in flat.parameters:
        assert parameter.grad is not None
        parameter.grad.fill_(3e38)
    guard = Guard(flat)
    guard.note(0, FINE)
    assert guard.losses(0) == [(0, 1.5)]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_loss_is_named_with_its_step(flat, bad):
    guard = Guard(flat)
    guard.note(0, FINE)
    guard.note(1, torch.tensor(bad))
    assert guard.losses(0) == [(0, 1.5)]
    with pytest.raises(Diverged, match=rf"^step 1: the loss is {bad}$"):
        guard.losses(1)


@pytest.mark.parametrize("bad", BAD)
def test_parameters_that_are_not_finite_are_not_kept(flat, bad):
    guard = Guard(flat)
    guard.parameters(3, [flat.gather_weights()], lambda each: each[0])
    weights = flat.gather_weights()
    weights[flat.layers[4].start + 1] = bad
    flat.set_weights(weights)
    with pytest.raises(Diverged, match=r"^step 3: the update made layer first\.weight infinite or NaN$"):
        guard.parameters(3, [weights], lambda each: each[0])


@pytest.mark.parametrize("bad", BAD)
def test_one_ranks_bad_loss_reaches_its_gradient(bad):
    assert seeded(FINE).item() == FINE.item()
    weight = torch.ones(2, requires_grad=True)
    loss = (weight * bad).sum()
    seeded(loss).backward()
    assert weight.grad is not None
    assert weight.grad.isnan().all()


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
