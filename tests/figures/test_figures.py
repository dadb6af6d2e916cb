"""Figures: labels that do not overlap, one colour a name, axes, and files that are the same for the same figure."""

import io
import itertools
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import vl_convert
from PIL import Image

from papers.page import Page
from tests import charts
from wirebench import collectives, compressors, schedulers
from wirebench.errors import UserError
from wirebench.figures import colours, files
from wirebench.figures.bars import Bar, Look, stacked
from wirebench.figures.curves import Curve, curves
from wirebench.figures.labels import BROAD, GAP, apart
from wirebench.figures.smaller import smaller
from wirebench.figures.style import Axis, Figure, Panel, around, finished, grid, log_values, panels_of, wrapped


def crowded(count: int, log: bool = False) -> Figure:
    """A figure of so many curves."""
    return finished(panel(count, log))


def panel(count: int, log: bool = False) -> Panel:
    """So many curves that end in nearly one point."""
    lines = [Curve(f"method {n}", colours.BLUE, [1, 2], [1.0, 90 + n / 10], [1, 89], [2, 95]) for n in range(count)]
    up = around("time, ms", [value for line in lines for value in line.up], log=log)
    return curves(lines, around("workers", [1, 2]), up, "Crowded", "simulated")


def test_labels_lie_as_near_to_their_curves_as_the_others_allow() -> None:
    assert apart([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert apart([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert apart([0.2, 0.5, 0.51, 0.52], 0.1) == pytest.approx([0.2, 0.41, 0.51, 0.61])
    assert apart([], 0.1) == []
    assert apart([0.98, 0.99, 1.0], 0.1, 0.0, 1.0) == pytest.approx([0.8, 0.9, 1.0]), "the panel's end is theirs"
    assert apart([0.0, 0.0], 0.1, 0.0, 1.0) == pytest.approx([0.0, 0.1])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("count", [1, 6, 40])
def test_no_two_names_are_nearer_than_a_line_of_text(count: int, log: bool) -> None:
    figure = crowded(count, log)
    spec = figure.to_dict()
    low, high = spec["layer"][0]["encoding"]["y"]["scale"]["domain"]
    up, height = Axis("", (low, high), log=log), spec["height"]
    places = [up.share(row["place"]) * height for row in charts.of(figure, "text")]
    assert len(places) == count
    assert all(later - earlier >= GAP - 1e-6 for earlier, later in itertools.pairwise(places))
    assert min(places) > -1e-6 and max(places) < height + 1e-6, "none is above or below its panel"
    charts.check(figure)


def test_the_table_names_what_there_is_and_no_family_has_a_colour_twice() -> None:
    """A plugin that is new needs no row: it gets a colour of its own name."""
    named = {name for methods in colours.FAMILIES.values() for name in methods if not name.startswith("oracle ")}
    assert len(named) == sum(map(len, colours.FAMILIES.values())) - 2, "no method is in two families"
    assert named <= set(compressors.available())
    present = {name: colour for name, colour in colours.SCHEDULES.items() if name not in schedulers.PLUGINS.aliases}
    assert present.keys() <= set(schedulers.available())
    assert colours.COLLECTIVES.keys() <= set(collectives.available())
    for table in (*colours.FAMILIES.values(), present, colours.COLLECTIVES, colours.PARTS):
        assert len(set(table.values())) == len(table)


def test_a_variant_has_its_methods_colour_and_another_dash() -> None:
    labels = ["gs_sgd", "gs_sgd literal", "gs_sgd reseed=false", "sketched_sgd", "gs_sgd literal k=10000"]
    mine = [label for label in labels if label.startswith("gs_sgd")]
    dashes = colours.dashes(labels)
    assert {colours.method(label) for label in mine} == {colours.BLUE} != {colours.method("sketched_sgd")}
    assert len({tuple(dashes[label]) for label in mine}) == len(mine)
    assert dashes == colours.dashes(labels[::-1]) and dashes["gs_sgd"] == dashes["sketched_sgd"] == (1, 0)
    assert colours.base("dense, one message") == "dense" and colours.base("oracle HEAVYMIX") == "oracle HEAVYMIX"
    assert colours.schedule("dear bucket_cap_mb=4") == colours.SCHEDULES["dear"]
    assert colours.method("mine") == colours.method("mine fast") and colours.family("mine") == colours.OTHER


def test_text_is_read_on_white_and_on_a_dark_page() -> None:
    for colour in {
        *colours.SCHEDULES.values(),
        *(tone for table in colours.FAMILIES.values() for tone in table.values()),
    }:
        assert colours.contrast(colours.text(colour), "#FFFFFF") >= colours.TEXT_CONTRAST
        for shown in (colour, colours.text(colour)):
            assert colours.contrast(colours.ON_DARK[shown], colours.DARK) >= colours.TEXT_CONTRAST
    # A page that is dark already needs no change.
    assert all(colours.ON_DARK.get(tone, tone) == tone for tone in colours.ON_DARK.values())


def test_ticks_of_a_logarithmic_axis_are_plain_numbers() -> None:
    assert log_values(9, 3500) == [10, 30, 100, 300, 1000, 3000]
    assert log_values(1, 1e6) == [1, 10, 100, 1e3, 1e4, 1e5, 1e6]
    assert log_values(150, 1900) == [200, 300, 500, 1000]
    assert len(log_values(100, 190)) >= 4


@pytest.mark.parametrize("log", [False, True])
def test_ticks_are_drawn_as_they_are(log: bool, tmp_path: Path) -> None:
    """d3 rounds them to the distance between them where a format does not say how many digits there are."""
    nodes = [4, 8, 16, 32, 64]
    line = Curve("ring", colours.BLUE, nodes, [1000.0, 1234.0, 1500.0, 1700.0, 2000.0])
    across, up = around("nodes", nodes, log=log, values=nodes), around("time, ms", [0, 2000])
    drawn = files.save(finished(curves([line], across, up, "Ticks")), tmp_path / "ticks.svg").read_text()
    assert all(f">{node}<" in drawn for node in nodes) and ">1,500<" in drawn


def test_an_axis_knows_where_its_values_are() -> None:
    for axis in (around("ms", [3, 70]), around("ms", [3, 70], log=True), around("ms", [3, 70], zero=False)):
        assert axis.value(axis.share(40.0)) == pytest.approx(40)
        assert 0 <= axis.share(3) < axis.share(70) < 1
    assert around("ms", []).ends[0] < around("ms", []).ends[1], "also without a value"


def test_names_are_broken_into_lines_and_numbers_stay_with_their_units() -> None:
    name = "gs_sgd momentum=0 optimizer.momentum=0.9"
    assert wrapped(name, BROAD) == ["gs_sgd momentum=0", "optimizer.momentum=0.9"]
    assert wrapped("links of 100 Mbit/s", 14) == ["links of", "100\xa0Mbit/s"]


def test_words_at_the_end_of_a_bar_do_not_cross_the_line_of_another() -> None:
    bars = [
        Bar("short", {"part": 1.0}, words="1"),
        Bar("near", {"part": 9.5}, words="9.5"),
        Bar("long", {"part": 40.0}),
    ]
    look = Look({"part": colours.BLUE}, line=(10.0, "dense"))
    figure = finished(stacked(bars, around("time, ms", [0, 40]), look, "Bars"))
    at = {row["name"]: row["x"] for row in charts.of(figure, "text") if "name" in row}
    assert at == {"short": 1.0, "near": 10.0}
    charts.check(figure)


@pytest.mark.slow
def test_a_panel_of_a_grid_is_a_figure_of_its_own(tmp_path: Path) -> None:
    both = grid([panel(2), panel(3)], "Both", "simulated", 2, 800)
    charts.check(both)
    assert [charts.titles(panel) for panel in panels_of(both)] == [["Crowded"], ["Crowded"]]
    assert files.save(panels_of(both)[1], tmp_path / "one.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    for kind in (".png", ".svg"):
        first, second = (files.save(crowded(3), tmp_path / name / f"figure{kind}").read_bytes() for name in "ab")
        assert first == second and len(first) > 2_000
    assert files.save(crowded(3), tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_an_svg_says_which_chart_it_shows(tmp_path: Path) -> None:
    path = files.save(crowded(3), tmp_path / "figure.svg")
    assert files.shows(path, crowded(3)) and not files.shows(path, crowded(4))
    assert not files.shows(tmp_path / "none.svg", crowded(3))
    drawn = path.read_text()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    path.write_text(drawn.replace("#222", "#223", 1) if "#222" in drawn else drawn.replace("0", "1", 1))
    assert not files.shows(path, crowded(3))


@pytest.mark.parametrize(("count", "panels"), [(3, 1), (40, 1), (3, 2)])
def test_a_file_s_svg_is_smaller_and_shows_the_same_picture(count: int, panels: int) -> None:
    figure = crowded(count) if panels == 1 else grid([panel(count)] * panels, "Both", "simulated", 2, 800)
    drawn = vl_convert.vegalite_to_svg(json.dumps(files.specification(figure)), vl_version=files.VEGA_LITE)
    less = smaller(drawn)
    assert len(less) < len(drawn) / 2 / panels
    assert less.count("<title") == drawn.count("<title") and 'aria-label="X-axis titled' in less
    one, other = (
        np.asarray(Image.open(io.BytesIO(vl_convert.svg_to_png(each))).convert("L"), int) for each in (drawn, less)
    )
    # An edge that moves by a twentieth of a pixel may change how a renderer smooths it.
    difference = np.abs(one - other)
    assert (difference > 100).mean() < 1e-4 and (difference > 8).mean() < 5e-3


def test_a_table_whose_figure_is_another_is_named(tmp_path: Path) -> None:
    page = Page(tmp_path, "text\n", {"figure.svg": crowded(3)})
    page.write()
    assert page.drift() is None
    files.save(crowded(4), tmp_path / "figure.svg")
    assert page.drift() == f"{tmp_path / 'figure.svg'}: is not the figure of its records"
    gone = Page(tmp_path, "text\n", {"figure.svg": None})
    assert gone.drift() is not None
    gone.write()
    assert gone.drift() is None


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"figure.doc: cannot be written: a figure is one of .png, .svg, .pdf"):
        files.save(crowded(1), tmp_path / "figure.doc")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/figure.svg: cannot be written: "):
        files.save(crowded(1), tmp_path / "file" / "figure.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
