"""Topologies as people see them: the drawing, the figure, and what collectives send and take on one."""

import functools
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal
from rich.table import Table

from wirebench import collectives
from wirebench.collectives.execution.segments import segments
from wirebench.collectives.plan import Plan, messages
from wirebench.costmodel import plan_cost
from wirebench.errors import UserError
from wirebench.formats.chakra import RankTrace, check_folder
from wirebench.formats.chakra_plan import plan_traces
from wirebench.topology.ascii import draw, node_names, spans, speeds
from wirebench.topology.topology_file import Described
from wirebench.topology.tree import BranchPath as Node
from wirebench.topology.tree import Topology
from wirebench.utils.console import console
from wirebench.utils.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ITEM_BYTES = 4
WIDTH = 200
"""Columns of the table in a file or a pipe: nothing is folded."""
MAX_SINGLE, MAX_MACHINES = 24, 64
"""Ranks that a figure draws one by one, and machines that it draws at all."""
HEADS = ("collective", "plan", "rounds", "messages/rank", "sent/rank", "machine link", "in one piece", "in segments")
Places = dict[int | Node, tuple[float, float]]


def price_row(name: str, collective: collectives.Collective, topology: Topology, items: int) -> tuple[str, ...]:
    """A collective's cells under HEADS, for one sum of `items` fp32 items; seconds only where links have speeds."""
    plan = collective.plan(topology, items)
    if plan is None:
        return (name, "the engine's own", *"-" * (len(HEADS) - 2))
    crossing = [max(each) for each in plan_cost.uplink_bytes(plan, topology, ITEM_BYTES)]
    return (
        name,
        plan.name,
        str(plan.rounds),
        str(_most_messages(plan)),
        decimal(max(plan.sent_items(rank) for rank in topology.ranks) * ITEM_BYTES),
        decimal(int(max(crossing))) if len(crossing) > 1 else "-",
        *_prices(plan, collective, topology, items),
    )


def chakra_traces(
    folder: Path, built: Mapping[str, collectives.Collective], topology: Topology, items: int
) -> dict[str, list[RankTrace]]:
    """Every collective's plan of one sum, in one piece, as a trace for each rank; UserError where there is no plan."""
    if not built:
        raise UserError("--chakra: writes the plans of --collective; name some")
    traces = {}
    for name, collective in built.items():
        plan = collective.plan(topology, items)
        if plan is None:
            raise UserError(f"--chakra: {name!r} is the engine's own all-reduce, and has no plan to write")
        traces[name] = plan_traces(plan, topology, ITEM_BYTES)
    for name in built:
        check_folder(folder, name, topology.size)
    return traces


def figure(topology: Topology, path: Path, note: str = "") -> None:
    """Draw the tree into an image file, whose ending says of which kind; UserError where it cannot be written."""
    from matplotlib.figure import Figure

    if len(topology.machines) > MAX_MACHINES:
        raise UserError(f"--figure: draws {MAX_MACHINES} machines at most, here are {len(topology.machines)}")
    places = _places(topology)
    left, right = (end(x for x, _ in places.values()) for end in (min, max))
    depth = len(topology.levels)
    picture = Figure(figsize=(0.62 * (right - left) + 3.2, 1.2 + 1.1 * depth), layout="constrained")
    axes = picture.add_subplot(xlim=(left - 1.6, right + 1.6), ylim=(-depth - 0.3, 0.4))
    axes.axis("off")
    _draw_branches(axes, topology, places)
    _draw_ranks(axes, topology, places)
    axes.set_title(f"{topology.layout}: {topology.size} rank{'s' * (topology.size > 1)}", fontsize=10)
    if note:
        picture.supxlabel(note, fontsize=7, color="0.35", wrap=True)
    try:
        drawn = io.BytesIO()
        picture.savefig(drawn, dpi=150, format=path.suffix.lstrip(".") or "png")
        write_atomically(path, drawn.getvalue())
    except (OSError, ValueError) as error:
        raise UserError(f"--figure: {path}: cannot be written: {error}") from error


