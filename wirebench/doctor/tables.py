"""What was measured, in one line, and as tables: the hosts' interfaces, what each way between neighbours carries."""

from rich.table import Table

from wirebench.doctor import choices
from wirebench.doctor.links import Seen, bits, limited_by_processor
from wirebench.doctor.sums import SumTimes
from wirebench.doctor.wire import SIZES
from wirebench.utils.console import columns, console, with_room

WIDTH = 100
UNKNOWN = "-"


def summary(seen: Seen, hosts: int, timed: SumTimes | None = None) -> str:
    """One line about what was measured."""
    if not seen.ways:
        return f"{hosts} hosts" if hosts > 1 else "1 host, so no link was measured"
    rates = [each.bytes_per_second * 8 for each in seen.ways.values()]
    trips = [each.round_trip for each in seen.ways.values()]
    rated = seen.nominal is not None or any(map(seen.line_rate, seen.ways))
    # Both ways between two hosts are one link, and there is no other to compare it with.
    alone = hosts == 2 and not rated
    return (
        f"{hosts} hosts; links carry {bits(min(rates))} to {bits(max(rates))}, "
        f"a byte there and back takes {1e3 * min(trips):.2f} to {1e3 * max(trips):.2f} ms"
        + ("; whether the one link is slow --link RATE alone can tell" if alone else "")
        + (f"; {_sum(seen, timed)}" if timed else "")
    )


def _sum(seen: Seen, timed: SumTimes) -> str:
    line = seen.nominal or min(map(seen.line_rate, seen.ways))
    of_line = f", {8 * timed.bus_rate / line:.0%} of the line rate" if line else ""
    limit = ", limited by the processor" if limited_by_processor(seen, timed) else ""
    return (
        f"all-reduce ({timed.backend}) has a bus bandwidth of {bits(8 * timed.bus_rate)}, "
        f"{timed.bus_rate / timed.normal_rate:.0%} of a ring's{of_line}{limit}"
    )


def show(seen: Seen) -> None:
    """Print the tables that there is something for."""
    for table in (_hosts(seen), _ways(seen)):
        if table.row_count:
            out = with_room(console(WIDTH), table)
            out.print()
            out.print(table)


def _hosts(seen: Seen) -> Table:
    left = ("host", "interface", "duplex", "Gloo takes", "NCCL takes")
    table = columns(("host", "interface", "MTU", "speed", "duplex", "Gloo takes", "NCCL takes", "NCCL"), left, gap=3)
    for host, known in seen.facts.items():
        if "links" not in known:
            continue
        link = seen.link(host)
        has_nccl = known.get("gpus") or known.get("variables", {}).get("NCCL_SOCKET_IFNAME")
        table.add_row(
            host, seen.used(host) or UNKNOWN, f"{link.get('mtu') or UNKNOWN}",
            bits(1e6 * link["mbit"]) if link.get("mbit") else UNKNOWN, link.get("duplex") or UNKNOWN,
            str(choices.gloo(known)), str(choices.nccl(known)) if has_nccl else UNKNOWN, known.get("nccl") or UNKNOWN,
        )  # fmt: skip
    return table


def _ways(seen: Seen) -> Table:
    """A row a way: the start-up time of a message, and the rate of messages by size and of a stream."""
    sizes = [f"{size // 1024} kB" if size < 2**20 else f"{size // 2**20} MB" for size in SIZES]
    table = columns(("way", "start-up", *sizes, "stream"), ("way",), gap=3)
    for (here, there), timed in seen.ways.items():
        rates = {size: bits(8 * size / seconds) for size, seconds in timed.by_size}
        table.add_row(
            f"{here} -> {there}", f"{1e3 * timed.start_up:.3f} ms", *(rates.get(size, UNKNOWN) for size in SIZES),
            bits(8 * timed.bytes_per_second),
        )  # fmt: skip
    return table
