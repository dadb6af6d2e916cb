"""What the hosts' interfaces are, and what each way between neighbours carries, as tables."""

from rich.table import Table

from wirebench.doctor import choices
from wirebench.doctor.links import Seen, bits
from wirebench.doctor.wire import SIZES
from wirebench.utils.console import columns, console, with_room

WIDTH = 100
UNKNOWN = "-"


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
