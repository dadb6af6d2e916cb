"""The page of all studies: what it says follows from findings, it needs no network, and it is the same every time."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import altair as alt
import pytest

from papers.claim import Claim, Verdict
from papers.findings import Finding, with_unrun
from papers.page import Page
from papers.published import Excluded, Published
from papers.webpage import charts, overview, prose, readme, render
from papers.webpage.content import Judged, Section, counted
from tests.charts import note
from tests.cli.test_show import RECORD
from tests.record.gpus import RANK_0, all_ranks

SOURCE = {"authors": "A. Author", "title": "On <b>wires</b>", "published": "2026"}


def claim(number: float = 2.0, name: str = "ratio", not_run: str = "", command: str = "") -> Claim:
    known = Claim(name, "ours over theirs", "Table I", (number,), "x", "somewhere", 0.1, no_effect=1.0)
    return replace(known, not_run=not_run, command=command)


def chart(name: str = "points") -> alt.Chart:
    rows = alt.Data(values=[{"x": 1, "y": 2}, {"x": 2, "y": 3}])
    title = alt.TitleParams(name, subtitle="3 turns")
    return alt.Chart(rows, title=title, name=name).mark_line().encode(x="x:Q", y="y:Q")


def section(folder: Path, *claims: Claim, measured: float | None = 2.0, text: str = "# Rows\n") -> Section:
    """A study whose first claim was measured, with one table and two figures."""
    records = folder / "runs" / "mine-0"
    records.mkdir(parents=True, exist_ok=True)
    first = claims[0]
    findings = [Finding(first, f"{measured}x", first.judge(measured), records=(records,))]
    others = (Excluded("CUDA 11.2", "Table I", "what was installed"),)
    published = Published("what is measured", SOURCE, {each.id: each for each in claims}, {}, {}, others)
    both = alt.hconcat(chart("left"), chart("right"), title="both")
    page = Page(folder / "runs", text, {"one.png": chart(), "two.png": both, "old.png": None})
    return Section("mine", published, with_unrun(findings, claims), [page])


class Reader(HTMLParser):
    """Collects the claims' rows, the links, and what the page would load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.states: dict[str, str] = {}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        if "id" in found:
            self.ids.append(found["id"])
        if "data-study" in found:
            self.states[found["id"]] = found["data-state"]
        if tag == "a":
            self.links.append(found["href"])
        elif "src" in found or tag == "link":
            self.loaded.append(tag)


def read(*sections: Section, beside: Path) -> Reader:
    return Reader(render.html(sections, beside))


@pytest.mark.slow
def test_every_claim_has_its_verdict_and_a_planted_number_changes_it(tmp_path: Path) -> None:
    unrun = claim(name="far", not_run="96 GPUs", command="horovodrun -np 96 python train.py")
    mine = section(tmp_path, claim(), unrun)
    assert read(mine, beside=tmp_path).states == {"claim-mine-ratio": "reproduced", "claim-mine-far": "not run here"}
    planted = section(tmp_path, claim(number=4.0), unrun)
    assert read(planted, beside=tmp_path).states["claim-mine-ratio"] == "direction reproduced"
    assert counted([mine, planted]) == {"reproduced": (1, 0), "direction reproduced": (1, 0), "not run here": (2, 0)}
    goal = section(tmp_path, replace(claim(), where="this suite's goal"), unrun)
    assert counted([mine, goal], papers=True) == {"reproduced": (1, 0), "not run here": (2, 0)}
    assert counted([mine, goal], papers=False) == {"reproduced": (1, 0)}
    html = render.html([mine], tmp_path)
    assert "horovodrun -np 96 python train.py" in html and "CUDA 11.2 (Table I): what was installed." in html


def test_a_verdict_from_records_that_break_a_rule_says_so_wherever_it_is_shown_or_counted(tmp_path: Path) -> None:
    mine = section(tmp_path, claim())
    broken = replace(mine, findings=[replace(each, rules=("turns (2)",)) for each in mine.findings])
    assert counted([mine, broken])["reproduced"] == (2, 1)
    assert "marked by:" not in render.html([mine], tmp_path)
    html = render.html([broken], tmp_path)
    [row] = re.findall(r'<tr id="claim-mine-ratio".*?</tr>', html, re.DOTALL)
    assert "marked by: turns (2)" in row.partition('data-label="verdict"')[2].partition("</td>")[0]
    said = "1 reproduced (of these 1 marked by a rule)"
    assert said in html.partition('class="counts"')[2].partition("</ul>")[0]
    (tmp_path / "README.md").write_text(f"{readme.BEGIN}\n{readme.END}\n")
    assert "| 1 (1) |" in readme.text([broken], tmp_path / "README.md", tmp_path / "report.html")
    assert "1 of them marked by a rule" in note(overview.verdicts([broken]))


def test_a_verdict_is_not_charged_with_the_records_of_settings_that_it_does_not_rest_on(tmp_path: Path) -> None:
    [whole] = section(tmp_path, claim()).findings
    missed = replace(whole, about="a", verdict=Verdict("not reproduced", 1.0))
    open_ = replace(whole, about="b", verdict=Verdict("not decidable", 1.0), rules=("seeds (1)",))
    both = Judged(whole.claim, [missed, open_])
    assert (both.state, both.rules) == ("not reproduced", ())
    assert Judged(whole.claim, [open_]).rules == ("seeds (1)",)


