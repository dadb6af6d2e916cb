"""What the site says of studies follows from their findings."""

import json
import re
from dataclasses import replace
from pathlib import Path

import altair as alt
import pytest

from papers.claim import Claim, Verdict
from papers.findings import Finding, with_unrun
from papers.page import Page
from papers.published import Excluded, Published
from papers.site import pages, readme
from papers.site.content import JudgedClaim, Section, counted
from tests.charts import note
from tests.cli.test_show import RECORD
from tests.record.gpus import RANK_0, all_ranks

SOURCE = {"authors": "A. Author", "title": "On wires", "published": "2026"}


def claim(number: float = 2.0, name: str = "ratio", not_run: str = "", command: str = "") -> Claim:
    known = Claim(name, "ours over theirs", "Table I", (number,), "x", "somewhere", 0.1, no_effect=1.0)
    return replace(known, not_run=not_run, command=command)


def section(folder: Path, *claims: Claim) -> Section:
    """A study whose first claim was measured as 2, with one table."""
    records = folder / "runs" / "mine-0"
    records.mkdir(parents=True, exist_ok=True)
    findings = [Finding(claims[0], "2.0x", claims[0].judge(2.0), records=(records,))]
    others = (Excluded("CUDA 11.2", "Table I", "what was installed"),)
    published = Published("what is measured", SOURCE, {each.id: each for each in claims}, {}, {}, others)
    return Section("mine", published, with_unrun(findings, claims), [Page(folder / "runs", "# Rows\n")])


def row(sections: list[Section], place: int) -> list[str]:
    """The cells of a claim."""
    lines = [line for line in pages.claims(sections).splitlines() if line.startswith("| [")]
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", lines[place])[1:-1]]


def test_every_claim_has_its_verdict_and_a_planted_number_changes_it(tmp_path: Path) -> None:
    unrun = claim(name="far", not_run="96 GPUs", command="horovodrun -np 96 python train.py")
    mine, planted = section(tmp_path, claim(), unrun), section(tmp_path, claim(number=4.0), unrun)
    assert [row([mine], place)[5] for place in (0, 1)] == ["reproduced", "not run here"]
    assert row([planted], 0)[5] == "direction reproduced"
    assert counted([mine, planted]) == {"reproduced": (1, 0), "direction reproduced": (1, 0), "not run here": (2, 0)}
    goal = section(tmp_path, replace(claim(), where="this suite's goal"), unrun)
    assert counted([mine, goal], papers=True) == {"reproduced": (1, 0), "not run here": (2, 0)}
    assert counted([mine, goal], papers=False) == {"reproduced": (1, 0)}
    assert [row([each], 0)[1] for each in (mine, goal)] == ["a paper", "Wirebench"]
    assert "horovodrun -np 96 python train.py" in row([mine], 1)[4]
    assert "[runs/mine-0](" in row([mine], 0)[6]


def test_a_verdict_from_records_that_break_a_rule_says_so_wherever_it_is_shown_or_counted(tmp_path: Path) -> None:
    mine = section(tmp_path, claim())
    broken = replace(mine, findings=[replace(each, rules=("turns (2)",)) for each in mine.findings])
    assert counted([mine, broken])["reproduced"] == (2, 1)
    assert "marked by:" not in pages.claims([mine])
    assert "marked by: turns (2)" in row([broken], 0)[4]
    assert "1 reproduced (of these 1 marked by a rule)" in pages.claims([broken])
    (tmp_path / "README.md").write_text(f"{readme.BEGIN}\n{readme.END}\n")
    assert "| 1 (1) |" in readme.text([broken], tmp_path / "README.md")
    assert "1 of them marked by a rule" in note(readme.verdicts([broken]))


def test_a_verdict_is_not_charged_with_the_records_of_settings_that_it_does_not_rest_on(tmp_path: Path) -> None:
    [whole] = section(tmp_path, claim()).findings
    missed = replace(whole, about="a", verdict=Verdict("not reproduced", 1.0))
    open_ = replace(whole, about="b", verdict=Verdict("not decidable", 1.0), rules=("seeds (1)",))
    both = JudgedClaim(whole.claim, [missed, open_])
    assert (both.state, both.rules) == ("not reproduced", ())
    assert JudgedClaim(whole.claim, [open_]).rules == ("seeds (1)",)


def test_records_that_are_excepted_flagged_or_of_gpus_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    empty = pages.records([])
    assert "No run is flagged." in empty and "There is none." in empty
    excuse = '[[exceptions]]\nfiles = ["gs-sgd/*"]\nrules = ["load"]\nwhy = "two at a time"\n'
    (tmp_path / "exceptions.toml").write_text(excuse)
    for name, gpu in {"h200/dense": all_ranks(), "h200/cpu": None, "runs/mine": RANK_0}.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "record.json").write_text(json.dumps({**RECORD, "gpu": gpu}))
    differing = (tmp_path / "h200/dense", "converges faster than the 3 reference runs")
    monkeypatch.setattr(pages, "flagged", lambda sections: [differing])
    text = pages.records([])
    assert "gs-sgd/*: load: two at a time" in text
    assert re.search(r"- \[h200/dense\]\(.*\): converges faster than the 3 reference runs", text)
    [gpus] = [line for line in text.splitlines() if line.startswith("| h200/")]
    assert gpus.startswith("| h200/dense |")
    assert "| 2 x NVIDIA H200: 800 W, 56 % busy, 16.99 GB | 1.5 | 240 | 0.40 ms, 4.9" in gpus


def test_a_study_names_its_source_tables_and_what_is_no_claim(tmp_path: Path) -> None:
    mine = section(tmp_path, claim())
    text = pages.study(mine)
    assert text.startswith("# On wires\n") and "A. Author, 2026." in text
    assert re.search(r"- \[Rows\]\(.*runs/table.md\)", text) and "CUDA 11.2 (Table I): what was installed." in text
    assert "No table: nothing was measured" in pages.study(replace(mine, pages=(), missing="nothing was measured"))


def test_text_in_a_cell_ends_neither_the_cell_nor_the_row(tmp_path: Path) -> None:
    mine = section(tmp_path, replace(claim(), text="a | b\nc"))
    assert row([mine], 0)[2].startswith("a \\| b c<small>") and len(row([mine], 0)) == len(pages.CLAIMS_HEAD)


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--"])
def test_a_chart_cannot_end_its_script(text: str) -> None:
    hooks = pytest.importorskip("papers.site.hooks", reason="needs MkDocs: make setup")
    chart = alt.layer(alt.Chart(alt.Data(values=[{"text": text}])).mark_point())
    html = hooks.html_of(chart, "caption")
    assert html.count("</script>") == 1 and html.count("<!--") == 0
