"""wirebench topology: the drawing, the price table, the figure, and one line for mistakes."""

import pytest

from tests import charts
from tests.cli.verbs import ROOT, run
from wirebench.inspect import tree
from wirebench.topology.topology_file import load
from wirebench.topology.tree import Topology

UNEVEN = ROOT / "configs" / "topologies" / "2+3_1gbit.toml"


def topology(*arguments):
    return run("topology", *arguments)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("layout", "rank_boxes"), [("1", 1), ("(2+2)+3", 7), ("8+8+8+8", 4)])
def test_a_figure_has_a_box_for_every_node_and_a_line_to_each(layout, rank_boxes):
    found = tree.figure(Topology.parse(layout), "a note")
    charts.check(found)
    boxes = charts.of(found, "rect")
    assert len(boxes) == rank_boxes + len(Topology.parse(layout).branches)
    assert charts.note(found) == "a note" and charts.titles(found)[0].startswith(f"{layout}: ")
    # Boxes of one level do not touch.
    pixels = [(box["y"], box["x"] * tree.UNIT, box["broad"]) for box in boxes]
    for y, x, broad in pixels:
        others = [(other, wide) for level, other, wide in pixels if level == y and other != x]
        assert all(abs(other - x) > (wide + broad) / 2 for other, wide in others)


def test_a_figure_says_how_fast_links_are():
    said = {box["said"] for box in charts.of(tree.figure(load(UNEVEN)), "rect")}
    assert {"switch; links: 1 Gbit/s, 150 us", "machine 0; links: 20 Gbit/s, 20 us", "0", "4"} <= said


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("a.svg", b"<svg"), ("a.pdf", b"%PDF")])
def test_a_figure_is_written(name, begin, tmp_path):
    assert topology("2+3", "--figure", tmp_path / name).returncode == 0
    assert (tmp_path / name).read_bytes().startswith(begin)
