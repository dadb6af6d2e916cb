"""wirebench table: the records of results/ as a table, and a file's copy of it."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_show import RECORD
from tests.cli.verbs import verb
from tests.record.gpus import all_ranks
from wirebench.inspect.results_table import BEGIN, END, machine, table
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


def test_a_row_has_the_numbers_of_its_record_and_links_it(home: Path) -> None:
    lines = table(home / "results", home).splitlines()
    assert lines[0] == (
        "| run | machine | engine | model | compressor | scheduler | collective | images/s [p10 - p90] "
        "| step ms [p10 - p90] | wire bytes/step | ratio | top1 |"
    )
    assert lines[3] == (
        "| [b first](results/b/record.json) | AMD EPYC, 2 cores | torch x 4 (cpu) | resnet_cifar depth=20 "
        "| topk density=0.01 | mg_wfbp | ring | 1,234 [1,100 - 1,300] "
        "| 103.70 [90.00 - 110.00] | 1.62 MB | 37.5x | 0.8765 |"
    )


def test_rows_come_in_order_of_their_paths_and_runs_are_no_results(home: Path) -> None:
    rows = table(home / "results", home).splitlines()[2:]
    links = [row.split("](")[1].split(")")[0] for row in rows]
    assert links == ["results/a/deep/er/record.json", "results/b/record.json"]


def test_links_lead_from_the_folder_of_the_file_that_has_the_table(home: Path) -> None:
    assert "](../results/b/record.json)" in table(home / "results", home / "docs")


def test_a_run_that_did_not_finish_says_so_and_no_text_breaks_the_table(home: Path) -> None:
    row = table(home / "results", home).splitlines()[2]
    assert row.startswith("| [a\\|deep](results/a/deep/er/record.json) (diverged) |")


def test_a_table_has_columns_for_gpus_where_a_record_has_one(home: Path) -> None:
    assert "GPU" not in table(home / "results", home)
    put(home / "results" / "c", record("on two", gpu=all_ranks()))
    head, _, *rows = table(home / "results", home).splitlines()
    assert head.endswith("| top1 | GPU | joules/sample | joules/point of top1 |")
    assert [row.rsplit(" | ", 3)[1:] for row in rows] == [
        ["-", "-", "- |"],
        ["-", "-", "- |"],
        ["2 x NVIDIA H200: 800 W, 56 % busy, 16.99 GB", "1.5", "240 |"],
    ]


def test_null_is_a_dash(tmp_path: Path) -> None:
    nothing = {"median": None, "mean": None, "p10": None, "p90": None, "steps": 0}
    put(tmp_path / "one", record(images_per_second=nothing))
    assert "| ring | - | 103.70" in table(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "AMD EPYC, 2 cores"),
        ({"gpus": ["H200", "H200"]}, "AMD EPYC, 2 cores"),
        ({"gpus": ["H200", "A100", "H200"], "device": "cuda"}, "2 x H200, 1 x A100"),
        ({"peers": ["rank 0 (pid 7 on a)", "rank 1 (pid 7 on b)"]}, "2 hosts, each AMD EPYC, 2 cores"),
        ({"cpu": {"model": None, "cores": None}}, "unknown CPU, ? cores"),
    ],
)
def test_the_machine_is_what_the_run_used(changes: dict, expected: str) -> None:
    device = changes.pop("device", "cpu")
    assert machine(record(device=device, environment={**ENVIRONMENT, **changes})) == expected


def test_write_replaces_only_what_stands_between_the_markers(home: Path) -> None:
    readme, results = home / "README.md", home / "results"
    arguments = ["--results", str(results)]
    assert main([*arguments, "--check", str(readme)]) == 1
    assert main([*arguments, "--write", str(readme)]) == 0
    expected = f"# Title\n\nbefore\n{BEGIN}\n{table(results, home)}\n{END}\nafter\n"
    assert readme.read_text() == expected
    assert main([*arguments, "--check", str(readme)]) == 0
    assert main([*arguments, "--write", str(readme)]) == 0
    assert readme.read_text() == expected


def test_check_changes_nothing_and_says_what_to_run(home: Path, capsys: pytest.CaptureFixture) -> None:
    readme = home / "README.md"
    assert main(["--results", str(home / "results"), "--check", str(readme)]) == 1
    assert readme.read_text() == TEXT
    assert f"wirebench table --write {readme}" in capsys.readouterr().err


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
