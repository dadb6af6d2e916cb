"""The committed tables and documents, and what the package ships, are what the records give."""

import json
import re
import shutil
from pathlib import Path

import pytest

from papers import index, shipped
from papers.runner import RESULTS, ROOT
from papers.site import committed, content, readme, reproduce
from papers.site.content import Section
from papers.study import Study
from tests.flexreduce import cell
from wirebench.errors import UserError
from wirebench.record import collective_results
from wirebench.utils import user_files


@pytest.fixture(scope="module")
def sections() -> list[Section]:
    """Made once: it takes ten seconds."""
    return content.gather()


@pytest.fixture
def gathered(sections: list[Section], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "gather", lambda: sections)


@pytest.mark.weekly
@pytest.mark.usefixtures("gathered")
def test_what_is_committed_is_what_the_records_give() -> None:
    assert committed.drifts(ROOT, RESULTS) == []


NO_METHOD = ("dynamiq",)
"""Claims about a method that is none of ours, so that no command runs it."""


@pytest.mark.weekly
def test_every_claim_of_every_study_has_a_verdict_and_a_way_to_it(sections: list[Section]) -> None:
    judged = [each for section in sections for each in section.claims]
    assert len(judged) > 50 and all(each.findings for each in judged)
    for each in judged:
        if each.state == "not run here":
            ways = each.claim.command or each.claim.cluster or each.claim.id in NO_METHOD
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


@pytest.mark.weekly
def test_a_figure_of_collectives_is_held_against_its_cells(tmp_path: Path) -> None:
    committed_there, there = RESULTS / "cpu-2core/collectives", tmp_path / "cpu-2core/collectives"
    there.mkdir(parents=True)
    names = ("2+3-predicted.jsonl", "busbw-2+3-predicted.svg", "latency-2+3-predicted.svg")
    for name in names:
        shutil.copy(committed_there / name, there)
    assert committed.of_benchmarks(tmp_path) == []
    cells = there / names[0]
    text = cells.read_text()
    cells.write_text(re.sub(r'"seconds":\[[\d.e-]+', '"seconds":[9.0', text, count=1))
    assert [Path(line.partition(": ")[0]).name for line in committed.of_benchmarks(tmp_path)] == list(names[1:])
    cells.unlink()
    assert len(committed.of_benchmarks(tmp_path)) == 2, "a figure without cells shows nothing that was measured"


def test_a_figure_of_a_wire_format_is_drawn_of_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "cpu-2core/collectives"
    cells = [cell("2+2"), cell("2+2", wire="int8", reproduced=True)]
    collective_results.save(folder / "2+2-again.jsonl", {}, cells)
    known = {"busbw-2+2-again-int8.svg": True, "latency-2+2-again.svg": True, "latency-2+2-again-int4.svg": False}
    for name in known:
        (folder / name).touch()
    assert {path.name: bool(figure) for path, figure in committed.benchmark_figures(tmp_path)} == known


@pytest.mark.weekly
@pytest.mark.usefixtures("gathered")
def test_documents_of_other_records_are_named(tmp_path: Path, sections: list[Section]) -> None:
    verdicts, rows, guide = (tmp_path / name for name in ("results/verdicts.svg", reproduce.FILE, readme.FILE))
    for path in (verdicts, rows):
        path.parent.mkdir()
    guide.write_text((ROOT / readme.FILE).read_text().replace("| - |", "| 9 |", 1))
    rows.write_text(reproduce.text(sections, rows).replace("reproduced", "proved", 1))
    verdicts.write_bytes((RESULTS / "verdicts.svg").read_bytes())
    found = committed.drifts(tmp_path, verdicts.parent)
    assert [line.partition(": ")[0] for line in found] == [str(guide), str(rows)]
    verdicts.write_bytes((RESULTS / "gs-sgd/fig5.svg").read_bytes())
    assert committed.drifts(tmp_path, verdicts.parent)[0].startswith(f"{verdicts}: is not the figure of its records")
    # The documents are about the committed results alone, not about somebody's own.
    elsewhere = [line.partition(": ")[0] for line in committed.drifts(tmp_path, tmp_path / "other")]
    assert elsewhere == [str(tmp_path / "other/verdicts.svg")]
    rows.write_text(reproduce.text(sections, rows))
    assert not any(line.startswith(str(rows)) for line in committed.drifts(tmp_path, verdicts.parent))


def test_the_package_ships_what_the_records_give() -> None:
    assert shipped.drifts() == []
    for path in shipped.files():
        first = json.loads(user_files.read(path).splitlines()[0])
        assert first[shipped.PUBLISHED].keys() == {"commit", "utc"}


def test_an_index_that_is_damaged_is_not_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report writes it again."""
    file = tmp_path / "index.csv.gz"
    monkeypatch.setattr(index, "FILE", file)
    monkeypatch.setattr(index, "text", lambda: "run\n" * 9)
    user_files.write(file, "run\n" * 9)
    assert index.is_current()
    file.write_bytes(file.read_bytes()[:-9])
    assert not index.is_current()


def test_a_file_is_written_where_its_records_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lines = tmp_path / "data" / "rates.jsonl.gz", [{"of": "a"}, {"cell": 1.5}]
    monkeypatch.setattr(shipped, "files", lambda: {path: lambda: lines})
    monkeypatch.setattr(shipped, "git", lambda: {"commit": "abc", "dirty": True})
    with pytest.raises(UserError, match="without changes"):
        shipped.publish()
    monkeypatch.setattr(shipped, "git", lambda: {"commit": "abc", "dirty": False})
    assert [line.partition(":")[0] for line in shipped.drifts()] == [str(path)]
    assert shipped.publish() == [path] and shipped.drifts() == []
    before = path.read_bytes()
    assert shipped.publish() == [] and path.read_bytes() == before, "the time stays that of the last change"
    lines.append({"cell": 2.5})
    assert len(shipped.drifts()) == 1 and shipped.publish() == [path]
    path.write_bytes(path.read_bytes()[:-9])
    assert len(shipped.drifts()) == 1 and shipped.publish() == [path]
    assert [json.loads(line).get("cell") for line in user_files.read(path).splitlines()] == [None, 1.5, 2.5]
