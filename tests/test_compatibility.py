"""The matrix of what goes with what: as the page has it, and as the parts that can be checked by hand say."""

from pathlib import Path

import compressors
from scripts.compatibility import HEAD, main, row

PAGE = Path(__file__).parent.parent / "docs/compatibility.md"


def line(name: str) -> dict[str, str]:
    return dict(zip(HEAD, row(name), strict=True))


def test_the_page_is_up_to_date():
    assert main(["--check", str(PAGE)]) == 0


def test_every_compressor_has_its_line():
    lines = [text.split("|")[1].strip() for text in PAGE.read_text().splitlines() if text.startswith("| `")]
    assert lines == [f"`{name}`" for name in compressors.available()]


def test_lines_by_hand():
    dense = line("none")
    assert (dense["requests of a step"], dense["summable"], dense["state"]) == ("Sum", "yes", "-")
    assert dense["collectives that change its result"] == "none"
    merging = line("gtopk")
    assert (merging["requests of a step"], merging["summable"]) == ("Merge", "no")
    assert "tree" in merging["collectives that change its result"]
    assert merging["what is not sent"] == "kept in part"
    corrected = line("dgc")
    assert (corrected["momentum"], corrected["state"]) == ("its own", "2 d")
    assert line("fetch_sgd")["schedulers that cut"].startswith("refused: ")


def test_a_page_without_markers_is_one_line(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    assert main(["--check", str(page)]) == 2
    assert "needs the line" in capsys.readouterr().err