def test_what_is_committed_against_a_rule_is_listed_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    assert "<h2>Exceptions</h2>" not in render.html([], tmp_path)
    excuse = '[[exceptions]]\nfiles = ["gs-sgd/*"]\nrules = ["load"]\nwhy = "two at a time"\n'
    (tmp_path / "exceptions.toml").write_text(excuse)
    assert "gs-sgd/*: load: two at a time" in render.html([], tmp_path)


def test_a_run_that_converges_otherwise_than_its_reference_is_flagged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = section(tmp_path, claim())
    assert "None is." in render.html([mine], tmp_path)
    record = tmp_path / "runs/mine-0/record.json"
    monkeypatch.setattr(render, "flagged", lambda sections: [(record, "converges faster than the 3 reference runs")])
    html = render.html([mine], tmp_path)
    assert '<a href="runs/mine-0/record.json">runs/mine-0</a>: converges faster than the 3 reference runs' in html


def test_claims_lead_to_their_records_wherever_the_page_lies(tmp_path: Path) -> None:
    mine = section(tmp_path, claim())
    assert "runs/mine-0/record.json" in read(mine, beside=tmp_path).links
    assert "../runs/mine-0/record.json" in read(mine, beside=tmp_path / "pages").links


@pytest.mark.slow
def test_it_is_one_file_and_the_same_to_the_byte(tmp_path: Path) -> None:
    mine = section(tmp_path, claim())
    render.write([mine], tmp_path / "a.html")
    render.write([section(tmp_path, claim())], tmp_path / "b.html")
    html = (tmp_path / "a.html").read_bytes()
    assert html == (tmp_path / "b.html").read_bytes() and len(html) < 6e6
    found = Reader(html.decode())
    assert found.loaded == [] and len(set(found.ids)) == len(found.ids)
    anchors = {link[1:] for link in found.links if link.startswith("#")}
    assert anchors <= set(found.ids)


def test_runs_on_gpus_are_listed_with_their_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "RESULTS", tmp_path / "results")
    for name, gpu in {"h200/dense": all_ranks(), "h200/cpu": None, "runs/mine": RANK_0}.items():
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps({**RECORD, "gpu": gpu}))
    html = render.html([], tmp_path)
    rows = re.search(r'<section id="energy">.*?<tbody>(.*?)</tbody>', html, re.DOTALL)
    assert rows is not None and rows[1].count("<tr>") == 1
    assert '<a href="results/h200/dense/record.json">h200/dense</a>' in rows[1]
    assert "<td>2 x NVIDIA H200: 800 W, 56 % busy, 16.99 GB</td><td>1.5</td><td>240</td><td>0.40 ms, 4.9" in rows[1]
    (tmp_path / "results/h200/dense/record.json").unlink()
    assert 'id="energy"' not in render.html([], tmp_path)


def test_text_of_a_table_is_no_html(tmp_path: Path) -> None:
    prose_of = "# Rows\n\nSee [how](../docs/a.md#b) <i>it</i> is.\n\n![x](one.png)\n\n"
    text = prose_of + "| a | b |\n| --- | --- |\n| <u>1</u> | 2 |\n"
    html = prose.html_of(section(tmp_path, claim(), text=text).pages[0], tmp_path)
    assert "<i>" not in html and "<u>" not in html and "<img" not in html
    assert '<h3 id="' in html and '<div class="wide"><table>' in html
    assert f'href="{Path("docs/a.md")}#b"' in html
    assert "<b>wires</b>" not in render.html([section(tmp_path, claim())], tmp_path)


@pytest.mark.parametrize("after", ["", "\n## More\n\ntext\n"])
def test_a_section_of_images_alone_goes(after: str, tmp_path: Path) -> None:
    page = Page(tmp_path, f"# Rows\n\n## Figures\n\n![one](one.png)\n![two](two.png)\n{after}")
    html = prose.html_of(page, tmp_path)
    assert "Figures" not in html and "Rows" in html and ("More" in html) == bool(after)


def test_panels_are_charts_of_their_own_with_their_data(tmp_path: Path) -> None:
    html = render.html([section(tmp_path, claim())], tmp_path)
    specs = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', html)]
    specs = [each for each in specs if each.get("name") or "points" in str(each)]
    assert all("title" not in each for each in specs)
    for spec in specs:
        [rows] = [each.get("values") or spec["datasets"][each["name"]] for each in charts._data(spec)]
        assert rows == [{"x": 1, "y": 2}, {"x": 2, "y": 3}]
    assert "<b>both</b>" in html and "<h6>left</h6>" in html


def test_what_has_no_table_says_why(tmp_path: Path) -> None:
    mine = replace(section(tmp_path, claim()), pages=(), missing="nothing was measured")
    assert "No table: nothing was measured" in render.html([mine], tmp_path)


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--"])
def test_a_chart_cannot_end_its_script(text: str) -> None:
    assert "<" not in charts.script({"text": text}) and json.loads(charts.script({"text": text})) == {"text": text}
