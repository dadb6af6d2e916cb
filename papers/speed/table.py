"""table.md of what was measured of compressors: a row for every method."""

from collections.abc import Sequence

from papers import lossless, trust
from papers.accuracy.known import of_classics
from papers.rows import DDP, DENSE, Row, fastest, made_by, ms, size, with_energy
from wirebench.planner.accuracy import Accuracies
from wirebench.utils.markdown import table

HEAD = (
    "method", "step ms [p10 - p90]", "x dense", "x DDP", "top-1, points", "compress", "exchange, exposed", "payload",
    "wire", "wire, mean of ranks", "interface", "interface - headers / wire", "left over", "ratio on the wire", "state",
)  # fmt: skip
TOLERANCE = 0.03
"""Share of `wire` by which the interface's bytes may differ from it, headers aside."""

BEYOND = " !"


def document(rows: Sequence[Row]) -> str:
    """The whole file."""
    first = rows[0].runs[0]
    config, note = first.record["config"], first.note
    baselines, accuracies = [fastest(rows, DENSE), fastest(rows, [DDP])], of_classics()
    head, cells = with_energy(HEAD, [_cells(row, baselines, accuracies) for row in rows], rows)
    lines = [
        f"# Every method on {config['model'].get('trace', config['model'].get('name', '?'))}",
        "",
        f"{first.record['parameters']:,} parameters, {first.record['world_size']} workers on {note['hosts']} emulated "
        f"hosts with links of {note['link']}, all on one {first.machine}. The workers share these, so `compress` is "
        "the time of a busy part of a core. Times are milliseconds, bytes those of one step; `wire` and the interface "
        "are rank 0's. A step is the median of the turns' medians, and in brackets are the least tenth and the largest "
        "ninetieth percentile of a turn's steps. `wirebench show` prints a record: its path is this folder's, with the "
        f"method and the turn.{_compared(*baselines)}",
        "",
        *_slowed(first.has("config", "network", "dilation") or 1),
        made_by("speed", (run for row in rows for run in row.runs)),
        "",
        *table(head, [*cells, lossless.row(head, "ratio on the wire", "images")]),
        *lossless.note("images"),
        *trust.note({row.label: row.runs for row in rows}, "turns"),
        *_accuracy(accuracies),
        *_wire_check(rows),
        *_noise(rows),
        "![time per step](steps.svg)",
        "",
    ]
    return "\n".join(lines)


def _cells(row: Row, baselines: Sequence[Row | None], accuracies: Accuracies) -> list[str]:
    between, left, ratio = row.steps_between, _left_over(row), row.median("compression_ratio", "wire")
    spread = "" if between is None else f" [{ms(between[0], 0)} - {ms(between[1], 0)}]"
    state = row.median("compressor_state")
    return [
        f"{row.title} ({_composition(row)})",
        ms(row.step_seconds, 0) + spread,
        *(_times(row, base) for base in baselines),
        accuracies.known[row.label].cell if row.label in accuracies.known else "-",
        ms(row.median("phases", "compress"), 0),
        ms(row.median("phases", "exchange_exposed"), 0),
        *(size(row.median("bytes_per_step", name)) for name in ("payload", "wire", "wire_mean", "nic")),
        "-" if left is None else f"{1 + left[1]:.3f}{BEYOND if abs(left[1]) > TOLERANCE else ''}",
        "-" if left is None else size(left[0]),
        "-" if ratio is None else f"{ratio:.3g}x",
        "-" if state is None else f"{state:.2g} d",
    ]


def _accuracy(accuracies: Accuracies) -> list[str]:
    """What the column of accuracies is of."""
    if not accuracies.known:
        return []
    return [
        f"`top-1, points`: the worst and the best seed beside dense training, of {accuracies.setting}: measured there, "
        "not in these runs, which train nothing.",
        "",
    ]


def _left_over(row: Row) -> tuple[float, float] | None:
    """What the interface carried beyond `wire` and the packets' headers: bytes of a step, and as a share of `wire`."""
    wire, nic, headers = (row.median("bytes_per_step", name) for name in ("wire", "nic", "nic_headers"))
    if not wire or nic is None or headers is None:
        return None
    return nic - headers - wire, (nic - headers - wire) / wire


def _wire_check(rows: Sequence[Row]) -> list[str]:
    """How well what was counted agrees with what the interface carried."""
    known = [pair for pair in map(_left_over, rows) if pair is not None]
    if not known:
        return []
    beyond = [count for count, share in known if abs(share) > TOLERANCE]
    which = f"{len(beyond)} of {len(known)} rows, marked{BEYOND}" if beyond else "no row"
    by = f", by {size(min(beyond))} to {size(max(beyond))}" if beyond else ""
    return [
        "`left over` is what the interface carried beside `wire` and the packets' headers. It is beyond "
        f"{100 * TOLERANCE:.0f} % of `wire` in {which}{by}. Of small messages it is the engine's own control messages, "
        "which `wire` does not count: about as many bytes for every sum or gather, whatever its size.",
        "",
    ]


def _noise(rows: Sequence[Row]) -> list[str]:
    """What of a replay is no property of the method."""
    compressors = {row.runs[0].has("config", "compressor", "name") for row in rows}
    if rows[0].runs[0].has("config", "model", "name") != "replay" or "iwp" not in compressors:
        return []
    return [
        "A replay's gradients are noise and its weights are random: the density of `iwp`, which compares the two, is "
        "set by their deviations here and says nothing of training.",
        "",
    ]


def _compared(dense: Row | None, ddp: Row | None) -> str:
    """What the columns of ratios divide by."""
    said = f" `x dense` is the step over that of the fastest dense row (`{dense.label}`)" if dense else ""
    if ddp:
        said += f"{', ' if said else ' '}`x DDP` over that of PyTorch's own synchroniser"
    return said + "." if said else ""


def _times(row: Row, base: Row | None) -> str:
    if row.step_seconds is None or base is None or base.step_seconds is None:
        return "-"
    return f"{row.step_seconds / base.step_seconds:.2f}"


def _composition(row: Row) -> str:
    names = [row.runs[0].has("config", section, "name") for section in ("scheduler", "collective")]
    return ", ".join(name or "?" for name in names)


def _slowed(factor: float) -> list[str]:
    """What an emulation in slow motion means for the figures."""
    if factor == 1:
        return []
    return [
        f"Everything but the compressors is slowed down {factor:g} times, links and computing alike: what stands here "
        f"are {factor:g} times the times of links {factor:g} times as fast, with compressors that are {factor:g} times "
        "as fast as this machine's.",
        "",
    ]
