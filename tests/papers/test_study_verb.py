"""wirebench study: what it lists, and that the committed tables are those of their records."""

from pathlib import Path

import pytest

from papers import cli as study
from papers.page import Page
from papers.study import Study, available
from tests.papers import verb
from tests.papers.test_methods_run import put, record
from wirebench.errors import UserError

STUDIES = [
    "accuracy",
    "failures",
    "flexreduce",
    "gs_sgd",
    "iwp",
    "mg_wfbp",
    "planner",
    "pods",
    "speed",
]


def run(*words: str) -> int:
    return study.main(words, verb.nothing)


def test_a_study_is_found_by_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert available() == STUDIES
    assert run() == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.split("\n\n")[-1].splitlines()]
    assert listed == STUDIES
    assert run("gs_sgd") == 0
    said = capsys.readouterr().out
    assert "arXiv 2108.06004" in said and "vgg16_over_gtopk: VGG-16: gs-SGD's throughput" in said


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_all_its_parts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = Study(name)
    assert {path.name for path in found.folder.iterdir()} >= {"published.toml", "run.py", "report.py"}
    for action in ("run", "report", "check"):
        assert run(name, action, "--help") == 0
        assert f"usage: wirebench study {name} {action}" in capsys.readouterr().out
    assert found.committed(), "a table that is there is held against its records"


def test_a_table_that_is_not_of_its_records_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "dense", 0, record("none", 1.0))
    assert run("speed", "report", str(tmp_path)) == 0
    assert run("speed", "check", str(tmp_path)) == 0
    table, figure = tmp_path / "table.md", tmp_path / "steps.svg"
    table.write_text(table.read_text().replace("| 1000 [900", "| 999 [900"))
    figure.unlink()
    capsys.readouterr()
    assert run("speed", "check", str(tmp_path)) == 1
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{table}:") and "| 999 [900" in line and "by its records" in line and "| 1000 [900" in line
    assert not figure.exists() and "| 999 [900" in table.read_text(), "nothing is written"


def test_a_report_can_be_printed_without_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "dense", 0, record("none", 1.0))
    assert run("speed", "report", str(tmp_path), "--print") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# Every method") and "steps.svg" not in printed
    assert not (tmp_path / "table.md").exists()


def test_drift_is_shown_where_it_is(tmp_path: Path) -> None:
    page = Page(tmp_path, "one\n" + "x" * 200 + " new end\n")
    (tmp_path / "table.md").write_text("one\n" + "x" * 200 + " old end\n")
    said = page.drift() or ""
    assert said.startswith(f"{tmp_path}/table.md:2: ") and "old end" in said and "new end" in said and len(said) < 400
    (tmp_path / "table.md").write_text("one\n")
    assert "'no line'" in (page.drift() or "")
    (tmp_path / "table.md").unlink()
    assert "is not there" in (page.drift() or "")
    page.write()
    assert page.drift() is None
    with pytest.raises(UserError, match="cannot be written"):
        Page(tmp_path / "table.md" / "sub", "").write()
