"""Lists of hosts in every form that a launcher takes; each mistake is one line with its place and what is allowed."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirebench.comm.host_list import MOST_HOSTS, ListedHost, nodes, parse_words, read_hostfile, select, written
from wirebench.errors import UserError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node7", "node7"),
        ("node[01-03,07]", "node01 node02 node03 node07"),
        ("a[1-2]b[3-4]", "a1b3 a1b4 a2b3 a2b4"),
        ("gpu[3,5-6]-ib,cpu1", "gpu3-ib gpu5-ib gpu6-ib cpu1"),
        ("r1n[1-2].example.org,login", "r1n1.example.org r1n2.example.org login"),
        ("n[001-003,7]-ib[0-1]", "n001-ib0 n001-ib1 n002-ib0 n002-ib1 n003-ib0 n003-ib1 n7-ib0 n7-ib1"),
    ],
)
def test_a_node_list_of_slurm(text: str, names: str) -> None:
    assert list(nodes(text, "LIST")) == names.split()


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=4),
    st.sampled_from(["", "-ib", ".example.org"]),
)
def test_a_range_has_the_width_of_its_first_number(ranges: list[tuple[int, int, int]], suffix: str) -> None:
    text = ",".join(f"{first:0{width}d}-{first + more}" for first, more, width in ranges)
    said = [f"n{each:0{width}d}{suffix}" for first, more, width in ranges for each in range(first, first + more + 1)]
    assert list(nodes(f"n[{text}]{suffix}", "LIST")) == said


@pytest.mark.parametrize(
    "text",
    ["", ",", "n[", "n]", "n[1", "n[3-1]", "n[]", "n[a]", "n[1-]", "[1-2]", "-n1", "n1,,n2", "n 1", "n[1[2]]", "n;1"],
)
def test_no_node_list(text: str) -> None:
    with pytest.raises(UserError, match=r"^LIST: .*it reads node\[01-03,07\],login or a\[1-2\]b\[3-4\]$"):
        list(nodes(text, "LIST"))


def test_a_list_of_too_many_nodes_is_refused_at_once() -> None:
    with pytest.raises(UserError, match=f"has more than {MOST_HOSTS:,} nodes"):
        next(nodes("a[1-999999999]b[1-999999999]", "LIST"))
    assert next(nodes(f"a[1-{MOST_HOSTS}]", "LIST")) == "a1"


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        (["h1:4,h2:4", "10.0.0.3"], [("h1", 4), ("h2", 4), ("10.0.0.3", None)]),
        (["node[1-2]:8,login"], [("node1", 8), ("node2", 8), ("login", None)]),
        (["[::1]:2", "[fd00::2]", "fe80::1%eth0"], [("::1", 2), ("fd00::2", None), ("fe80::1%eth0", None)]),
        (["[fe80::1]:2,h1:2", "[fe80::1%eth0]:4"], [("fe80::1", 2), ("h1", 2), ("fe80::1%eth0", 4)]),
    ],
)  # fmt: skip
def test_hosts_in_words(words: list[str], hosts: list[tuple[str, int | None]]) -> None:
    assert parse_words(words) == [ListedHost(*each) for each in hosts]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["h1:x"], "'h1:x' is no host; hosts read h1:4,h2:4 (as for horovodrun), h1 h2, node[01-04] or [fd00::1]:4"),
        (["h1,,h2"], "'' is no host; "),
        (["h1:0"], "'h1:0' is no host; "),
        (["-oProxyCommand=x"], "'-oProxyCommand=x' is no host; "),
        (["[zz]:1"], "'[zz]:1' is no host; "),
        (["[::1"], "'[::1' is no host; "),
        (["fd00::1::2"], "'fd00::1::2' is no host; "),
        (["h1", "h1:2"], "h1: is named twice"),
        (["n[1-2]", "n2"], "n2: is named twice"),
        (["n[2-1]"], "hosts: 'n[2-1]': '2-1' is no range of numbers; "),
    ],
)
def test_words_that_are_no_hosts(words: list[str], line: str) -> None:
    with pytest.raises(UserError) as said:
        parse_words(words)
    assert str(said.value).startswith(line)


def test_a_list_is_written_as_it_is_read() -> None:
    slots = {"h1": 4, "fd00::1": 2}
    assert written(slots) == "h1:4,[fd00::1]:2"
    assert parse_words([written(slots)]) == [ListedHost(name, count) for name, count in slots.items()]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("h1 slots=4\nh2 slots=2  # the old one\n\n# h3 slots=1\n", [("h1", 4), ("h2", 2)]),
        ("h1 slots = 4 max_slots = 8\nh2 max-slots=8 slots=1\n", [("h1", 4), ("h2", 1)]),
        ("h1:4\nh2\n[fd00::1]:2\nfd00::2\n", [("h1", 4), ("h2", None), ("fd00::1", 2), ("fd00::2", None)]),
        ("h1\nh2\n", [("h1", None), ("h2", None)]),
        ("h1\nh1\nh2\nh1\n", [("h1", 3), ("h2", 1)]),
        ("node[01-02] slots=8\n", [("node01", 8), ("node02", 8)]),
        ("\ufeffh1 slots=4\r\nh2 slots=4\r\n", [("h1", 4), ("h2", 4)]),
        ("fe80::1 slots=2\n[fe80::2] slots=2\n[fe80::3]:2\n", [("fe80::1", 2), ("fe80::2", 2), ("fe80::3", 2)]),
        ("\r\n \t\r\n#h0\r\n\th1:2#two\r\n\r\nh2 max_slots=4", [("h1", 2), ("h2", None)]),
    ],
    ids=["horovodrun", "open-mpi", "mpich", "names", "repeated", "slurm", "windows", "ipv6", "blanks"],
)
def test_a_host_file(text: str, hosts: list[tuple[str, int | None]], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    assert read_hostfile(tmp_path / "hosts") == [ListedHost(*each) for each in hosts]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("h1 slots=4\nh2 slots=four\n", "line 2: 'slots=four' cannot be read; a line reads h1, h1:4 or h1 slots=4"),
        ("h1 slots=0\n", "line 1: 'slots=0' cannot be read; "),
        ("h1 slots=1 slots=2\n", "line 1: 'slots=2' cannot be read; "),
        ("h1 cores=4\n", "line 1: 'cores=4' cannot be read; "),
        ("h1:4 slots=4\n", "line 1: 'h1:4 slots=4' gives the slots twice; "),
        ("\n\nh1,h2\n", "line 3: 'h1,h2' is no host; a line reads h1, "),
        ("h1 slots=4\n#\nh1 slots=2\n", "line 3: h1 is in line 1, too; a host has one line with its slots"),
        ("h1\nh1 slots=2\n", "line 2: h1 is in line 1, too; "),
        ("n[2-1]\n", "line 1: 'n[2-1]': '2-1' is no range of numbers; "),
        ("# nobody\n", "names no host; a line reads h1, "),
        ("", "names no host; a line reads h1, "),
        ("h1\nh2 slots\n", "line 2: 'slots' cannot be read; "),
        ("[fe80::1:2\n", "line 1: '[fe80::1:2' is no host; "),
        ("n[1-2] slots=2\nn2 slots=2\n", "line 2: n2 is in line 1, too; "),
        ("h1\0\n", "line 1: 'h1\\x00' is no host; "),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_named(text: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(UserError) as said:
        read_hostfile(tmp_path / "hosts")
    assert str(said.value).startswith(f"{tmp_path / 'hosts'}: {line}")


def test_a_host_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00h1")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "wide").write_text("h1 slots=2\n", encoding="utf-16")
    whys = {"none": "No such file", "binary": "is no text", "wide": "is no text", "pipe": "not a file"}
    for name, why in {**whys, "folder": "Is a directory"}.items():
        with pytest.raises(UserError, match=why):
            read_hostfile(tmp_path / name)


HOSTS = [ListedHost("h1", 4), ListedHost("h2", 4), ListedHost("h3"), ListedHost("fd00::1", 4)]


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        ("", "", HOSTS),
        ("h2", "", [("h2", 4)]),
        ("h1@h2:0,2", "", [("h1", 4), ("h2", 2)]),
        ("", "h2@h3", [("h1", 4), ("fd00::1", 4)]),
        ("", "h1:0@fd00::1", [("h1", 3), ("h2", 4), ("h3", None)]),
        ("", "h1:0,1,2,3@h3", [("h2", 4), ("fd00::1", 4)]),
        ("fd00::1", "", [("fd00::1", 4)]),
        ("[fd00::1]@h2:0,2", "", [("h2", 2), ("fd00::1", 4)]),
        ("[fd00::1]:0,2", "", [("fd00::1", 2)]),
    ],
)
def test_hosts_are_selected_as_by_deepspeed(include: str, exclude: str, left: list[tuple[str, int | None]]) -> None:
    assert select(HOSTS, include, exclude) == [ListedHost(*each) for each in left]


@pytest.mark.parametrize(
    ("include", "exclude", "line"),
    [
        ("h1", "h2", "--include: stands alone, without --exclude"),
        ("h9", "", "--include: no host 'h9' is listed; it reads h1@h2:0,2, and there is: h1, h2, h3, fd00::1"),
        ("", "h1:4", "--exclude: 'h1:4': h1 has slots 0 to 3"),
        ("h3:0", "", "--include: 'h3:0': h3 has no slots"),
        ("h1:a", "", "--include: 'h1:a': slots read 0,2"),
        ("h1:", "", "--include: 'h1:': slots read 0,2"),
        ("", "h1@h2@h3@fd00::1", "--exclude: 'h1@h2@h3@fd00::1' leaves no host"),
    ],
)
def test_a_selection_that_cannot_be_made(include: str, exclude: str, line: str) -> None:
    with pytest.raises(UserError) as said:
        select(HOSTS, include, exclude)
    assert str(said.value) == line
