"""The committed tables, the page and the documents are what the records give; a change of any of them is found."""

import html
import re
import shutil
from pathlib import Path

import pytest

from papers.runner import RESULTS, ROOT
from papers.study import Study
from papers.webpage import committed, content, readme, render, reproduce
from papers.webpage.content import Section


@pytest.fixture(scope="module")
def sections() -> list[Section]:
    """Made once: it takes ten seconds."""
    return content.gather()


@pytest.fixture
def gathered(sections: list[Section], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "gather", lambda: sections)


@pytest.mark.slow
@pytest.mark.usefixtures("gathered")
def test_what_is_committed_is_what_the_records_give() -> None:
    assert committed.drifts(ROOT, RESULTS) == []


@pytest.mark.slow
def test_every_claim_of_every_study_has_a_verdict_and_a_way_to_it(sections: list[Section]) -> None:
    judged = [each for section in sections for each in section.claims]
    assert len(judged) > 50 and all(each.findings for each in judged)
    for each in judged:
        if each.state == "not run here":
            ways = each.claim.command or each.claim.cluster
            assert (each.verdict.why and ways) or each.claim.not_run == "", each.claim.id


def test_the_papers_rows_lead_to_files_that_are_there() -> None:
    file = ROOT / reproduce.FILE
    text = file.read_text(encoding="utf-8")
    links = set(re.findall(r"\]\(([^)#]+)", text))
    assert len(links) > 40 and [link for link in links if not (file.parent / link).exists()] == []
    claims = [
        claim.text
        for name in ("flexreduce", "gs_sgd", "iwp", "mg_wfbp")
        for claim in Study(name).published.claims.values()
    ]
    assert all(f"| {text_of_claim} |" in text for text_of_claim in claims)


def test_the_page_leads_to_files_that_are_there() -> None:
    page = (RESULTS / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 6e6
    links = set(re.findall(r'href="([^"#]+)', page))
    missing = [link for link in links if not link.startswith("http") and not (RESULTS / html.unescape(link)).exists()]
    assert len(links) > 100 and missing == []


@pytest.mark.slow
def test_a_figure_of_collectives_is_held_against_its_cells(tmp_path: Path) -> None:
    committed_there, there = RESULTS / "cpu-2core/collectives", tmp_path / "cpu-2core/collectives"
    there.mkdir(parents=True)
    names = ("2+3-predicted.jsonl", "busbw-2+3-predicted.png", "latency-2+3-predicted.png")
    for name in names:
        shutil.copy(committed_there / name, there)
    assert committed.of_benchmarks(tmp_path) == []
    cells = there / names[0]
    text = cells.read_text()
    cells.write_text(re.sub(r'"seconds": \[[\d.e-]+', '"seconds": [9.0', text, count=1))
    assert [Path(line.partition(": ")[0]).name for line in committed.of_benchmarks(tmp_path)] == list(names[1:])
    cells.unlink()
    assert len(committed.of_benchmarks(tmp_path)) == 2, "a figure without cells shows nothing that was measured"


@pytest.mark.slow
@pytest.mark.usefixtures("gathered")
def test_a_page_or_readme_of_other_records_is_named(tmp_path: Path, sections: list[Section]) -> None:
    page, rows, guide = (tmp_path / name for name in ("results/report.html", reproduce.FILE, readme.FILE))
    for path in (page, rows):
        path.parent.mkdir()
    guide.write_text((ROOT / readme.FILE).read_text().replace("| - |", "| 9 |", 1))
    rows.write_text(reproduce.text(sections, rows).replace("reproduced", "proved", 1))
    render.write([section for section in sections if section.is_paper], page)
    verdicts = page.parent / "verdicts.png"
    verdicts.write_bytes((RESULTS / "verdicts.png").read_bytes())
    found = committed.drifts(tmp_path, page.parent)
    assert [line.partition(": ")[0] for line in found] == [str(page), str(guide), str(rows)]
    verdicts.write_bytes((RESULTS / "gs-sgd/fig5.png").read_bytes())
    assert committed.drifts(tmp_path, page.parent)[1].startswith(f"{verdicts}: is not the figure of its records")
    # The documents are about the committed results alone, not about somebody's own.
    elsewhere = [line.partition(": ")[0] for line in committed.drifts(tmp_path, tmp_path / "other")]
    assert [str(tmp_path / "other" / name) for name in ("report.html", "verdicts.png")] == elsewhere
    rows.write_text(reproduce.text(sections, rows))
    assert not any(line.startswith(str(rows)) for line in committed.drifts(tmp_path, page.parent))
    page.unlink()
    assert committed.drifts(tmp_path, page.parent)[0].startswith(f"{page}: is not the page of its records")
