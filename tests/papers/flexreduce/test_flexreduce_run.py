"""wirebench study flexreduce run: what it would start, what it keeps, and that a failure loses nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from papers.flexreduce.measured import COLLECTIVES, LAYOUTS
from papers.flexreduce.report import load
from papers.flexreduce.run import CONFIG, TIMED, TRAINED
from papers.runner import RESULTS, ROOT, Command, shown
from papers.trainings import OwnCluster, Training
from tests.flexreduce import cell, layout_cells, put_cells, run_record
from tests.papers import verb
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.record import collective_results, recorded

pytestmark = pytest.mark.sampled(4)

ONE = ("--end-to-end-layouts", "2+3")


class Fake(verb.Trains):
    """Stands in for the clusters, also where they time all-reduces; fails for a layout or a collective."""

    def __init__(self, failing: str = "nothing", status: str = "finished") -> None:
        super().__init__(self.made)
        self.failing, self.status = failing, status

    def __call__(self, command: Command) -> int:
        """Leave a record, or cells."""
        if "--json" not in command:
            return super().__call__(command)
        self.commands.append(command)
        path, layout = Path(command[command.index("--json") + 1]), self.option("--layout")[-1]
        if self.failing == layout:
            return 1
        put_cells(path.parents[1], layout, layout_cells(layout))
        (path.parent / f"{layout}.jsonl").rename(path)
        return 0

    def made(self, told: Mapping[str, str]) -> dict[str, Any] | None:
        """The record of the command that is under way."""
        self.code = 3 if told["collective.name"] == self.failing else 0
        return None if self.code else run_record(self.option("--layout")[-1], status=self.status)

    def option(self, name: str) -> list[str]:
        return [command[command.index(name) + 1] for command in self.commands]


def run(out, *arguments, **ending):
    fake = Fake(**ending)
    return verb.run("flexreduce")(["--out", str(out), *arguments], fake), fake


def test_it_measures_what_is_reported() -> None:
    assert sorted(TIMED) == sorted(TRAINED) == sorted(COLLECTIVES)


def test_every_layout_is_measured_and_the_cells_learn_their_link(tmp_path: Path) -> None:
    code, fake = run(tmp_path, "--link", "200mbit")
    assert code == 0
    assert fake.option("--layout") == list(LAYOUTS)
    assert set(fake.option("--link")) == {"200mbit"}
    results = load(tmp_path, None)
    assert {row.layout for row in results.rows} == set(LAYOUTS)
    assert {header["link"] for header in results.headers.values()} == {"200mbit"}
    assert results.headers["2+3"]["launch"] == shown(fake.commands[1]).replace("/cells/.", "/cells/")
    measured = collective_results.load(tmp_path / "cells" / "2+3.jsonl")
    for found, made in zip(measured.cells, layout_cells("2+3"), strict=True):  # files have some digits of seconds
        assert found.collective == made.collective and found.seconds == pytest.approx(made.seconds)


def test_the_command_is_one_that_can_be_typed(tmp_path: Path) -> None:
    _, fake = run(tmp_path, "--layouts", "3+4", "--seconds", "7.5")
    [command] = fake.commands
    file = tmp_path / "cells" / ".3+4.jsonl"  # beside the one that it becomes when all went well
    assert shown(command) == (
        "wirebench cluster run --layout 3+4 --link 100mbit -- wirebench bench collectives "
        "--collectives ring flexreduce blueconnect native --sizes 60kf 120kf 1200kf 3000kf --seconds 7.5 "
        f"--json {file}"
    )


def test_files_of_the_repository_are_named_from_its_root() -> None:
    turn = Training(
        "end_to_end/2+3/ring-0", "ring", OwnCluster("100mbit", layout="2+3"), CONFIG, ("collective.name=ring",)
    )
    assert "output.dir=results/flexreduce/end_to_end/2+3/ring-0" in turn.command(RESULTS / "flexreduce")


def test_the_large_size_is_asked_for(tmp_path: Path) -> None:
    _, fake = run(tmp_path, "--layouts", "2+3", "--full", "--sizes", "4", "1k")
    [command] = fake.commands
    assert command[command.index("--sizes") + 1 : command.index("--seconds")] == ["4", "1k", "120mf"]


def test_a_layout_that_fails_loses_no_other(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    put_cells(tmp_path, "3+3", [cell("3+3")])
    code, fake = run(tmp_path, "--again", failing="3+3")
    assert code == 1
    assert len(fake.commands) == len(LAYOUTS)
    assert sorted(path.stem for path in (tmp_path / "cells").iterdir()) == sorted(LAYOUTS)
    assert collective_results.load(tmp_path / "cells" / "3+3.jsonl").cells == (cell("3+3"),)
    assert capsys.readouterr().err.endswith("\nwirebench study flexreduce run: failed: 3+3\n")


def test_trainings_take_turns_and_keep_what_reports_need(tmp_path: Path) -> None:
    code, fake = run(tmp_path, "--end-to-end", "--turns", "3", "--end-to-end-layouts", "2+3", "4+4")
    assert code == 0
    names = [next(w for w in command if w.startswith("collective.name=")) for command in fake.commands]
    assert names == [f"collective.name={name}" for name in TRAINED] * 6
    assert fake.option("--layout") == ["2+3"] * 12 + ["4+4"] * 12
    made = recorded.directly_below(tmp_path / "end_to_end" / "4+4")
    assert {each.folder.name for each in made} == {f"{name}-{turn}" for name in TRAINED for turn in range(3)}
    results = load(tmp_path, None)
    assert len(results.runs) == 24
    assert results.notes["2+3"]["link"] == "100mbit"
    assert "collective.name=NAME" in results.notes["2+3"]["launch"]


def test_trainings_take_further_settings(tmp_path: Path) -> None:
    code, fake = run(tmp_path, "--end-to-end", *ONE, "--turns", "1", "--set", "data.batch_size=32", "train.seed=1")
    assert code == 0 and len(fake.commands) == len(TRAINED)
    assert all({"data.batch_size=32", "train.seed=1"} <= set(command) for command in fake.commands)


def test_a_training_that_fails_or_diverges_costs_the_earlier_ones_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run(tmp_path, "--end-to-end", *ONE, "--turns", "1")[0] == 0
    for ending in ({"failing": "blueconnect"}, {"status": "diverged"}):
        code, fake = run(tmp_path, "--end-to-end", *ONE, "--turns", "1", "--again", **ending)
        assert code == 1
        assert len(fake.commands) == len(TRAINED)
        assert {run.collective for run in load(tmp_path, None).runs} == set(COLLECTIVES)
        error = capsys.readouterr().err
        assert "\nwirebench study flexreduce run: failed: " in error and "2+3: blueconnect in turn 0" in error


def test_what_is_there_is_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    timing, training = ["--layouts", "2+3", "3+3", "--sizes", "6000kf"], ["--end-to-end", *ONE, "--turns", "1"]
    for arguments, count in ((timing, 2), (training, len(TRAINED))):
        assert len(run(tmp_path, *arguments)[1].commands) == count
        assert not run(tmp_path, *arguments)[1].commands
        assert f"{count} of {count} runs are there already" in capsys.readouterr().err
        code, fake = run(tmp_path, *arguments, "--link", "1gbit")
        assert code == 2 and not fake.commands
        said = capsys.readouterr().err
        assert "100mbit" in said and "--again" in said
    assert len(run(tmp_path, "--layouts", "2+3", "--sizes", "6000kf", "--full")[1].commands) == 1, "a size is missing"


def test_trainings_on_other_links_are_not_mixed(tmp_path: Path) -> None:
    run(tmp_path, "--end-to-end", *ONE, "--turns", "2")
    run(tmp_path, "--end-to-end", *ONE, "--turns", "1", "--link", "1gbit", "--again")
    results = load(tmp_path, None)
    assert results.notes["2+3"]["link"] == "1gbit"
    assert {each.turn for each in results.runs} == {0}


@pytest.mark.parametrize("name", TRAINED)
def test_the_training_composes(name: str) -> None:
    settings = resolve(loader.load(ROOT / CONFIG, [f"collective.name={name}"]))
    assert (settings.model.name, settings.scheduler.name) == ("resnet18", "fused")
    assert settings.train.max_steps > settings.train.warmup_steps
    assert settings.train.checkpoint_every_steps == settings.train.checkpoint_every_epochs == 0
