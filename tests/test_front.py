"""README.md and docs/playbook.md: their numbers are those of results/front, README's number by number."""

import json
import re
import runpy
import shlex
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.verbs import ROOT

front = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "front.py")))
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLAYBOOK = (ROOT / "docs/playbook.md").read_text(encoding="utf-8")
NUMBER = r"\d+(?:\.\d+)?"


def made(name: str) -> Any:
    return json.loads((front.FRONT / name).read_text(encoding="utf-8"))


def test_readme_is_short_and_its_first_screen_has_few_numbers() -> None:
    lines = README.splitlines()
    assert len(lines) <= 130
    assert len(re.findall(r"[0-9][0-9.,]*", "\n".join(lines[:60]))) < 30


def test_readme_says_what_the_loops_took() -> None:
    steps = made("loops.json")["step_ms"]
    [said] = re.findall(rf"({NUMBER}) ms a step before, ({NUMBER}) ms after", README)
    assert [float(each) for each in said] == [round(statistics.median(steps[name])) for name in front.LOOPS]


def test_readme_shows_lines_of_the_diagnosis_that_was_made() -> None:
    found = made("diagnose.json")
    shown = README.partition("$ wirebench diagnose")[2].partition("```")[0].splitlines()[1:]
    lines = [line for line in shown if line.strip() not in ("", "...")]
    assert len(lines) >= 5 and set(lines) <= set(found["lines"])
    assert "$ wirebench diagnose" + README.partition("$ wirebench diagnose")[2].partition("\n")[0] in [
        f"$ {command}" for command in found["commands"]
    ]


def test_readmes_table_has_the_compressors_and_the_numbers_of_the_playbook() -> None:
    rows = {(row["model"], row["link"]): row["answer"] for row in made("advice.json")["rows"]}
    shown = "| link per worker" + README.partition("| link per worker")[2].partition("\n\n")[0]
    [head, _, *lines] = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.splitlines()]
    assert [line[0] for line in lines] == list(front.LINKS)
    for link, *cells in lines:
        for model, cell in zip(head[1:], cells, strict=True):
            on = front.switched_on(rows[model, link])
            names = re.findall(r"`(\w+)`", cell)
            name, *options = (on or {"compressor": ""})["compressor"].split(":")
            assert names == [name] * bool(name), (model, link)
            assert all(each.partition("=")[2] in cell for each in options if each.startswith("form=")), (model, link)
            if on is not None:
                assert float(re.findall(rf"({NUMBER})x", cell)[0]) == pytest.approx(on["speedup"], rel=0.005)


def test_the_playbook_has_every_row() -> None:
    for model, lines in front.tables(made("advice.json")["rows"]).items():
        part = PLAYBOOK.partition(f"## {model}\n")[2].partition("\n## ")[0]
        assert [line for line in part.splitlines() if line.startswith("|")] == lines


@pytest.mark.slow
def test_a_row_is_what_advise_answers_today(tmp_path: Path) -> None:
    """Of one: all of them take minutes."""
    row = made("advice.json")["rows"][1]
    front.run([*shlex.split(row["command"]), "--json", str(tmp_path / "it.json")])
    now = json.loads((tmp_path / "it.json").read_text())["answer"]
    assert front.tables([{**row, "answer": now}]) == front.tables([row])
