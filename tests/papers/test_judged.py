"""Verdicts at another setting than their claim's, and tolerances that changed with results at hand, are found."""

import functools
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from papers import judged
from papers.claim import Verdict
from papers.findings import Finding, claims_table, with_unrun
from papers.page import Page
from papers.published import load
from papers.site import committed
from papers.site.content import Section
from papers.study import Study
from tests.papers.records import sound
from tests.papers.test_claim import WHOLE
from tests.papers.test_claim import claim as claim_of

claim = functools.partial(claim_of, 1.5, id="c", text="t", tolerance=0.1)


def run(folder: Path, parameters: int = 10**6, began: str = "2026-05-02T00:00:00+00:00", **note: object) -> Path:
    folder.mkdir(parents=True)
    made = {**sound(), "parameters": parameters, "steps_done": 420}
    made["environment"]["utc"] = began
    (folder / "record.json").write_text(json.dumps(made))
    (folder / "note.json").write_text(json.dumps(note))
    return folder


@pytest.mark.parametrize(
    ("least", "why"),
    [
        ({"parameters": 60e6}, "1,000,000 parameters, and the claim is of 60,000,000 parameters and more"),
        ({"steps": 1000}, "420 steps, and the claim is of 1,000 steps and more"),
        ({"rounds": 100}, "14 rounds, and the claim is of 100 rounds and more"),
        ({"workers": 96}, "4 workers, and the claim is of 96 workers and more"),
        ({"parameters": 1e6, "steps": 420, "rounds": 14, "workers": 4}, ""),
    ],
)
@pytest.mark.parametrize("measured", [1.5, 0.9])
def test_what_was_measured_elsewhere_decides_nothing(least: dict, why: str, measured: float, tmp_path: Path) -> None:
    """Neither where the figure is met nor where it is missed: the smallest of the runs counts."""
    records = run(tmp_path / "ours-0", rounds=14), run(tmp_path / "theirs-0", 10**9, rounds=14)
    asked = claim(least=least)
    [found] = with_unrun([Finding(asked, "x", asked.judge(measured), records=records)], [asked])
    assert found.verdict == (Verdict("other setting", measured, why) if why else asked.judge(measured))


def test_a_table_with_a_verdict_at_another_setting_is_named(tmp_path: Path) -> None:
    """Whatever made the line: a report that judges by itself, or an editor."""
    asked = claim(least={"parameters": 60e6})
    found = Finding(asked, "0.90x", asked.judge(0.9), records=(run(tmp_path / "ours-0"),))
    page = Page(tmp_path, "\n".join(claims_table([found])))
    page.write()
    section = Section("speed", Study("speed").published, [found], [page], "")
    assert committed.of_verdicts(tmp_path, [section]) == []
    text = page.path.read_text()
    assert "| other setting: 1,000,000 parameters" in text
    page.path.write_text(text.replace("| other setting: 1,000,000", "| not reproduced: 1,000,000"))
    said = "c: is judged, and its runs have 1,000,000 parameters, and the claim is of 60,000,000 parameters and more"
    assert committed.of_verdicts(tmp_path, [section]) == [f"speed: setting: {said}"]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({}, []),
        ({"holds": "at least"}, ["c: holds was about and is at least, with results at hand"]),
        ({"number": (2.0,)}, ["c: number was 1.5 and is 2, with results at hand"]),
        ({"tolerance": 0.9, "retold": "-"}, ["c: tolerance was 0.1 and is 0.9, with results at hand"]),
    ],
)
def test_a_figure_that_changed_with_results_at_hand_is_named(now: dict, said: list[str], tmp_path: Path) -> None:
    """Also of what is computed, or rests on a benchmark's file; a mark that does not say what was is none."""
    commit(tmp_path, WHOLE, "2026-04-01T00:00:00+00:00")
    commit(tmp_path, WHOLE + "\n", "2026-04-02T00:00:00+00:00")
    asked, known = replace(load(tmp_path).claims["c"], **now), judged.versions(tmp_path, tmp_path)
    file = tmp_path / "cells.jsonl"
    file.write_text('{"environment": {"utc": "2026-05-01T00:00:00+00:00"}}\n{}\n')
    for records in ((), (file,)):
        assert [each.how for each in judged.changed(asked, records, known)] == said


def commit(root: Path, text: str, at: str, folder: str = "") -> None:
    """Commit the file at this time, in place of one that is there."""
    (root / folder).mkdir(exist_ok=True)
    (root / folder / "published.toml").write_text(text)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    dates = {"GIT_AUTHOR_DATE": at, "GIT_COMMITTER_DATE": at}
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", at]):
        subprocess.run([*git, *words], check=True, env={**os.environ, **dates}, capture_output=True)


@pytest.mark.parametrize(
    ("changed_at", "marked", "said"),
    [
        ("2026-05-01T00:00:00+00:00", False, []),
        ("2026-05-03T00:00:00+00:00", False, ["c: tolerance was 0.1 and is 0.2, with results at hand"]),
        ("2026-05-03T00:00:00+00:00", True, []),
    ],
)
def test_a_tolerance_that_changed_with_results_at_hand_is_named_unless_it_is_marked(
    changed_at: str, marked: bool, said: list[str], tmp_path: Path
) -> None:
    commit(tmp_path, WHOLE, "2026-04-01T00:00:00+00:00")
    commit(tmp_path, WHOLE.replace("tolerance = 0.1", "tolerance = 0.2"), changed_at)
    now = replace(load(tmp_path).claims["c"], retold="0.1 until May" if marked else "")
    # A dense run is older than both versions; there is a result when the method has run, too.
    records = run(tmp_path / "dense-0", began="2026-03-01T00:00:00+00:00"), run(tmp_path / "ours-0")
    found = list(judged.changed(now, records, judged.versions(tmp_path, tmp_path)))
    assert [(each.rule, each.how) for each in found] == [("tolerance", each) for each in said]
    assert Finding(now, "x", now.judge(1.5), records=records).broken == (("tolerance",) if marked else ())


def test_a_study_that_moves_keeps_its_history(tmp_path: Path) -> None:
    commit(tmp_path, WHOLE, "2026-04-01T00:00:00+00:00")
    commit(tmp_path, WHOLE + "\n", "2026-04-02T00:00:00+00:00")
    (tmp_path / "published.toml").unlink()
    commit(tmp_path, WHOLE + "\n", "2026-04-03T00:00:00+00:00", "moved")
    assert len(judged.versions(tmp_path, tmp_path / "moved")) == 3


def test_without_a_history_nothing_is_said_of_tolerances(tmp_path: Path) -> None:
    (tmp_path / "published.toml").write_text(WHOLE)
    assert judged.versions(tmp_path, tmp_path) == []
