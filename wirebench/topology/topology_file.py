"""Topologies as TOML files: a layout, the speeds of its links by level, and what they were fitted from.

docs/topology.md describes the keys. Whatever a file gets wrong is a UserError that names the file and the key.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import tomli_w

from wirebench.config.plugins import check_type, suggest
from wirebench.errors import UserError
from wirebench.topology import processor
from wirebench.topology.tree import Branch, BranchPath, Link, Topology
from wirebench.utils import user_files
from wirebench.utils.package import CONFIGS

SHIPPED = CONFIGS / "topologies"
"""The folder of the files that are named without a path."""
VERSION = 2
"""Version of the files that are written: 2 since they have the processors' costs. Older ones have no number."""
KEYS = {
    "version": int,
    "layout": str,
    "ranks": list[int],
    "note": str,
    "reduce_ns_per_byte": float,
    "round_us": float,
    "levels": list[dict],
    "nodes": list[dict],
    "shared": dict,
    "native": dict,
    "processor": dict,
    "fit": dict,
}
SPEED_KEYS = {"latency_us": float, "gbit_per_second": float}
ALL_KEYS = {**SPEED_KEYS, "pieces": list[dict]}
PIECE_KEYS = {"from_bytes": float, **SPEED_KEYS}
LEVEL_KEYS = {"name": str, **SPEED_KEYS, "pieces": list[dict]}
NODE_KEYS = {"path": list[int], **SPEED_KEYS, "pieces": list[dict]}

BYTES_PER_GBIT = 1e9 / 8
Links = tuple[Link, ...]


@dataclass(frozen=True)
class Described:
    """The contents of a topology file.

    topology  without link speeds where the file has no levels
    note      where the numbers come from, in words
    names     names of the levels, from the lowest to the root; () where the file names none
    fit       quality of the fit that the speeds come from, by name; empty where they are nominal
    """

    topology: Topology
    note: str = ""
    names: tuple[str, ...] = ()
    fit: Mapping[str, float] = field(default_factory=dict)


def resolve(text: str) -> Topology:
    """The topology that a user names: a .toml file, as `find` finds it, or a layout such as "2+3", without speeds."""
    return describe(text).topology


def of_job(text: str, hosts: Sequence[str], where: str) -> Topology:
    """The topology of a job whose ranks run on `hosts`: the one that `text` names, else one machine per host.

    Raises UserError, which begins with `where`, for a named topology that has another number of ranks than the job, or
    other machines where the job runs on several hosts.
    """
    by_hosts = Topology.of_hosts(hosts)
    if not text:
        return by_hosts
    given = resolve(text)
    if given.size != len(hosts):
        raise UserError(f"{where}: {text} has {given.size} ranks, but the job has {len(hosts)}")
    if given.machines != by_hosts.machines and len(by_hosts.machines) > 1:
        raise UserError(f"{where}: {text} reads {given.layout}, but the hosts make {by_hosts.layout}")
    return given


def describe(text: str) -> Described:
    """The topology that `resolve` gives, with the note, names and fit that its file holds."""
    if FilePath(text).suffix == ".toml":
        return read(text)
    try:
        return Described(Topology.parse(text))
    except UserError:
        if os.path.isfile(text):  # unlike Path's, without an error for a layout that is too long for a name
            raise UserError(f"topology: {text}: is a file, and a topology's file has a name in .toml") from None
        raise


def find(path: str | FilePath) -> FilePath:
    """The file of a topology: a path, or else the name of a shipped one, as `2+3_1gbit.toml`."""
    given = FilePath(path)
    shipped = SHIPPED / given
    return shipped if len(given.parts) == 1 and not given.exists() and shipped.is_file() else given


def load(path: str | FilePath) -> Topology:
    """The topology in a file; UserError names the file and the key that is wrong."""
    return read(path).topology


def read(path: str | FilePath) -> Described:
    """All that a file holds; UserError names the file and the key that is wrong."""
    found = find(path)
    hint = f"; did you mean {found.name}, which is shipped?" if (SHIPPED / found.name).is_file() else ""
    table = user_files.read_toml(found, hint)
    try:
        return _described(table)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def save(
    topology: Topology,
    path: str | FilePath,
    note: str = "",
    names: tuple[str, ...] = (),
    fit: Mapping[str, float] | None = None,
) -> None:
    """Write a file that `read` reads back; `Described` explains what goes in. Numbers keep twelve digits.

    Raises ValueError for a topology that a file cannot express: one with the speeds of some links only, or with ranks
    beside branches. Raises UserError where the file cannot be written.
    """
    table = _table(Described(topology, note, names, fit or {}))
    if not _same_tree(_described(table).topology.root, topology.root):
        raise ValueError(f"the topology {topology.layout} has a shape that a file cannot express")
    user_files.write(FilePath(path), tomli_w.dumps(table))


