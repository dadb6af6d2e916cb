"""Losses by wire format: quantised sums of every format, with and without feedback, in both roundings, and rings.

One hop is `quantised_sum`. A ring that codes every hop is dense training on the collective `ring` with a wire format;
it has no feedback. All methods of a table have the same number of workers, and the same images or sequences in a step
whatever that number is. The GPT is the smallest of sizes.py, at 20 tokens a parameter and at the rate that the search
found for dense training; a step has 32 sequences, one for each of 32 workers. A loss is as good as dense training's if
a difference of 0.5 % is excluded (Schuirmann).
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from papers import estimate, lossless, trust
from papers.accuracy import cells, sizes
from papers.accuracy.curve import steps_of
from papers.accuracy.modern import DENSE
from papers.accuracy.rows import (
    MethodRuns,
    dense_of,
    losses,
    multiplicity,
    runs_of,
    shared,
    tokens,
)
from papers.accuracy.task import Composition, Methods, Task, laid_over, listed, methods_in
from papers.page import Page
from papers.rows import spread
from papers.significance import Comparison, corrected, paired
from wirebench.utils.markdown import table

SIZE, SUFFIX = "0.1m", "_formats_"
"""The GPT, and the middle of a part's name: its model's, this, and the number of workers."""
WORKERS = (4, 32)
MARGIN = 0.005
"""Share of a loss that counts as no difference."""
FORMS = (
    "int8", "nvfp4", "mxfp8", "mxfp4", "bf16", "int4", "fp8", "mxfp6", "fp16", "mxfp8_e5m2", "fp8_e5m2", "mxfp6_e3m2",
)  # fmt: skip
"""Those that most depends on first: of a part of the runs something can be said."""
FIRST = ("int8", "nvfp4 feedback", "mxfp8", "bf16", "mxfp4 feedback", "int4 feedback", "ring bf16", "ring int8")
"""What a first round of runs should have, beside dense training."""
RINGS = ("bf16", "int8", "mxfp8", "fp8", "nvfp4")
QUICK = (DENSE, "int8", "ring int8")
"""Methods of a study of two minutes."""
HEAD = (
    "format",
    "seeds",
    "test loss",
    "over dense, seed by seed",
    "at a margin of 0.5 %",
    "metric",
    "bytes of a run",
    "fewer bytes",
)


def _settings() -> dict[str, tuple[str, ...]]:
    """By label what is laid over the task's config, the most telling first."""
    found: dict[str, tuple[str, ...]] = {}
    for form in FORMS:
        one_hop = ("compressor.name=quantised_sum", f"compressor.form={form}")
        for feedback in ("", " feedback"):
            for rounding in ("", " stochastic"):
                found[f"{form}{feedback}{rounding}"] = (
                    *one_hop,
                    f"compressor.feedback={'true' if feedback else 'false'}",
                    f"compressor.rounding={rounding.strip() or 'nearest'}",
                )
    for form in RINGS:
        found[f"ring {form}"] = ("compressor.name=none", "collective.name=ring", f"collective.wire={form}")
    first = {label: found[label] for label in FIRST}
    return {DENSE: ("compressor.name=none",), **first, **found}


SETTINGS = _settings()


def parts_of(task: Task, name: str, samples: int, methods: Methods = listed) -> list[Task]:
    """A task's parts, one for each number of workers. samples: of a step of all workers."""
    return [
        replace(
            task, name=f"{name}{SUFFIX}{workers}", methods=methods, settings=SETTINGS, own=(),
            shared=(*task.shared, f"engine.workers={workers}", f"data.batch_size={samples // workers}"),
        )
        for workers in WORKERS
    ]  # fmt: skip


def at_dense_rate(part: Task, names: Sequence[str] | None, density: float = 0.0) -> list[Composition]:
    """All formats of the GPT, or those that are named, at the rate of dense training; none before it has one."""
    return sizes.at_rates(part, names, SIZE, lambda _: DENSE)


def page(folder: Path, task: Task) -> Page | None:
    """The table of one number of workers; None where nothing has run. UserError for runs of other settings."""
    methods = methods_in(folder, task)
    if not methods:
        return None
    order = list(SETTINGS)
    return Page(folder, document(task, sorted(methods, key=lambda each: order.index(each.label))))


def document(task: Task, methods: Sequence[MethodRuns]) -> str:
    """The whole file."""
    dense = dense_of(methods)
    family = corrected([None if each is dense else _against(each, dense) for each in methods])
    rows = [_cells(method, dense, compared) for method, compared in zip(methods, family, strict=True)]
    unit = lossless.unit_of(run for method in methods for run in method.runs)
    rows.append(lossless.row(HEAD, "fewer bytes", unit))
    lines = [f"# Losses by wire format: {task.name}", "", _setting(task, methods), "", *table(HEAD, rows)]
    lines += lossless.note(unit)
    lines += [multiplicity(family), "", *trust.note({each.label: each.runs for each in methods}, "seeds")]
    return "\n".join(lines)


def _against(method: MethodRuns, dense: MethodRuns | None) -> Comparison | None:
    """Whether losses are smaller than dense training's of the same seeds; None without a seed that both have."""
    return paired([-each for each in _losses_over(method, dense)], MARGIN)


def _losses_over(method: MethodRuns, dense: MethodRuns | None) -> list[float]:
    """By how much each seed's loss is above dense training's of that seed, as a share of it."""
    mine, theirs = _by_seed(method), _by_seed(dense)
    return [loss / theirs[seed] - 1 for seed, loss in mine.items() if seed in theirs]


def _by_seed(method: MethodRuns | None) -> dict[int, float]:
    """Final test losses; none where a seed diverged."""
    return {} if method is None else dict(zip((run.note["seed"] for run in method.runs), losses(method), strict=False))


def _setting(task: Task, methods: Sequence[MethodRuns]) -> str:
    usual, runs = shared(methods), runs_of(methods)
    more = " ".join(laid_over(runs, task))
    seen = f", {told} tokens a parameter" if (told := tokens(runs)) != "-" else ""
    return (
        f"{usual.get('model')} on {usual.get('data')}, {usual.get('workers')} virtual workers of "
        f"{usual.get('batch size')} samples, {max(map(steps_of, runs))} steps{seen}. One hop is `quantised_sum`; "
        "`ring` codes every hop. Rounding is to nearest where nothing is said. The loss is that of the test set at the "
        "end, in nats; after its sign, the standard deviation over seeds. Runs of a seed have the same start and the "
        "same data, so a format is compared with dense training seed by seed (Student's t), in brackets the interval "
        f"of 95 %. {f'All runs have {more}. ' if more else ''}Made by `wirebench study accuracy run --task "
        f"{task.name}` on {', '.join(dict.fromkeys(run.machine for run in runs))}."
    )


def _cells(method: MethodRuns, dense: MethodRuns | None, compared: Comparison | None) -> list[str]:
    above = [] if method is dense else _losses_over(method, dense)
    return [
        method.title,
        str(len(method.runs)),
        spread(losses(method)),
        "-" if not above else estimate.mean([100 * each for each in above]).words("{:+.2f} %", "{:+.2f}"),
        compared.words if compared else "-",
        f"{100 * statistics.mean(method.top1):.1f} % top-1" if method.top1 else "-",
        cells.sent(method),
        cells.fewer(method, dense),
    ]
