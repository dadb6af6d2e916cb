"""wirebench study flexreduce report on cells and records made up so that the answers are known."""

import json
import math
import shutil
from pathlib import Path

import pytest

from papers.flexreduce.claims import claims
from papers.flexreduce.measured import CLAIMS, LAYOUTS
from papers.flexreduce.report import load
from tests.flexreduce import LARGE, SMALL, cell, layout_cells, put_cells, put_run
from tests.papers.verb import report

pytestmark = pytest.mark.sampled(3)

main = report("flexreduce")
FIGURES = [f"fig4{letter}.svg" for letter in "abcdef"]


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """Every layout, three sizes, and two turns of training on 2+3."""
    for layout in LAYOUTS:
        found = [c for items in (60_000, SMALL, LARGE) for c in layout_cells(layout, items)]
        put_cells(tmp_path, layout, found, link="100mbit", launch=f"wirebench cluster run --layout {layout}")
    for turn in (0, 1):
        for name, seconds in {"ring": 10.0, "native": 9.0, "blueconnect": 10.0, "flexreduce": 8.0}.items():
            put_run(tmp_path, "2+3", name, turn, seconds=seconds + turn)
    note = json.dumps({"link": "100mbit", "launch": "wirebench cluster run -- python train.py"})
    for run in (tmp_path / "end_to_end" / "2+3").iterdir():
        (run / "note.json").write_text(note)
    return tmp_path


def test_ideal_measurements_reproduce_every_claim_about_latency(full: Path) -> None:
    results = load(full, None)
    found = {found.text: found.verdict.words for found in claims(results.rows, results.runs)}
    slower = {text for text in found if "BlueConnect adds" in text}
    saved = {text for text in found if text.startswith("time per epoch that FlexReduce saves")}
    nine = {text for text in found if "9 learners" in text}
    # Of trainings there is one layout, and the claims are averages over nine, or over four.
    # Sizes take no turns: one repeat that is 30 % slower leaves the ratio of two of them open.
    linear = {text for text in found if text.startswith("latency is linear")}
    assert {text for text, verdict in found.items() if verdict != "reproduced"} == slower | saved | nine | linear
    assert all(found[text].startswith("not decidable") for text in linear)
    # Which cannot be: their layout is even.
    assert len(nine) == 1 and all(found[text].startswith("contradicted (3+3+3 at") for text in nine)
    assert all(found[text].startswith("not run here: on 1 of ") for text in saved | slower) and len(saved) == 2
    assert len(found) == len(CLAIMS)


def test_the_report_has_every_figure_and_every_number(full: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["--dir", str(full)]) == 0
    text = (full / "table.md").read_text()
    assert capsys.readouterr().out == f"{full / 'table.md'}\n"
    assert text.isascii()
    assert all((full / name).read_bytes().startswith(b"<svg") for name in FIGURES)
    assert "Left out" not in text
    assert "## All-reduce of 6,000,000 floats" in text
    [row] = [line for line in text.splitlines() if line.startswith("| 2+3 | 5 | 6,000,000 | 100mbit |")]
    for number in ("| 3266.0 |", "| 37.5 % [37.5 to 37.5] | 37.5 % | 32 % - 42 % | 100.0 % | 100.0 % |", "| 94.1 % |"):
        assert number in row
    [epochs] = [line for line in text.splitlines() if line.startswith("| 2+3 | 4 | ")]
    assert epochs.split(" | ")[2:7] == ["100mbit", "33600", "30400", "33600", "27200"]
    assert "All ranks ended with the same bits; largest error 1e-07" in text
    assert "AMD EPYC, 2 cores; torch (gloo); torch 2.15.0; commit 0123456789" in text
    assert "`wirebench cluster run --layout 3+4+4`" in text
    heads = [line for line in text.splitlines() if line.startswith("| layout")]
    assert len(heads) == 5
    # The claims are about the largest size, so the others have no verdict.
    assert [head.endswith("| verdict |") for head in heads] == [True, False, False, False, False]
    # Of 1.08 MB a ring of five sends 1.6 times as much over a link, FlexReduce on two machines once as much.
    shares = "138 | 86 | 10500 | 1.3 % | 0.5 % | 19.1 % | 9500 | 1.5 % | 0.5 % | 10.6 % |"
    assert f"| 2+3 | 37.5 % | {shares}\n| mean | 37.5 % | {shares}\n" in text
    assert "the ring's bytes take 43 % of its steps, since the mean ideal of its nine\nlayouts is 33.4 %." in text
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("| ")]
        assert len({line.count("|") for line in lines}) <= 1


