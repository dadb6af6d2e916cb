"""wirebench table: the records of results/ as a table, and a file's copy of it."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_show import RECORD
from tests.cli.verbs import verb
from tests.golden import check
from tests.record.gpus import all_ranks
from wirebench.inspect.results_table import BEGIN, END, table
from wirebench.utils.package import TOP

main = verb("table")

ENVIRONMENT: dict[str, Any] = {
    "cpu": {"model": "AMD EPYC", "cores": 2},
    "gpus": [],
    "peers": ["rank 0 (pid 7 on a)", "rank 1 (pid 8 on a)"],
}
TEXT = f"# Title\n\nbefore\n{BEGIN}\nold\n{END}\nafter\n"


def record(name="ring", **changes):
    made = copy.deepcopy(RECORD)
    made["config"]["name"] = name
    return {**made, "environment": ENVIRONMENT, **changes}


def put(folder, content):
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.fixture
def home(tmp_path):
    """A folder with a README, two results and a run that is none."""
    put(tmp_path / "results" / "b", record("b first"))
    put(tmp_path / "results" / "a" / "deep" / "er", record("a|deep", status="diverged"))
    put(tmp_path / "results" / "runs" / "local", record("local"))
    (tmp_path / "README.md").write_text(TEXT)
    return tmp_path


def test_rows_of_runs(home: Path, request: pytest.FixtureRequest) -> None:
    """In order of their paths; links lead from the file that has the table; runs below results/runs are no results."""
    plain = table(home / "results", home)
    nothing = {"median": None, "mean": None, "p10": None, "p90": None, "steps": 0}
    put(home / "results" / "c", record("GPUs of all ranks", gpu=all_ranks()))
    put(home / "results" / "d", record("no step", images_per_second=nothing))
    for name, device, changes in (
        ("idle GPUs", "cpu", {"gpus": ["H200", "H200"]}),
        ("GPUs", "cuda", {"gpus": ["H200", "A100", "H200"]}),
        ("hosts", "cpu", {"peers": ["rank 0 (pid 7 on a)", "rank 1 (pid 7 on b)"]}),
        ("unknown", "cpu", {"cpu": {"model": None, "cores": None}}),
    ):
        put(home / "results" / "e" / name, record(name, device=device, environment={**ENVIRONMENT, **changes}))
    told = f"{plain}\n\n{table(home / 'results', home / 'docs')}\n"
    check("show/table", told, request.config.getoption("update"))


def test_write_replaces_only_what_stands_between_the_markers(home: Path, capsys: pytest.CaptureFixture) -> None:
    readme, results = home / "README.md", home / "results"
    arguments = ["--results", str(results)]
    assert main([*arguments, "--check", str(readme)]) == 1
    assert readme.read_text() == TEXT and f"wirebench table --write {readme}" in capsys.readouterr().err
    assert main([*arguments, "--write", str(readme)]) == 0
    expected = f"# Title\n\nbefore\n{BEGIN}\n{table(results, home)}\n{END}\nafter\n"
    assert readme.read_text() == expected
    assert main([*arguments, "--check", str(readme)]) == 0
    assert main([*arguments, "--write", str(readme)]) == 0
    assert readme.read_text() == expected


def test_without_an_option_the_table_is_printed(
    home: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    assert main(["--results", "results"]) == 0
    assert capsys.readouterr().out == table(home / "results", home) + "\n"
    assert main(["--results", "nowhere"]) == 2


@pytest.mark.parametrize(
    "text", ["no markers", f"{BEGIN} only", f"{END} then {BEGIN}", f"{BEGIN}\n{END}\n{BEGIN}\n{END}"]
)
def test_a_file_without_both_markers_is_left_alone(home: Path, text: str, capsys: pytest.CaptureFixture) -> None:
    readme = home / "README.md"
    readme.write_text(text)
    assert main(["--results", str(home / "results"), "--write", str(readme)]) == 2
    assert readme.read_text() == text
    assert BEGIN in capsys.readouterr().err


def test_the_committed_table_is_that_of_the_records(capsys: pytest.CaptureFixture) -> None:
    assert main(["--check", str(TOP / "results/README.md")]) == 0, capsys.readouterr().err


def test_a_doctored_overhead_shows_in_its_table_and_a_damaged_one_is_named(tmp_path: Path, capsys) -> None:
    for folder in ("cpu-2core", "h200"):
        shutil.copytree(TOP / "results" / folder / "overhead", tmp_path / folder / "overhead")
    shutil.copy(TOP / "results" / "README.md", tmp_path)
    arguments = ["--results", str(tmp_path), "--check", str(tmp_path / "README.md")]
    assert main(arguments) == 0, capsys.readouterr().err
    file = tmp_path / "cpu-2core" / "overhead" / "torch-vgg16.json"
    result = json.loads(file.read_text())
    file.write_text(json.dumps({**result, "ratio": {**result["ratio"], "median": 0.5}}))
    assert main(arguments) == 1
    file.write_text("{}")
    assert main(arguments) == 2
    assert "torch-vgg16.json: is not what wirebench bench overhead writes" in capsys.readouterr().err


def test_runs_of_ones_own_have_a_table_too(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(home / "results/runs"), str(home / "results/b")]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.partition("]")[0] for row in rows] == ["| [local", "| [b first"]
    assert main([str(home / "nothing")]) == 2
    assert f"{home / 'nothing'}: has no record.json" in capsys.readouterr().err
    assert main([str(home / "results/b"), "--write", str(home / "README.md")]) == 2
    assert "redirect the output" in capsys.readouterr().err