def _draw_branches(axes: "Axes", topology: Topology, places: Places) -> None:
    names = node_names(topology)
    for branch_path, branch in topology.branches.items():
        x, y = places[branch_path]
        for number, child in enumerate(branch.children):
            below = places[child if isinstance(child, int) else (*branch_path, number)]
            axes.plot([x, below[0]], [y, below[1]], color="0.55", linewidth=1.5, zorder=1)
        lines = [names[branch_path], *(f"links: {piece}" for piece in speeds(branch.links))]
        style = {"boxstyle": "round,pad=0.4", "facecolor": "#dbe9f6", "edgecolor": "#33658a"}
        axes.text(x, y, "\n".join(lines), ha="center", va="center", fontsize=8.5, bbox=style, zorder=2)


def _draw_ranks(axes: "Axes", topology: Topology, places: Places) -> None:
    together: dict[tuple[float, float], list[int]] = {}
    for rank in topology.ranks:
        together.setdefault(places[rank], []).append(rank)
    for place, ranks in together.items():
        shape = "circle,pad=0.35" if len(ranks) == 1 else "round,pad=0.4,rounding_size=0.8"
        style = {"boxstyle": shape, "facecolor": "#fdf3d8", "edgecolor": "#b58900"}
        axes.text(*place, spans(ranks), ha="center", va="center", fontsize=9, bbox=style, zorder=2)


def _places(topology: Topology) -> Places:
    """Where nodes stand: ranks side by side with a gap between machines, a branch above the middle of its children.

    Where there are many, the ranks of a machine stand in one place.
    """
    places: Places = {}
    machines = [branch for branch in topology.branches.values() if any(isinstance(c, int) for c in branch.children)]
    longest = max((len(piece) for machine in machines for piece in speeds(machine.links)), default=0)
    # A narrow machine still has room for its own text.
    x, least = 0.0, max(2.4, 0.13 * longest + 1.0)
    for ranks in topology.machines:
        step = 1 if topology.size <= MAX_SINGLE else 0
        width = max(least, step * len(ranks))
        first = x + (width - step * (len(ranks) - 1)) / 2
        for number, rank in enumerate(ranks):
            places[rank] = (first + step * number, -float(len(topology.levels)))
        x += width + 0.5
    for path, branch in reversed(topology.branches.items()):
        ends = [
            places[child if isinstance(child, int) else (*path, number)][0]
            for number, child in enumerate(branch.children)
        ]
        places[path] = ((min(ends) + max(ends)) / 2, -float(len(path)))
    return places


def _most_messages(plan: Plan) -> int:
    """Messages that the busiest rank sends."""
    sent = Counter(m.src for transfers in (*plan.reduce, *plan.copy) for m in messages(transfers))
    return max(sent.values(), default=0)


def _prices(plan: Plan, collective: collectives.Collective, topology: Topology, items: int) -> tuple[str, str]:
    """Milliseconds in one piece, and cut into the segments that a run cuts it into."""
    if not all(branch.links for branch in topology.branches.values()):
        return "-", "-"
    cut = segments(functools.partial(collective.plan, topology), topology, items, ITEM_BYTES)
    whole = plan_cost.plan_seconds(plan, topology, ITEM_BYTES)
    piped = plan_cost.pipelined_seconds(cut.plans, topology, ITEM_BYTES, cut.apart)
    return f"{whole * 1e3:,.2f} ms", f"{piped * 1e3:,.2f} ms"


def show(described: Described, rows: Sequence[tuple[str, ...]], items: int) -> None:
    """Print the drawing, and the rows of `price_row` where there are any."""
    topology = described.topology
    print(draw(topology))
    for line in (described.note, _extras(topology)):
        if line:
            print(line)
    if not rows:
        return
    print(f"\none sum of {items:,} fp32 items, {decimal(items * ITEM_BYTES)}:")
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    for number, head in enumerate(HEADS):
        table.add_column(head, justify="left" if number < 2 else "right")
    for row in rows:
        table.add_row(*row)
    console(WIDTH, highlight=False, markup=False).print(table)


def _extras(topology: Topology) -> str:
    """What belongs to no link."""
    added, waited = topology.reduce_seconds_per_byte * 1e9, topology.round_seconds * 1e6
    parts = [f"adding {added:.3g} ns a byte"] * (added > 0) + [f"a round {waited:.3g} us a receiver"] * (waited > 0)
    return ", ".join(parts)
