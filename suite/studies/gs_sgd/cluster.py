"""What `wirebench study gs_sgd run --launch` made: runs told apart by what their own configs say.

Steps that were timed are rows, whole trainings are methods; only those of the paper's four workers say something.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from suite.studies import launched, notes
from suite.studies.convergence.rows import Method
from suite.studies.gs_sgd.claims import model_of
from suite.studies.gs_sgd.run import ON_CLUSTER
from suite.studies.notes import NotedRun
from suite.studies.rows import Row
from wirebench.errors import UserError

WORKERS = 4


class Measured(NamedTuple):
    """Rows by the paper's name of their model, and the methods of trainings, by the same."""

    rows: Mapping[str, Sequence[Row]]
    methods: Mapping[str, Sequence[Method]]


def load(folder: Path | None) -> Measured:
    """All of the paper's compositions below `folder`, none for None; UserError where there is none."""
    if folder is None:
        return Measured({}, {})
    timed, trained = (defaultdict[tuple[str, str], list[NotedRun]](list) for _ in range(2))
    for run in notes.finished(folder):
        model, label = model_of(run.record["config"]["model"]), label_of(run)
        if model and label and run.record["world_size"] == WORKERS:
            (trained if run.is_whole else timed)[model, label].append(run)
    if not timed and not trained:
        raise UserError(f"--cluster: {folder}: has no finished run of the paper's methods with {WORKERS} workers")
    models = {model: None for model, _ in (*timed, *trained)}
    return Measured(
        {each: [Row(label, tuple(runs)) for (model, label), runs in timed.items() if model == each] for each in models},
        {
            each: [Method(label, tuple(runs)) for (model, label), runs in trained.items() if model == each]
            for each in models
        },
    )


def label_of(run: NotedRun) -> str | None:
    """The row whose model and compressor the run has; None for none."""
    for part in ON_CLUSTER.values():
        for label, composition in part.rows.items():
            if launched.matches(run, composition):
                return label.partition(" ")[2]  # after the model
    return None