def _described(table: Mapping[str, Any]) -> Described:
    _check("", table, KEYS, ["layout"])
    if not 1 <= table.get("version", 1) <= VERSION:
        raise UserError(f"version: this version reads files up to {VERSION}, got {table['version']}")
    plain = Topology.parse(table["layout"])
    levels, depth = table.get("levels", []), len(plain.levels)
    if levels and len(levels) != depth:
        raise UserError(f"levels: {plain.layout} has {depth}, from machines to the root, but {len(levels)} are given")
    by_level = [_links(f"levels[{number}]", level, LEVEL_KEYS) for number, level in enumerate(levels)]
    links = {path: by_level[depth - 1 - len(path)] for path in plain.branches} if levels else {}
    links |= _overrides(plain, table.get("nodes", []), bool(levels))
    topology = Topology(
        _dressed((), plain.root, links, _ranks(table, plain.size)),
        reduce_seconds_per_byte=_amount(table, "reduce_ns_per_byte") / 1e9,
        round_seconds=_amount(table, "round_us") / 1e6,
        processor=processor.read(table.get("processor", {})),
        **{key: _links(key, table[key], ALL_KEYS) for key in ("shared", "native") if key in table},
    )
    fit = table.get("fit", {})
    for key, value in fit.items():
        check_type(f"fit.{key}", value, float)
    names = tuple(level["name"] for level in levels if "name" in level)
    if names and len(names) < depth:
        raise UserError("levels: name all of them, or none")
    return Described(topology, table.get("note", ""), names, {key: float(value) for key, value in fit.items()})


def _overrides(plain: Topology, nodes: Sequence[Mapping[str, Any]], has_levels: bool) -> dict[BranchPath, Links]:
    """The links of the branches that have speeds of their own, by path."""
    if nodes and not has_levels:
        raise UserError("nodes: speeds of single branches come on top of levels, but there are none")
    links_of: dict[BranchPath, Links] = {}
    for number, node in enumerate(nodes):
        where = f"nodes[{number}]"
        links = _links(where, node, NODE_KEYS, ["path"])
        path = tuple(node["path"])
        if path not in plain.branches:
            known = ", ".join(str(list(each)) for each in plain.branches)
            raise UserError(f"{where}.path: {list(path)} is no branch of {plain.layout}; there is: {known}")
        if path in links_of:
            raise UserError(f"{where}.path: {list(path)} has its speeds already")
        links_of[path] = links
    return links_of


def _links(where: str, table: Mapping[str, Any], keys: Mapping[str, Any], needed: Sequence[str] = ()) -> Links:
    """The links that a table with one speed, or with pieces, describes."""
    if "pieces" not in table:
        _check(where, table, keys, [*needed, *SPEED_KEYS])
        return (_link(where, table, 0.0),)
    _check(where, table, keys, needed)
    if both := SPEED_KEYS.keys() & table.keys():
        raise UserError(f"{where}.{min(both)}: belongs into the pieces, since there are some")
    links: list[Link] = []
    for number, piece in enumerate(table["pieces"]):
        inner = f"{where}.pieces[{number}]"
        _check(inner, piece, PIECE_KEYS, list(PIECE_KEYS))
        start = piece["from_bytes"]
        if (start <= links[-1].from_bytes) if links else (start != 0):
            raise UserError(f"{inner}.from_bytes: the first piece starts at 0, the others at rising sizes")
        links.append(_link(inner, piece, float(start)))
    if not links:
        raise UserError(f"{where}.pieces: needs at least one")
    return tuple(links)


def _link(where: str, table: Mapping[str, Any], from_bytes: float) -> Link:
    if not table["gbit_per_second"] > 0:
        raise UserError(f"{where}.gbit_per_second: needs a positive number, got {table['gbit_per_second']}")
    return Link(table["latency_us"] / 1e6, table["gbit_per_second"] * BYTES_PER_GBIT, from_bytes)


