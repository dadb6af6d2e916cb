"""Topology files: what they hold comes back, and what is wrong in them is one line with its key."""

from pathlib import Path

import pytest
import tomli_w

from wirebench import collectives
from wirebench.costmodel.plan_cost import plan_seconds
from wirebench.errors import UserError
from wirebench.topology.processor import IDLE
from wirebench.topology.topology_file import Described, describe, load, read, resolve, save
from wirebench.topology.tree import Branch, Link, Topology

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "configs" / "topologies").glob("*.toml"))
WHOLE = """
layout = "2+3"
ranks = [4, 0, 1, 2, 3]
note = "measured here"
reduce_ns_per_byte = 0.25
round_us = 10

[[levels]]
name = "machine"
latency_us = 5.0
gbit_per_second = 80

[[levels]]
name = "network"
pieces = [
    { from_bytes = 0, latency_us = 120.0, gbit_per_second = 0.9 },
    { from_bytes = 65536, latency_us = -30.0, gbit_per_second = 0.96 },
]

[[nodes]]
path = [1]
latency_us = 7.5
gbit_per_second = 40.0

[processor]
cores = 2
call_us = 300
message_us = 20.5
ns_per_byte = 0.5
engine_share = 0.25
engine_round_us = 700
compress_factor = 3
gradient_ns_per_byte = 0.5

[fit]
r2 = 0.998
messages = 40
"""
SPEED = {"latency_us": 5.0, "gbit_per_second": 80.0}


def near(links):
    return [pytest.approx((link.latency_seconds, link.bytes_per_second, link.from_bytes), rel=1e-12) for link in links]


def numbers(links):
    return [(link.latency_seconds, link.bytes_per_second, link.from_bytes) for link in links]


@pytest.fixture
def written(tmp_path):
    def write(table):
        path = tmp_path / "t.toml"
        path.write_text(table if isinstance(table, str) else tomli_w.dumps(table))
        return path

    return write


def test_a_file_is_read(written):
    described = read(written(WHOLE))
    topology = described.topology
    assert (described.note, described.names) == ("measured here", ("machine", "network"))
    assert described.fit == {"r2": 0.998, "messages": 40.0}
    assert topology.machines == ((4, 0), (1, 2, 3))
    assert list(vars(topology.processor).values()) == pytest.approx(
        [2, 300e-6, 20.5e-6, 0.5e-9, 0.25, 700e-6, 3, 0.5e-9]
    )
    assert (topology.reduce_seconds_per_byte, topology.round_seconds) == pytest.approx((0.25e-9, 10e-6))
    network = [Link(120e-6, 0.9e9 / 8), Link(-30e-6, 0.96e9 / 8, 65536.0)]
    assert numbers(topology.root.links) == near(network)
    assert numbers(topology.branches[0,].links) == near([Link(5e-6, 1e10)])
    assert numbers(topology.branches[1,].links) == near([Link(7.5e-6, 5e9)])


def test_a_layout_alone_has_no_speeds(written):
    assert load(written('layout = "(2+2)+3"')) == Topology.parse("(2+2)+3")
    assert load(written('layout = "2"')).processor == IDLE, "a file of an older version has no such section"


def test_what_was_read_is_written_back(written, tmp_path):
    described = read(written(WHOLE))
    again = tmp_path / "again.toml"
    save(described.topology, again, described.note, described.names, described.fit)
    assert read(again) == described
    text = again.read_text()
    save(described.topology, again, described.note, described.names, described.fit)
    assert again.read_text() == text and "version = 2" in text


@pytest.mark.parametrize(
    "topology",
    [
        Topology.parse("4"),
        Topology.flat(3, Link(1 / 3, 1e9 / 7)),
        Topology.of_hosts(["a", "b", "a", "b"]).with_links([Link(1e-7, 3e9), Link(2e-5, 1.17e8)]),
        Topology.parse("(2+1)+1+(1+1)").with_links(
            [Link(1e-6, 1e9), Link(2e-6, 2e9), (Link(0, 1e8), Link(1e-3, 2e8, 1234.0))]
        ),
    ],
    ids=lambda topology: topology.layout,
)
def test_topologies_come_back(topology, tmp_path):
    save(topology, tmp_path / "t.toml")
    back = load(tmp_path / "t.toml")
    assert back.branches.keys() == topology.branches.keys()
    for path, branch in topology.branches.items():
        assert back.branches[path].ranks == branch.ranks
        assert numbers(back.branches[path].links) == [pytest.approx(each, rel=1e-11) for each in numbers(branch.links)]


@pytest.mark.parametrize(
    ("root", "message"),
    [
        (Branch((Branch((0, 1), (Link(0, 1),)), Branch((2,)))), "the speeds of some links only"),
        (Branch((Branch((0, 1)), 2)), "a shape that a file cannot express"),
        (Branch((Branch((Branch((0, 1)),)),)), "a shape that a file cannot express"),
    ],
)
def test_what_a_file_cannot_say_is_refused(root, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        save(Topology(root), tmp_path / "t.toml")
    assert not list(tmp_path.iterdir())


def test_files_out_of_reach(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written: Not a directory"):
        save(Topology.flat(2), tmp_path / "file" / "t.toml")


def test_users_name_a_layout_or_a_file(written):
    assert resolve("2+3") == Topology.parse("2+3")
    assert describe("2+3") == Described(Topology.parse("2+3"))
    assert resolve(str(written(WHOLE))).machines == ((4, 0), (1, 2, 3))
    for text in ("somewhere", "4+" * 200):  # the second one is too long for a file's name
        with pytest.raises(UserError, match="cannot read the layout"):
            resolve(text)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_files_price_plans_and_say_what_they_are(path):
    described = read(path)
    assert "not fitted" in described.note and not described.fit
    plan = collectives.build("ring").plan(described.topology, 1000)
    assert plan is not None and plan_seconds(plan, described.topology, 4) > 0


def test_the_documents_example_is_read(written):
    example = (ROOT / "docs" / "topology.md").read_text().partition("```toml\n")[2].partition("```")[0]
    described = read(written(example))
    assert described.topology.layout == "2+3" and described.names == ("machine", "network") and described.fit
