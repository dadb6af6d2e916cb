"""The matrix of what goes with what: as the page has it, and as the parts that can be checked by hand say."""

from pathlib import Path

import pytest

from tests.cli.verbs import verb
from wirebench import compressors
from wirebench.cli.planning.compat import MARKERS
from wirebench.inspect import compatibility
from wirebench.inspect import refusals as _refusals
from wirebench.inspect.compatibility import HEAD, row

main = verb("compat")

PAGE = Path(__file__).resolve().parents[2] / "docs/compatibility.md"


def line(name: str) -> dict[str, str]:
    return dict(zip(HEAD, row(name), strict=True))


@pytest.mark.slow
def test_the_page_is_up_to_date():
    assert main(["--check", str(PAGE)]) == 0


def test_the_schedulers_table_is_what_their_drivers_answer():
    assert compatibility.drivers() in PAGE.read_text()


def page() -> dict[str, dict[str, str]]:
    """The matrix as the page has it, by compressor."""
    begin, end = MARKERS["matrix"]
    rows = PAGE.read_text().partition(begin)[2].partition(end)[0].strip().splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {each[0].strip("`"): dict(zip(HEAD, each, strict=True)) for each in cells}


def test_every_compressor_has_its_line():
    assert list(page()) == compressors.available()


def test_every_refusal_has_its_line_and_nothing_is_composed():
    settings = {line.split("|")[1].replace("`", "").strip() for line in _refusals.table().splitlines()[2:]}
    assert settings == {*_refusals.REFUSED, _refusals.HOROVOD}
    with pytest.raises(AssertionError, match=r"^not refused: scheduler\.name=wfbp$"):
        _refusals.refusal("scheduler.name=wfbp")


def test_summable_is_what_sums_all_values():
    summable = {name for name, row in page().items() if row["summable"] == "yes"}
    assert summable >= {"none", "fp16", "int8", "terngrad", "powersgd", "iwp"}
    assert not summable & {"topk", "dgc", "gtopk", "oktopk", "qsgd", "signsgd", "onebit", "threshold"}


@pytest.mark.slow
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
