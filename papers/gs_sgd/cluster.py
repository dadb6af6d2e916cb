"""Runs that `wirebench study gs_sgd run --launch` made, classified by their own configs.

Timed steps are rows, whole trainings are methods; only runs with the paper's four workers are judged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from papers import launched
from papers.accuracy.rows import MethodRuns
from papers.claim import Verdict
from papers.findings import Finding
from papers.gs_sgd.claims import model_of
from papers.gs_sgd.run import ON_CLUSTER
from papers.rows import Row, machines
from wirebench.record.notes import NotedRun
from wirebench.topology.rates import parse_rate

WORKERS, LINK = 4, "1gbit"
"""The paper's."""
LOCAL = "local"


class MeasuredPart(NamedTuple):
    """Rows by the paper's name of their model, and the methods of trainings, by the same."""

    rows: Mapping[str, Sequence[Row]]
    methods: Mapping[str, Sequence[MethodRuns]]


def load(folder: Path | None) -> MeasuredPart:
    """All of the paper's compositions below `folder`, none for None; UserError if the folder has none."""
    runs = launched.on_cluster(
        folder, _model_of, lambda run: label_of(run) or "", f"the paper's methods with {WORKERS} workers"
    )
    return MeasuredPart(
        {model: [Row(*each) for each in by.items()] for model, by in runs.timed.items()},
        {model: [MethodRuns(*each) for each in by.items()] for model, by in runs.trained.items()},
    )


def _model_of(run: NotedRun) -> str | None:
    """The paper's name of a run's model; None for a run of another method, or not with as many workers of their own."""
    model, own = model_of(run.record["config"]["model"]), run.record["engine"] != LOCAL
    return model if model and label_of(run) and run.record["world_size"] == WORKERS and own else None


def label_of(run: NotedRun) -> str | None:
    """The row whose model and compressor the run has; None for none."""
    for part in ON_CLUSTER.values():
        for label, composition in part.rows.items():
            if launched.matches(run, composition):
                return label.partition(" ")[2]  # after the model
    return None


def in_its_setting(found: Finding, rows: Mapping[str, Sequence[Row]]) -> Finding:
    """A finding about time, judged only where its rows ran on the paper's four machines and links of its rate."""
    if "bytes_over" in found.claim.about:
        return found  # bytes are those of any network
    runs = [run for those in rows.values() for row in those for run in row.runs if run.folder in found.records]
    counts, links = {machines(run) for run in runs}, {str(run.note.get("link", "")) for run in runs}
    why = ""
    if counts != {WORKERS}:
        why = f"measured on {' and '.join(map(str, sorted(counts)))} machines, the claim is of {WORKERS}"
    elif not all(links):
        unknown = Verdict("not run here", why="the rate of the links is not noted: run --link")
        return replace(found, verdict=unknown)
    elif {parse_rate(link) for link in links} != {parse_rate(LINK)}:
        why = f"measured on links of {' and '.join(sorted(links))}, the claim is of {LINK}"
    return replace(found, verdict=Verdict("other setting", found.verdict.measured, why)) if why else found
