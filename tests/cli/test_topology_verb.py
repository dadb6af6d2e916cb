"""wirebench topology: the drawing, the price table, the figure, and one line for mistakes."""

import pytest

from tests import charts
from tests.cli.verbs import ROOT, run
from wirebench import collectives
from wirebench.costmodel.plan_cost import plan_seconds
from wirebench.inspect import tree
from wirebench.topology.ascii import draw
from wirebench.topology.topology_file import load
from wirebench.topology.tree import Topology

UNEVEN = ROOT / "configs" / "topologies" / "2+3_1gbit.toml"


def topology(*arguments):
    return run("topology", *arguments)


def test_a_layout_is_drawn():
    done = topology("(2+2)+3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "switch            1 switch, 1 machine",
        "+- switch 0       2 machines",
        "|  +- machine 0   ranks 0-1",
        "|  +- machine 1   ranks 2-3",
        "+- machine 2      ranks 4-6",
    ]


def test_collectives_are_priced():
    items = 600_000
    done = topology(UNEVEN, "--collective", "ring", "flexreduce", "native", "--items", items)
    assert (done.returncode, done.stderr) == (0, "")
    cluster = load(UNEVEN)
    assert done.stdout.startswith(draw(cluster))
    assert "nominal, not fitted" in done.stdout and "one sum of 600,000 fp32 items, 2.4 MB" in done.stdout
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[-3:]}
    for name in ("ring", "flexreduce"):
        plan = collectives.build(name).plan(cluster, items)
        assert plan is not None
        assert rows[name][-4:-2] == [f"{1e3 * plan_seconds(plan, cluster, 4):,.2f}", "ms"]
        assert rows[name][:2] == [name, str(plan.rounds)]
    # Two megabytes and a half are one segment.
    assert rows["ring"][-2:] == rows["ring"][-4:-2]
    # Each machine's link carries 2(P-1)/P of the bytes for the ring, 2(M-1)/M for FlexReduce.
    assert rows["ring"][5:7] == ["3.8", "MB"] and rows["flexreduce"][5:7] == ["2.4", "MB"]
    assert rows["native"] == ["the", "engine's", "own", *"-" * 6]


def test_without_speeds_there_are_bytes_but_no_seconds():
    done = topology("4", "--collective", "tree", "--items", "1000")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].split() == ["tree", "tree", "4", "2", "8.0", "kB", "-", "-", "-"]


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["2+x"], "topology: cannot read the layout '2+x'"),
        (["none.toml"], "none.toml: cannot be read: No such file or directory"),
        (["2+3", "--collective", "rign"], "collective.name: no collective 'rign'; did you mean 'ring'?"),
        (["2+3", "--figure", "/none/tree.png"], "--figure: /none/tree.png: cannot be written: "),
        (["2+3", "--figure", "tree.doc"], "--figure: tree.doc: cannot be written: "),
        (["+".join("1" * 65), "--figure", "tree.png"], "--figure: draws 64 machines at most, here are 65"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    done = topology(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"wirebench topology: {message}") and done.stderr.count("\n") == 1


def test_the_number_of_items_is_one():
    done = topology("2+3", "--items", "0")
    assert done.returncode == 2 and "needs a whole number of at least 1, got '0'" in done.stderr


def test_help_tells_how():
    done = topology("--help")
    assert done.returncode == 0 and "examples:" in done.stdout and "flexreduce" in done.stdout
