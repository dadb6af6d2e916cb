"""The committed page in a real browser, as wide as a desk's screen and as narrow as a telephone's."""

import html
import json
import re
import shutil
import subprocess
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from papers.runner import RESULTS
from wirebench.figures import colours

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CATCH = """<script>window.seenErrors = [];
addEventListener("error", (event) => seenErrors.push(event.message));
console.error = (...words) => seenErrors.push(words.join(" "));</script>"""
PATIENCE = 60_000
"""Milliseconds of the browser's own clock."""


def look(page: Path, width: int, folder: Path) -> dict[str, Any]:
    """What tests/webpage/probe.js saw of the page."""
    whole = page.read_text(encoding="utf-8")
    (folder / "page.html").write_text(whole.replace("<head>", "<head>" + CATCH, 1), encoding="utf-8")
    probe = Path(__file__).with_name("probe.js").read_text(encoding="utf-8")
    frame = f'<iframe style="width: {width}px; height: 900px; border: 0" src="page.html"></iframe>'
    outer = folder / "outer.html"
    outer.write_text(f'<!doctype html><body>{frame}<pre id="seen"></pre><script>{probe}</script>', encoding="utf-8")
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
               f"--window-size={max(width, 800)},1000", f"--virtual-time-budget={PATIENCE}", "--dump-dom",
               f"--user-data-dir={folder / 'profile'}", outer.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    [text] = re.findall(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL) or [""]
    assert text, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(html.unescape(text))
    return seen


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1440])
def test_the_committed_page_in_a_browser(width: int, tmp_path: Path) -> None:
    seen = look(RESULTS / "report.html", width, tmp_path)
    assert "failed" not in seen, seen
    assert seen["errors"] == [] and seen["empty"] == [] and seen["charts"] >= 10
    assert seen["overlaps"] == [] and seen["cut"] == [] and seen["clipped"] == []
    assert seen["width"] <= width
    assert seen["tables"] > 10 and seen["unsorted"] == []
    assert seen["filtered"] > 0 and seen["redrawn"] == seen["charts"]
    assert seen["mute"] == []
    # Where the claims' headings are hidden, the control sorts.
    assert seen["sorted"] == {"control": width < 700, "headings": width > 700, "sorts": True}
    assert seen["unasked"] == [] and seen["printed"] == {"empty": [], "closed": 0, "dark": 0, "restored": True}


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium")
def test_on_paper_every_chart_has_its_colours(tmp_path: Path) -> None:
    """The page as the browser prints it by itself, which waits for no drawing: each chart has a mark there."""
    page = RESULTS / "report.html"
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--virtual-time-budget={PATIENCE}",
               f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={tmp_path / 'page.pdf'}",
               page.as_uri()]  # fmt: skip
    subprocess.run(command, capture_output=True, timeout=240, check=True)
    paper = (tmp_path / "page.pdf").read_bytes()
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", paper, re.DOTALL)
    drawn = b"".join(zlib.decompressobj().decompress(each) for each in streams if each[:1] == b"x")
    charts = re.findall(r'<script type="application/json">(.*?)</script>', page.read_text(encoding="utf-8"))
    chosen = Counter(
        "#" + "".join(f"{round(255 * float(share)):02X}" for share in shares)
        for shares in re.findall(rb"([\d.]+) ([\d.]+) ([\d.]+) (?:rg|RG)\b", drawn)
    )
    for colour in (colours.BLUE, colours.VERMILLION, colours.GREEN):
        assert chosen[colour] >= sum(colour in chart for chart in charts) > 0, colour
