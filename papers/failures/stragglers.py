"""One of four hosts at half speed: the steps per second that dense training and local steps keep.

ResNet-20 is replayed with the times of a GPU, ten times slower than life: cores that all hosts share decide little. On
the slow host the replayed passes take twice as long; compressing and sending take as long as on the others.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from papers import trust
from papers.claim import Claim
from papers.estimate import Estimate, ratio_of_turns
from papers.failures.faults import MINUTELY
from papers.findings import Finding, of_rows
from papers.launched import Trained
from papers.rows import Row, emulated_setting, load_alike
from papers.trainings import OwnCluster
from wirebench.errors import UserError
from wirebench.utils.markdown import table

FOLDER, CONFIG, SLOW = "straggler", "configs/tables/methods_resnet20.toml", " straggler"
SLOWDOWN = 2.0
PLACE = OwnCluster("100mbit", 4)
"""With the dilation links of 1 Gbit/s in life."""
_STEPS = ("train.warmup_steps=32", "train.max_steps=128", f"data.train_size={128 * 128 * 4}")
"""One round that does not count, three that do, all in one epoch."""
PART = Trained(
    "", {
        f"{method}{suffix}": (CONFIG, (*words, *more))
        for method, words in MINUTELY.items()
        for suffix, more in (("", ()), (SLOW, (f"network.straggler={SLOWDOWN:g}",)))
    },
    ("network.dilation=10", *_STEPS), here=PLACE, folder=f"failures/{FOLDER}", between="-", may_diverge=False,
)  # fmt: skip
"""Dense training, DiLoCo and SparseLoCo, each without and with the slow host, one after the other in each turn."""
HEAD = (
    "method", "turns", "steps/s", "steps/s with a host at half speed", "goodput [95 % interval]",
    "if a step took its computing longer",
)  # fmt: skip


def load(folder: Path) -> dict[str, Row]:
    """The rows by label, empty where there is no run; UserError for runs of several settings, or with a wrong label."""
    rows = load_alike(folder, emulated_setting)
    for run in (run for row in rows.values() for run in row.runs):
        found = run.has("config", "network", "straggler") or 1.0
        if found != (SLOWDOWN if run.note["label"].endswith(SLOW) else 1.0):
            raise UserError(f"{run.folder}: {run.note['label']!r} has network.straggler={found:g}")
    return rows


def findings(rows: Mapping[str, Row], claim: Claim) -> Iterator[Finding]:
    """The claim on each method that has turns with and without the slow host."""
    for method, plain, slow in _pairs(rows):
        measured = _goodput(plain, slow)
        if measured is not None:
            yield of_rows(claim, measured.percent(), claim.judge(measured), (slow, plain), about=method)


def lines(rows: Mapping[str, Row]) -> list[str]:
    """A Markdown table, a row for each method that has both; nothing where none has."""
    pairs = list(_pairs(rows))
    if not pairs:
        return []
    return [
        *table(HEAD, [_cells(*pair) for pair in pairs]),
        *trust.note({row.label: row.runs for _, *both in pairs for row in both}, "turns"),
    ]


def _pairs(rows: Mapping[str, Row]) -> Iterator[tuple[str, Row, Row]]:
    for method in MINUTELY:
        if method in rows and method + SLOW in rows:
            yield method, rows[method], rows[method + SLOW]


def _goodput(plain: Row, slow: Row) -> Estimate | None:
    """Steps per second with the slow host over those without, by the turns of both."""
    return ratio_of_turns(plain.mean_steps, slow.mean_steps)


def _cells(method: str, plain: Row, slow: Row) -> list[str]:
    goodput, usual = _goodput(plain, slow), plain.mean_step
    passes = [plain.median("phases", name) for name in ("forward", "backward")]
    expected = "-"
    if usual and None not in passes:
        computing = sum(each or 0.0 for each in passes)
        expected = f"{100 * usual / (usual + (SLOWDOWN - 1) * computing):.1f} %"
    speeds = ["-" if not seconds else f"{1 / seconds:.2f}" for seconds in (usual, slow.mean_step)]
    turns = str(min(len(plain.runs), len(slow.runs)))
    return [method, turns, *speeds, "-" if goodput is None else goodput.percent(), expected]
