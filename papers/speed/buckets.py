"""The table of plain DDP with the planner's buckets: steps per second, and the gain that the planner predicted."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from papers import trust
from papers.estimate import mean
from papers.page import Page
from papers.rows import DDP, Row, made_by, ms, times_faster
from papers.speed.parts import HOSTS, LISTED, MERGES, ONE, OURS, OWN, BucketMerge
from wirebench.planner.ddp_caps import caps_text
from wirebench.utils.markdown import table

HEAD = (
    "method", "turns", "steps per second [95 % interval]", "x DDP [95 % interval]", "x DDP, predicted", "step ms",
    "messages, planned",
)  # fmt: skip
ABOUT = {
    OWN: "its own buckets: 1 MiB, then 25 MiB",
    LISTED: "the planner's buckets",
    ONE: "one cap for all buckets",
    OURS: "the planner's rule in our exchange, on times of the run's own",
}


def is_of(rows: Iterable[Row]) -> bool:
    """Whether a folder's rows are of plain DDP in several buckets."""
    return any(row.label in (LISTED, ONE) for row in rows)


def page(folder: Path, rows: Iterable[Row]) -> Page:
    """The page of a folder's rows."""
    return Page(folder, document({row.label: row for row in rows}))


def merge_of(row: Row) -> BucketMerge | None:
    """The planner's merge for the setting of a row; None for a setting that it was not asked about."""
    run = row.runs[0]
    config = run.record["config"]
    trace, batch = config["model"].get("trace"), config["data"].get("batch_size")
    given = (run.note["link"], run.note["hosts"], trace, batch, run.has("config", "network", "dilation"))
    return next((m for m in MERGES.values() if (m.link, HOSTS, m.trace, m.batch, m.dilation) == given), None)


def document(rows: Mapping[str, Row]) -> str:
    """The whole file. Rows by label."""
    known = [rows[label] for label in ABOUT if label in rows]
    run, merge = known[0].runs[0], merge_of(known[0])
    trace, dilation = run.record["config"]["model"].get("trace"), run.has("config", "network", "dilation") or 1
    lines = [
        f"# Plain DDP with the planner's buckets: {trace}",
        "",
        f"{run.record['parameters']:,} parameters, {run.record['world_size']} workers on {run.note['hosts']} emulated "
        f"hosts with links of {run.note['link']}, all on one {run.machine}. Links and computing are {dilation:g} times "
        "slower than in life. A step is the median of a turn's counted steps; gains compare the turns of a row with "
        "DDP's own turns. Predictions are the planner's, made before the runs (`papers/speed/parts.py`).",
        "",
        made_by("speed", (each for row in known for each in row.runs)),
        "",
        *table(HEAD, [_cells(row, rows.get(DDP), merge) for row in known]),
        *([f"`bucket_cap_mb_list={caps_text(merge.caps)}`, `bucket_cap_mb={merge.one:g}`.", ""] if merge else []),
        *trust.note({row.label: row.runs for row in known}, "turns"),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _cells(row: Row, own: Row | None, merge: BucketMerge | None) -> Sequence[str]:
    gain = None if own is None else times_faster(row, own)
    predicted = merge.predicted.get(row.label) if merge else None
    messages = row.median("prediction", "messages")
    return [
        f"{row.title} ({ABOUT[row.label]})",
        str(len(row.runs)),
        mean([1 / seconds for seconds in row.turns.values()]).words("{:.3f}", "{:.3f}") if row.turns else "-",
        "1" if row.label == OWN else "-" if gain is None else gain.words(),
        "-" if predicted is None else f"{predicted:.2f}x" if row.label != OWN else "1",
        ms(row.step_seconds),
        "-" if messages is None else f"{messages:.0f}",
    ]
