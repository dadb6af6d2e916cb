"""A topology drawn with characters, and its nodes and speeds in words."""

from collections.abc import Iterator, Sequence

from rich.filesize import decimal

from wirebench.topology.tree import Branch, BranchPath, Link, Topology


def draw(topology: Topology) -> str:
    """The tree, one node a line: its name, its children or ranks, the speed of the links between it and them.

    switch         2 machines     1 Gbit/s, 50 us
    +- machine 0   ranks 0-1      80 Gbit/s, 5 us
    +- machine 1   ranks 2-4      80 Gbit/s, 5 us
    """
    names = node_names(topology)
    rows = [
        (names[()], below(topology.root), "; ".join(speeds(topology.root.links))),
        *_rows(topology.root, (), "", names),
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{a:{widths[0]}}   {b:{widths[1]}}   {c}".rstrip() for a, b, c in rows)


def node_names(topology: Topology) -> dict[BranchPath, str]:
    """A name for every branch: machines are numbered as in `topology.machines`, switches below the root in turn."""
    machine_of = {ranks[0]: number for number, ranks in enumerate(topology.machines)}
    switches, names = 0, {}
    for path, branch in topology.branches.items():
        ranks = [child for child in branch.children if isinstance(child, int)]
        if ranks:
            names[path] = f"machine {machine_of[ranks[0]]}"
        elif path:
            names[path] = f"switch {switches}"
            switches += 1
        else:
            names[path] = "switch"
    return names


def below(branch: Branch) -> str:
    """A branch's children as text: "ranks 0-2 7", "2 machines", "2 switches, 1 machine"."""
    ranks = [child for child in branch.children if isinstance(child, int)]
    branches = [child for child in branch.children if isinstance(child, Branch)]
    machines = sum(any(isinstance(child, int) for child in branch.children) for branch in branches)
    parts = []
    if switches := len(branches) - machines:
        parts.append(f"{switches} switch{'es' * (switches > 1)}")
    if machines:
        parts.append(f"{machines} machine{'s' * (machines > 1)}")
    if ranks:
        parts.append(f"rank{'s' * (len(ranks) > 1)} {spans(ranks)}")
    return ", ".join(parts)


def spans(numbers: Sequence[int]) -> str:
    """0, 1, 2, 7 as "0-2 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def speeds(links: Sequence[Link]) -> list[str]:
    """Links in words, a text for each size from which another speed holds; none where the speed is not known.

    "1 Gbit/s, 50 us", "from 65.5 kB 0.9 Gbit/s, 120 us"
    """
    pieces = []
    for link in links:
        start = f"from {decimal(int(link.from_bytes))} " if link.from_bytes else ""
        pieces.append(f"{start}{rate(link.bytes_per_second)}, {link.latency_seconds * 1e6:.3g} us")
    return pieces


def rate(bytes_per_second: float) -> str:
    """Bits per second with a fitting unit: "100 Mbit/s"."""
    bits = bytes_per_second * 8
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= 0.1 * factor:
            return f"{bits / factor:.4g} {unit}"
    return f"{bits:.4g} bit/s"


def _rows(
    branch: Branch, path: BranchPath, indent: str, names: dict[BranchPath, str]
) -> Iterator[tuple[str, str, str]]:
    inner = [(number, child) for number, child in enumerate(branch.children) if isinstance(child, Branch)]
    for number, child in inner:
        place = (*path, number)
        yield f"{indent}+- {names[place]}", below(child), "; ".join(speeds(child.links))
        deeper = indent + ("|  " if number != inner[-1][0] else "   ")
        yield from _rows(child, place, deeper, names)