def _ranks(table: Mapping[str, Any], size: int) -> list[int]:
    """The ranks in leaf order; from left to right unless the file says otherwise."""
    ranks: list[int] = table.get("ranks", list(range(size)))
    if sorted(ranks) != list(range(size)):
        raise UserError(f"ranks: needs each of 0 to {size - 1} once, in the order of the layout, got {ranks}")
    return ranks


def _amount(table: Mapping[str, Any], key: str) -> float:
    value = table.get(key, 0.0)
    if not 0 <= value < float("inf"):
        raise UserError(f"{key}: needs a number of at least 0, got {value}")
    return float(value)


def _check(where: str, table: Mapping[str, Any], hints: Mapping[str, Any], needed: Sequence[str]) -> None:
    """Raise UserError unless every key is known and of its type, and the needed ones are there."""
    prefix = f"{where}." if where else ""
    for key, value in table.items():
        if key not in hints:
            raise UserError(f"{prefix}{key}: no such key; {suggest(key, list(hints))}")
        if hints[key] == list[dict] and not (isinstance(value, list) and all(isinstance(v, dict) for v in value)):
            raise UserError(f"{prefix}{key}: needs a list of tables, got {value!r}")
        if hints[key] is dict and not isinstance(value, dict):
            raise UserError(f"{prefix}{key}: needs a table, got {value!r}")
        check_type(f"{prefix}{key}", value, hints[key])
    for key in needed:
        if key not in table:
            raise UserError(f"{prefix}{key}: is missing")


def _dressed(path: BranchPath, branch: Branch, links: Mapping[BranchPath, Links], ranks: Sequence[int]) -> Branch:
    children = (
        ranks[child] if isinstance(child, int) else _dressed((*path, number), child, links, ranks)
        for number, child in enumerate(branch.children)
    )
    return Branch(tuple(children), links.get(path, ()))


def _table(described: Described) -> dict[str, Any]:
    topology = described.topology
    table: dict[str, Any] = {"version": VERSION, "layout": topology.layout}
    if topology.ranks != tuple(range(topology.size)):
        table["ranks"] = list(topology.ranks)
    if described.note:
        table["note"] = described.note
    table["reduce_ns_per_byte"] = _digits(topology.reduce_seconds_per_byte * 1e9)
    table["round_us"] = _digits(topology.round_seconds * 1e6)
    table |= {key: _speed(links) for key in ("shared", "native") if (links := getattr(topology, key))}
    if topology.processor != processor.IDLE:
        table["processor"] = {key: _digits(value) for key, value in processor.written(topology.processor).items()}
    known = {bool(branch.links) for branch in topology.branches.values()}
    if known == {True, False}:
        raise ValueError(f"the topology {topology.layout} has the speeds of some links only")
    if any(link.lanes > 1 for branch in topology.branches.values() for link in branch.links):
        raise ValueError(f"the topology {topology.layout} has links of several lanes, which a file cannot express")
    if known == {True}:
        common = [Counter(branch.links for branch in level).most_common(1)[0][0] for level in topology.levels]
        names = described.names or ("",) * len(common)
        table["levels"] = [
            {**({"name": name} if name else {}), **_speed(links)} for name, links in zip(names, common, strict=True)
        ]
        nodes = [
            {"path": list(path), **_speed(branch.links)}
            for path, branch in topology.branches.items()
            if branch.links != common[len(common) - 1 - len(path)]
        ]
        table |= {"nodes": nodes} if nodes else {}
    return table | ({"fit": dict(described.fit)} if described.fit else {})


def _speed(links: Links) -> dict[str, Any]:
    pieces = [
        {
            "from_bytes": _digits(link.from_bytes),
            "latency_us": _digits(link.latency_seconds * 1e6),
            "gbit_per_second": _digits(link.bytes_per_second / BYTES_PER_GBIT),
        }
        for link in links
    ]
    return {key: pieces[0][key] for key in SPEED_KEYS} if len(pieces) == 1 else {"pieces": pieces}


def _digits(value: float) -> float:
    """The value to twelve digits, so that what was read as 5.0 is written as 5.0."""
    return float(f"{value:.12g}")


def _same_tree(one: Branch | int, other: Branch | int) -> bool:
    if isinstance(one, int) or isinstance(other, int):
        return one == other
    return one.degree == other.degree and all(map(_same_tree, one.children, other.children))
