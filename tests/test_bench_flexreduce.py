"""scripts/bench_flexreduce.py: what it would start, what it keeps, and that a failure loses nothing else."""

import json
from pathlib import Path

import pytest

from scripts import bench_flexreduce
from scripts.bench_flexreduce import ROOT, TIMED, TRAINED, main
from scripts.flexreduce_report import load
from suite.compose.resolve import resolve
from tests.flexreduce import cell, layout_cells, put_cells, run_record
from wirebench.config import loader
from wirebench.paper_flexreduce import COLLECTIVES, LAYOUTS
from wirebench.record import collective_results


class Fake:
    """Stands in for the clusters: writes what the commands would write, and fails for some words."""

    def __init__(self, failing: str = "nothing") -> None:
        self.failing = failing
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str]) -> int:
        self.commands.append(command)
        layout = command[command.index("--layout") + 1]
        if "--json" in command:
            path = Path(command[command.index("--json") + 1])
            if self.failing == layout:
                return 1
            put_cells(path.parents[1], layout, layout_cells(layout))
            return 0
        folder = Path(next(w for w in command if w.startswith("output.dir=")).partition("=")[2])
        (folder / "tb").mkdir(parents=True)
        (folder / "tb" / "events").touch()
        for name in ("config.toml", "steps.jsonl", "trace.json"):
            (folder / name).touch()
        if f"collective.name={self.failing}" in command:
            return 3
        (folder / "record.json").write_text(json.dumps(run_record(layout)))
        return 0

    def option(self, name: str) -> list[str]:
        return [command[command.index(name) + 1] for command in self.commands]


def run(out, *arguments, failing="nothing"):
    fake = Fake(failing)
    return main(["--out", str(out), *arguments], fake), fake


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
    assert results.headers["2+3"]["launch"] == bench_flexreduce.shown(fake.commands[1])
    measured = collective_results.load(tmp_path / "cells" / "2+3.jsonl")
    assert list(measured.cells) == layout_cells("2+3")


def test_the_command_is_one_that_can_be_typed(tmp_path: Path) -> None:
    _, fake = run(tmp_path, "--layouts", "3+4", "--seconds", "7.5")
    [command] = fake.commands
    file = tmp_path / "cells" / "3+4.jsonl"
    assert bench_flexreduce.shown(command) == (
        "python scripts/cluster.py run --layout 3+4 --link 100mbit -- python scripts/bench_collectives.py "
        "--collectives ring flexreduce blueconnect native --sizes 60kf 120kf 1200kf 3000kf --seconds 7.5 "
        f"--json {file}"
    )


def test_files_of_the_repository_are_named_from_its_root(tmp_path: Path) -> None:
    plan = bench_flexreduce.Plan("100mbit", ROOT / "results" / "flexreduce", ("4",), 1.0, 1)
    folder = ROOT / "results" / "flexreduce" / "end_to_end" / "2+3" / "ring-0"
    assert "output.dir=results/flexreduce/end_to_end/2+3/ring-0" in bench_flexreduce.training_command(
        plan, "2+3", "ring", folder
    )


def test_the_large_size_is_asked_for(tmp_path: Path) -> None:
    _, fake = run(tmp_path, "--layouts", "2+3", "--full", "--sizes", "4", "1k")
    [command] = fake.commands
    assert command[command.index("--sizes") + 1 : command.index("--seconds")] == ["4", "1k", "120mf"]


def test_a_layout_that_fails_loses_no_other(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    put_cells(tmp_path, "3+3", [cell("3+3")])
    code, fake = run(tmp_path, failing="3+3")
    assert code == 1
    assert len(fake.commands) == len(LAYOUTS)
    assert sorted(path.stem for path in (tmp_path / "cells").iterdir()) == sorted(LAYOUTS)
    assert collective_results.load(tmp_path / "cells" / "3+3.jsonl").cells == (cell("3+3"),)
    assert capsys.readouterr().err == "bench_flexreduce.py: failed: 3+3\n"


def test_trainings_take_turns_and_keep_two_files(tmp_path: Path) -> None:
    code, fake = run(tmp_path, "--end-to-end", "--turns", "3", "--end-to-end-layouts", "2+3", "4+4")
    assert code == 0
    names = [next(w for w in command if w.startswith("collective.name=")) for command in fake.commands]
    assert names == [f"collective.name={name}" for name in TRAINED] * 6
    assert fake.option("--layout") == ["2+3"] * 12 + ["4+4"] * 12
    folders = [path for path in (tmp_path / "end_to_end" / "4+4").iterdir() if path.is_dir()]
    assert {path.name for path in folders} == {f"{name}-{turn}" for name in TRAINED for turn in range(3)}
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {"record.json", "config.toml"}
    results = load(tmp_path, None)
    assert len(results.runs) == 24
    assert results.notes["2+3"]["link"] == "100mbit"
    assert "collective.name=NAME" in results.notes["2+3"]["launch"]


def test_a_training_that_fails_leaves_nothing_and_loses_no_other(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(tmp_path, "--end-to-end", "--turns", "1")[0] == 0
    code, fake = run(tmp_path, "--end-to-end", "--turns", "1", failing="blueconnect")
    assert code == 1
    assert len(fake.commands) == len(TRAINED)
    assert {run.collective for run in load(tmp_path, None).runs} == {"ring", "flexreduce", "native"}
    error = capsys.readouterr().err.splitlines()
    assert error == ["bench_flexreduce.py: 2+3: blueconnect failed in turn 0", "bench_flexreduce.py: failed: 2+3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--link", "fast"], "cannot read the rate 'fast'"),
        (["--sizes", "4", "big"], "--sizes: cannot read 'big'"),
        (["--layouts", "5+5"], "argument --layouts: invalid choice: '5+5'"),
        (["--turns", "2"], "--turns: needs --end-to-end"),
        (["--end-to-end-layouts", "2+3"], "--end-to-end-layouts: needs --end-to-end"),
        (["--end-to-end", "--sizes", "4"], "--sizes: is about all-reduces alone"),
        (["--end-to-end", "--full"], "--full: is about all-reduces alone"),
        (["--end-to-end", "--turns", "0"], "must be positive"),
        (["--seconds", "0"], "must be positive"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    code, fake = run(tmp_path, *arguments)
    assert code == 2
    assert not fake.commands
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("bench_flexreduce.py: ")
    assert message in line


@pytest.mark.parametrize("name", TRAINED)
def test_the_training_composes(name: str) -> None:
    settings = resolve(loader.load(ROOT / bench_flexreduce.CONFIG, [f"collective.name={name}"]))
    assert (settings.model.name, settings.scheduler.name) == ("resnet18", "fused")
    assert settings.train.max_steps > settings.train.warmup_steps
    assert settings.train.checkpoint_every_steps == settings.train.checkpoint_every_epochs == 0