@pytest.mark.slow
def test_the_same_measurements_give_the_same_files(full: Path) -> None:
    assert main(["--dir", str(full)]) == 0
    before = {path.name: path.read_bytes() for path in full.iterdir() if path.is_file()}
    assert main(["--dir", str(full)]) == 0
    assert {path.name: path.read_bytes() for path in full.iterdir() if path.is_file()} == before
    assert set(before) == {*FIGURES, "table.md"}


def test_what_is_missing_is_left_out_and_named(tmp_path: Path) -> None:
    put_cells(tmp_path, "2+3", [cell(items=SMALL), cell(collective="flexreduce", items=SMALL, identical=False)])
    (tmp_path / "fig4d.svg").write_bytes(b"of an earlier report")
    assert main(["--dir", str(tmp_path)]) == 0
    text = (tmp_path / "table.md").read_text()
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["fig4a.svg", "fig4c.svg"]
    for line in (
        "Left out: fig4b.svg: Latency of 120,000 floats: no all-reduce of more than 120,000 floats was measured.",
        "Left out: fig4d.svg: Latency on 3+3+4: no all-reduce on 3+3+4 was measured.",
        "Left out: fig4f.svg: Time per epoch: no training was measured.",
        "RANKS DIFFER: flexreduce on 2+3, 120,000 floats",
    ):
        assert line in text
    [row] = [line for line in text.splitlines() if line.startswith("| 2+3 | 5 | 120,000 | - |")]
    assert row.split(" | ")[5:7] == ["-", "-"]


def test_trainings_alone_make_a_report(tmp_path: Path) -> None:
    put_run(tmp_path, "3+3", "ring", 0)
    put_run(tmp_path, "3+3", "flexreduce", 0, seconds=0.6)
    assert main(["--dir", str(tmp_path)]) == 0
    text = (tmp_path / "table.md").read_text()
    assert "| 40.0 % [too few repeats] |" in text
    assert "bytes save" not in text, "no link, and no native all-reduce"
    assert (tmp_path / "fig4f.svg").exists()


def test_a_link_may_be_given_for_cells_that_do_not_say_it(tmp_path: Path) -> None:
    put_cells(tmp_path, "2+3", layout_cells("2+3"))
    assert main(["--dir", str(tmp_path), "--link", "200mbit"]) == 0
    assert "| 200mbit |" in (tmp_path / "table.md").read_text()
    assert math.isclose(load(tmp_path, "200mbit").rows[0].link_use("ring", 200e6) or 0, 0.95 / 2 / 1.01)


def test_damaged_files_are_named(full: Path, capsys: pytest.CaptureFixture) -> None:
    def message() -> str:
        assert main(["--dir", str(full)]) == 2
        [line] = capsys.readouterr().err.splitlines()
        return line

    (full / "end_to_end" / "2+3" / "blueconnect-0" / "record.json").write_text("{}")
    assert "blueconnect-0/record.json: not a run's record" in message()
    shutil.rmtree(full / "end_to_end" / "2+3" / "blueconnect-0")
    put_run(full, "2+3", "another", 0)
    assert "another-0: no run of this study" in message()
    put_cells(full, "3+3", [cell("2+3")])
    assert "3+3.jsonl: has cells of another layout" in message()
    (full / "cells" / "2+2.jsonl").write_text("nothing")
    assert "2+2.jsonl: cannot be read as wirebench collectives" in message()
