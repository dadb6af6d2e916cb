"""The site as a reader has it: built as `make site` does, and read in a browser from its files, without a network."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from papers.runner import ROOT
from papers.study import available

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium"),
]

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
HEIGHT = 900


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Warnings are errors, such as a link that leads nowhere."""
    pytest.importorskip("material", reason="needs Material for MkDocs: make setup")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright for Python: make setup")
    with sync_api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"), executable_path=BROWSER, args=ARGUMENTS, color_scheme="light"
        )
        yield context
        context.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that keeps what the browser complains of, and what it asks of a network."""
    found = browser.new_page()
    found.complaints = []
    found.on("console", lambda said: said.type == "error" and found.complaints.append(said.text))
    found.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.on("request", lambda asked: asked.url.startswith("http") and found.complaints.append(asked.url))
    yield found
    found.close()


def read(page: Any, file: Path, width: int = 1440) -> None:
    """Open the file, and wait until its charts are drawn."""
    page.set_viewport_size({"width": width, "height": HEIGHT})
    page.goto(file.as_uri())
    page.wait_for_function("!document.querySelector('.chart') || document.body.dataset.drawn")


@pytest.mark.parametrize("width", [390, 1440])
def test_every_page_shows_what_it_has(width: int, site: Path, page: Any) -> None:
    faults, charts, tables = [], 0, 0
    probe = Path(__file__).with_name("site.js").read_text(encoding="utf-8")
    files = sorted(set(site.rglob("*.html")) - {site / "404.html"})  # a server's, whose addresses begin at the root
    for file in files:
        read(page, file, width)
        page.evaluate(probe)
        name = str(file.relative_to(site))
        faults += [f"{name}: {said}" for said in (*page.evaluate(f"faults({width})"), *page.complaints)]
        page.complaints.clear()
        charts += page.locator(".chart").count()
        tables += page.locator("table.rows").count()
    assert faults == []
    assert len(files) > len(available()) + 50 and charts > 50 and tables > 100


@pytest.mark.parametrize("width", [390, 1440])
def test_claims_are_filtered_by_study_author_verdict_and_words(width: int, site: Path, page: Any) -> None:
    read(page, site / "claims.html", width)
    rows = page.locator(".claims tbody tr")
    every = rows.count()
    page.get_by_label("verdict", exact=True).select_option("reproduced")
    reproduced = rows.count()
    assert {cell.strip() for cell in rows.locator("td:nth-child(6)").all_inner_texts()} <= {
        "reproduced",
        "verdict: reproduced",
    }
    page.get_by_label("study", exact=True).select_option("mg_wfbp")
    page.get_by_label("of", exact=True).select_option("a paper")
    assert 0 < rows.count() < reproduced < every
    assert page.locator(".claims .info").inner_text() == f"{rows.count()} of {every}"
    for name in ("verdict", "study", "of"):
        page.get_by_label(name, exact=True).select_option("")
    assert rows.count() == every
    page.get_by_placeholder("filter the rows").fill("PowerSGD")
    assert 0 < rows.count() < every
    assert all("powersgd" in text.lower() for text in rows.all_text_contents())


def test_search_finds_a_word_of_a_table_and_leads_there(site: Path, page: Any) -> None:
    read(page, site / "index.html")
    page.locator(".md-search__input").fill("muloco")
    found = page.locator(".md-search-result__link").first
    found.wait_for()
    found.click()
    page.wait_for_load_state()
    assert "muloco" in page.locator(".md-content").inner_text().lower()
    assert page.complaints == []


def test_a_dark_page_has_charts_for_a_dark_ground(site: Path, page: Any) -> None:
    read(page, site / "results/flexreduce/table.html")
    colours = "[...document.querySelectorAll('.chart .role-axis-label text')].map((each) => each.getAttribute('fill'))"
    light = set(page.evaluate(colours))
    page.locator("label[for=__palette_1]").click()
    page.wait_for_function("document.body.dataset.drawn === 'slate'")
    dark = set(page.evaluate(colours))
    assert light and dark and not light & dark
    assert page.complaints == []
