"""Topologies in a terminal: the drawing, and what collectives send and take on one."""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.filesize import decimal

from wirebench import collectives
from wirebench.collectives.execution.segments import segments
from wirebench.collectives.plan import Plan, messages
from wirebench.collectives.wire import Items, items_of
from wirebench.costmodel import plan_cost
from wirebench.errors import UserError
from wirebench.formats.chakra import RankTrace, check_folder
from wirebench.formats.chakra_plan import plan_traces
from wirebench.topology.ascii import draw
from wirebench.topology.topology_file import Described
from wirebench.topology.tree import Topology
from wirebench.utils.console import columns, console

ITEM_BYTES = 4
WIDTH = 200
"""Columns of the table in a file or a pipe: nothing is folded."""
HEADS = ("collective", "plan", "rounds", "messages/rank", "sent/rank", "machine link", "in one piece", "in segments")


def price_row(name: str, collective: collectives.Collective, topology: Topology, items: int) -> tuple[str, ...]:
    """A collective's cells under HEADS, for one sum of `items` fp32 items; seconds only where links have speeds."""
    counted = items_of(collective, items, ITEM_BYTES)
    plan, item_bytes = collective.plan(topology, counted.number), counted.num_bytes
    if plan is None:
        return (name, "the engine's own", *"-" * (len(HEADS) - 2))
    crossing = [max(each) for each in plan_cost.uplink_bytes(plan, topology, item_bytes)]
    return (
        name,
        plan.name,
        str(plan.rounds),
        str(_most_messages(plan)),
        decimal(int(max(plan_cost.sent_bytes(plan, item_bytes).values(), default=0))),
        decimal(int(max(crossing))) if len(crossing) > 1 else "-",
        *_prices(plan, collective, topology, counted),
    )


def chakra_traces(
    folder: Path, built: Mapping[str, collectives.Collective], topology: Topology, items: int
) -> dict[str, list[RankTrace]]:
    """Every collective's plan of one sum, in one piece, as a trace for each rank; UserError where there is no plan."""
    if not built:
        raise UserError("--chakra: writes the plans of --collective; name some")
    traces = {}
    for name, collective in built.items():
        counted = items_of(collective, items, ITEM_BYTES)
        plan = collective.plan(topology, counted.number)
        if plan is None:
            raise UserError(f"--chakra: {name!r} is the engine's own all-reduce, and has no plan to write")
        traces[name] = plan_traces(plan, topology, counted.num_bytes)
    for name in built:
        check_folder(folder, name, topology.size)
    return traces


def _most_messages(plan: Plan) -> int:
    """Messages that the busiest rank sends."""
    sent = Counter(m.src for transfers in (*plan.reduce, *plan.copy) for m in messages(transfers))
    return max(sent.values(), default=0)


def _prices(plan: Plan, collective: collectives.Collective, topology: Topology, items: Items) -> tuple[str, str]:
    """Milliseconds in one piece, and cut into the segments that a run cuts it into."""
    if not all(branch.links for branch in topology.branches.values()):
        return "-", "-"
    cut = segments(functools.partial(collective.plan, topology), topology, items.number, items.sent_bytes)
    whole = plan_cost.plan_seconds(plan, topology, items.num_bytes)
    piped = plan_cost.pipelined_seconds(cut.plans, topology, items.num_bytes, cut.apart)
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
    table = columns(HEADS, left=HEADS[:2], gap=3)
    for row in rows:
        table.add_row(*row)
    console(WIDTH, highlight=False, markup=False).print(table)


def _extras(topology: Topology) -> str:
    """The speeds that belong to no link: of adding, and of a round."""
    added, waited = topology.reduce_seconds_per_byte * 1e9, topology.round_seconds * 1e6
    parts = [f"adding {added:.3g} ns a byte"] * (added > 0) + [f"a round {waited:.3g} us a receiver"] * (waited > 0)
    return ", ".join(parts)
