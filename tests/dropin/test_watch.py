"""wirebench.watch: which steps it records of a loop, what its file says, and what it refuses."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import wirebench
from wirebench.dropin.watch import WARM_UP
from wirebench.errors import UserError
from wirebench.traces import profiler_file


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)


def loop(batches: Any, optimizers: int = 1) -> int:
    """A loop over batches; how many it has seen. A second optimizer steps after the first."""
    model = nn.Linear(4, 2)
    stepping = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(optimizers)]
    seen = 0
    for values in batches:
        model(values).sum().backward()
        for each in stepping:
            each.step()
        seen += 1
    return seen


def batches(count: int) -> Iterator[torch.Tensor]:
    return (torch.ones(3, 4) for _ in range(count))


def recorded() -> tuple[int, dict[str, Any]]:
    """The profiler's whole steps in the file, and the facts in it."""
    path = Path("watched/rank0.json.gz")
    recording = profiler_file.load(path, profiler_file.read(path))
    steps = [each for each in recording.notes if each.name.startswith("ProfilerStep#")]
    assert any(each.shapes for each in recording.operators)
    return len(steps), json.loads(gzip.decompress(path.read_bytes()))["wirebench"]


def test_around_what_a_loop_goes_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert loop(wirebench.watch(batches(20), steps=4)) == 20
    steps, facts = recorded()
    assert (steps, facts["rank"], facts["world_size"], facts["threads"]) == (5, 0, 1, torch.get_num_threads())
    assert capsys.readouterr().out.splitlines()[-1] == "wirebench diagnose --kineto watched/rank0.json.gz"


@pytest.mark.parametrize("optimizers", [1, 2])
def test_around_a_loop_whose_optimizer_ends_a_step(optimizers: int) -> None:
    with wirebench.watch(steps=3):
        loop(batches(20), optimizers)
    assert recorded()[0] == 4


def test_a_loop_that_ends_early_gives_what_there_is() -> None:
    assert loop(wirebench.watch(batches(WARM_UP + 3), steps=50)) == WARM_UP + 3
    assert recorded()[0] == 3


@pytest.mark.parametrize(("last", "written"), [(WARM_UP + 2, True), (WARM_UP + 1, False)])
def test_a_loop_that_is_left_by_break(last: int, written: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """It gives what there is, or says that this is too little."""
    for place, _ in enumerate(wirebench.watch(batches(50), steps=40)):
        if place == last:
            break
    said = capsys.readouterr().err
    for words in ("the loop ended after 4 steps; it needs 5 at least", "no file is written"):
        assert (words in said) == (not written)
    assert bool(list(Path("watched").iterdir())) == written


def test_a_profiler_of_the_loops_own_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """A second profiler cancels the first, and PyTorch crashes when the first one's results are written."""
    with torch.profiler.profile() as own:
        assert loop(wirebench.watch(batches(9), steps=2)) == 9
    assert "another profiler of PyTorch's records these steps; no file is written" in capsys.readouterr().err
    assert any(each.key == "aten::addmm" for each in own.key_averages())


@pytest.mark.parametrize("last", [5, 8], ids=["ended", "still recording"])
def test_a_profiler_that_the_loop_starts_takes_our_place(last: int, capsys: pytest.CaptureFixture[str]) -> None:
    own = torch.profiler.profile()
    for place, values in enumerate(wirebench.watch(batches(12), steps=3)):
        if place == 5:
            own.start()
        torch.mm(values.T, values)
        if place == last:
            own.stop()
    assert "another profiler of PyTorch's was started, and ended this one" in capsys.readouterr().err
    assert not list(Path("watched").iterdir())
    assert any(each.key == "aten::mm" and each.count == last - 4 for each in own.key_averages())


MPIRUN = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}


@pytest.mark.parametrize("variables", [MPIRUN, {**MPIRUN, "RANK": "0", "WORLD_SIZE": "4"}], ids=["told", "unclear"])
def test_each_rank_of_a_launcher_has_its_own_file(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And none where one RANK was set by hand for all processes of mpirun."""
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    loop(wirebench.watch(batches(9), steps=1))
    unclear = "RANK" in variables
    assert [each.name for each in Path("watched").iterdir()] == ([] if unclear else ["rank3.json.gz"])
    assert ("OMPI_COMM_WORLD_RANK is 3" in capsys.readouterr().err) == unclear


def test_a_launcher_that_does_not_tell_the_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMIX_RANK", "0")
    loop(wirebench.watch(batches(9), steps=1))
    assert recorded()[1]["world_size"] == 0
    assert capsys.readouterr().out.splitlines()[-1] == "wirebench diagnose --kineto watched/rank*.json.gz"


def test_a_loop_that_is_too_short() -> None:
    with pytest.raises(UserError, match="ended after 2 steps; it needs 5 at least"):
        loop(wirebench.watch(batches(2)))
    with pytest.raises(UserError, match="ended after 4 steps"), wirebench.watch(steps=2):
        loop(batches(4))
    assert not list(Path("watched").iterdir())


def test_an_error_of_the_loop_stays_its_own() -> None:
    with pytest.raises(ZeroDivisionError), wirebench.watch():
        loop(batches(5))
        raise ZeroDivisionError
    with wirebench.watch(steps=1, folder="again"):  # the profiler is free
        loop(batches(6))
    assert Path("again/rank0.json.gz").exists()


def test_what_it_refuses() -> None:
    with pytest.raises(UserError, match="steps: needs a number of steps"):
        wirebench.watch(steps=0)
    with pytest.raises(UserError, match="needs what a loop goes over"):
        wirebench.watch(3)
    with pytest.raises(UserError, match="has nothing to go over"):
        list(wirebench.watch())
    watched = wirebench.watch(batches(9), steps=1)
    list(watched)
    with pytest.raises(UserError, match="is over"):
        list(watched)


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_first_batch() -> None:
    Path("taken").write_text("")
    given = batches(9)
    for folder in ("taken", "taken/below"):
        with pytest.raises(UserError, match="taken"):
            loop(wirebench.watch(given, steps=1, folder=folder))
        with pytest.raises(UserError, match="taken"), wirebench.watch(folder=folder):
            loop(given)
    assert len(list(given)) == 9


def test_a_file_that_cannot_be_written_ends_no_training(capsys: pytest.CaptureFixture[str]) -> None:
    Path("watched/rank0.json.gz").mkdir(parents=True)
    assert loop(wirebench.watch(batches(9), steps=1)) == 9
    said = capsys.readouterr()
    assert "warning: wirebench.watch: watched/rank0.json.gz: cannot be written" in said.err and not said.out
