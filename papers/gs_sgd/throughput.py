"""Table II as it was measured: every reading of the methods on one network, each with what its messages alone allow."""

import statistics
from collections.abc import Sequence

from papers import trust
from papers.accuracy.curve import exchange_seconds
from papers.gs_sgd.claims import BASES, METHODS, most_sent, of_method
from papers.gs_sgd.variants import PUBLISHED
from papers.rows import Row, size, times_faster, with_energy
from wirebench.topology.rates import parse_rate
from wirebench.utils.markdown import table

HEAD = (
    "method", "images/s", "paper", "step", "computing", "compressing", "sent, busiest worker",
    "its messages take", "images/s at most",
)  # fmt: skip


def section(model: str, rows: Sequence[Row]) -> list[str]:
    """The lines of a network's table; nothing where no row is of one of the paper's methods.

    model  the paper's name of it
    """
    those = [row for method in METHODS for row in of_method(rows, method)]
    bases = [row for row in those if row.label in BASES]
    if not those:
        return []
    head = (*HEAD, *(f"over {base.label}" for base in bases))
    known = PUBLISHED.tables["images_per_second"][model]
    cells = [[*_cells(row, known), *(_over(row, base) for base in bases)] for row in those]
    lines = table(*with_energy(head, cells, those))
    return [f"## {model}", "", *lines, *trust.note({row.label: row.runs for row in those}, "turns")]


def _cells(row: Row, papers: dict[str, float]) -> list[str]:
    rate, computing, messages = row.median("images_per_second", "median"), row.computing, _messages(row)
    at_most = "-"
    if rate and row.step_seconds and computing is not None:
        at_most = f"{rate * row.step_seconds / (computing + messages):,.0f}"
    return [
        row.label,
        "-" if rate is None else f"{rate:,.0f}",
        f"{papers[row.label]:,}" if row.label in papers else "-",
        *(_ms(each) for each in (row.step_seconds, computing, row.median("phases", "compress"))),
        size(most_sent(row)),
        _ms(messages),
        at_most,
    ]


def _messages(row: Row) -> float:
    """Seconds of a step's requests on links that have nothing else to do, by the cost model."""
    rate = parse_rate(row.runs[0].note["link"]) / 1e9
    return statistics.median(exchange_seconds(run, rate) for run in row.runs)


def _over(row: Row, base: Row) -> str:
    ratio = times_faster(row, base) if row is not base else None
    return ratio.words() if ratio else "-"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.0f} ms"


NOTE = (
    "Times and rates are medians of turns. `its messages take` is what links of this rate and start-up time need for a "
    "step's messages, by the cost model. `images/s at most` is the rate of a step that only computes and sends. What a "
    "row lacks of it goes into compressing, and into processors that cannot keep up with the links. In brackets "
    "the 95 % interval of the ratio, of turns that followed each other. `gs_sgd` has our defaults, `sketched_sgd` its "
    "authors' settings. `literal` is the algorithm as printed, with 5 rows of 4 k columns for both. `gtopk 16 bytes` "
    "sends indices and values as float64, as its authors' code does."
)
