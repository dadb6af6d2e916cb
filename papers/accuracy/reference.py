"""The runs of results/convergence as references of others, which the package ships, and all records beside them."""

from collections.abc import Iterable
from pathlib import Path

from papers.accuracy import rows
from papers.accuracy.tasks import CLASSICS
from papers.runner import RESULTS
from wirebench.inspect.reference import DATA, Trained, accuracies, composition, remarks
from wirebench.record.notes import NotedRun

REFERENCES = RESULTS / "convergence"


def references(results: Path = REFERENCES) -> list[Trained]:
    """Every method of every task; UserError for a run that cannot be read."""
    folders = {task.name: results / task.name for task in CLASSICS}
    return [
        Trained(
            name, method.label, composition(method.runs[0].record), not method.ends,
            [found for run in method.runs if (found := accuracies(rows.history(run)))],
        )
        for name, folder in folders.items()
        if folder.is_dir()
        for method in rows.load(folder)
    ]  # fmt: skip


def flagged(runs: Iterable[NotedRun], results: Path = REFERENCES) -> list[tuple[Path, str]]:
    """Paths of runs, each with a line for each figure in which its run is not as its references.

    A run that is a reference itself is compared with the others. UserError for a reference that cannot be read.
    """
    trained = [run for run in runs if run.has("config", "data", "name") == DATA]
    known = references(results) if trained else []
    return [(run.folder, said) for run in trained for said in remarks(run.record, known)]
