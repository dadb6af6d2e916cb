"""The paper's measured claims, judged by runs that users with a cluster made by the claims' commands.

Runs are classified by their records: the network, the schedule, and the number of machines. Hosts that one machine
plays are one machine, so an emulated cluster says nothing here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from papers.accuracy.rows import MethodRuns
from papers.accuracy.verdicts import points_below
from papers.claim import Claim, Verdict, together
from papers.findings import Finding, of_rows
from papers.mg_wfbp.figures import RING, Times
from papers.mg_wfbp.paper import GOOGLENET, MODELS, PUBLISHED, RESNET, PaperModel
from papers.rows import Row, alike, fastest, grouped, machines, refuse_twice, times_faster
from wirebench.errors import UserError
from wirebench.record import collective_results, recorded
from wirebench.record.notes import NotedRun
from wirebench.topology.tree import Topology

NAMES = {"googlenet": GOOGLENET, "resnet50": RESNET}
"""The models that compute. A replay of the authors' own log stands for one; a reconstructed trace does not."""
OURS, S_SGD = "mg_wfbp", "sync_easgd"
"""One message after the backward pass is S-SGD."""


class Setting(NamedTuple):
    """What a run is of: the network by the paper's name, its schedule, machines, ranks on each, and what was run.

    how  replayed, computing, or trained: a whole training
    """

    model: str
    schedule: str
    nodes: int
    ranks: int
    how: str


Rows = Mapping[Setting, Row]


def load(folder: Path | None) -> list[NotedRun]:
    """The finished runs of the paper's networks below `folder`, none for None; UserError where there is nothing."""
    if folder is None:
        return []
    found = [run for run in recorded.finished(folder) if model_of(run) is not None]
    if not found and not rings(folder):
        raise UserError(f"--cluster: {folder}: has no finished run of {' or '.join(NAMES)}")
    return found


def rings(folder: Path) -> dict[int, dict[int, Times]]:
    """All-reduces by the ring that were timed alone, by machines and bytes."""
    found: dict[int, dict[int, Times]] = {}
    for file in sorted(folder.rglob("cells/[!.]*.jsonl")):
        for cell in collective_results.load(file).cells:
            nodes = len(Topology.parse(cell.layout).machines)
            if cell.label == RING and nodes > 1:
                times = Times(cell.median, (min(cell.seconds), max(cell.seconds)))
                found.setdefault(nodes, {})[cell.num_bytes] = times
    return found


def model_of(run: NotedRun) -> PaperModel | None:
    """The paper's network that the run computes, or replays by the authors' log at its own speed; else None."""
    section = run.record["config"]["model"]
    if section.get("name") != "replay":
        return NAMES.get(str(section.get("name")))
    if (run.has("config", "network", "dilation") or 1) != 1:
        return None
    return next((model for model in MODELS if model.measured and model.trace == section.get("trace")), None)


def findings(runs: Sequence[NotedRun]) -> list[Finding]:
    """Every claim of which these runs have all that it compares."""
    rows = rows_of(runs)
    found: list[Finding] = []
    for claim in PUBLISHED.claims.values():
        for model in MODELS:
            if "predicted_over" in claim.about:
                found += _factors(claim, model, rows)
            elif "predicted_efficiency" in claim.about:
                found += _efficiencies(claim, model, rows)
            elif claim.id == "convergence":
                found += _convergence(claim, model, runs)
    return found


def rows_of(runs: Sequence[NotedRun]) -> Rows:
    """The runs of each setting, whose records say on how many machines they ran; of a network alike but for worlds."""
    placed = [run for run in runs if model_of(run) and machines(run)]
    kinds = grouped(placed, lambda run: (setting_of(run).model, setting_of(run).how))
    by = grouped((run for those in kinds.values() for run in alike(those, worlds=True)), setting_of)
    for setting, those in by.items():
        refuse_twice(f"{setting.model}, {setting.schedule} on {setting.nodes}", those)
    return {setting: Row(setting.schedule, those) for setting, those in by.items()}


def setting_of(run: NotedRun) -> Setting:
    """What a run of one of the networks is of, which says on how many machines it ran."""
    model, nodes = model_of(run), machines(run)
    assert model is not None
    return Setting(model.label, schedule_of(run), nodes, run.record["world_size"] // nodes, how_of(run))


def how_of(run: NotedRun) -> str:
    """Whether the network is replayed, computes for some steps, or is trained."""
    return "replayed" if run.has("config", "model", "name") == "replay" else "trained" if run.is_whole else "computing"


def schedule_of(run: NotedRun) -> str:
    """The run's schedule; with `on star` for one on a parameter server, as paper.STAR has it."""
    schedule = str(run.has("config", "scheduler", "name"))
    return f"{schedule} on star" if run.has("config", "collective", "name") == "star" else schedule


def _factors(claim: Claim, model: PaperModel, rows: Rows) -> Iterator[Finding]:
    """MG-WFBP's step against the rival's, on the most nodes that the authors had."""
    rival = claim.about["predicted_over"]
    figure = model.seconds(model.nodes[-1], rival) / model.seconds(model.nodes[-1], OURS)
    for setting, ours in rows.items():
        other = rows.get(setting._replace(schedule=rival))
        if other and setting[:3] == (model.label, OURS, model.nodes[-1]) and (ratio := times_faster(ours, other)):
            verdict = claim.judge(ratio, expected=figure)
            yield _finding(claim, setting, ratio.words(), verdict, (ours, other), f"{figure:.2f}x")


def _efficiencies(claim: Claim, model: PaperModel, rows: Rows) -> Iterator[Finding]:
    """The share of the throughput of as many single nodes, on each of the claim's numbers of nodes."""
    schedule, nodes = claim.about["predicted_efficiency"], claim.about["nodes"]
    for ranks, how in sorted({(setting.ranks, setting.how) for setting in rows}):
        one = (model.label, 1, ranks, how)
        single = [row for each, row in rows.items() if (each.model, each.nodes, each.ranks, each.how) == one]
        alone = fastest(single, [row.label for row in single])
        settings = [Setting(model.label, schedule, each, ranks, how) for each in nodes]
        many = {setting.nodes: rows[setting] for setting in settings if setting in rows}
        found = {node: times_faster(row, alone) for node, row in many.items()} if alone else {}
        shares = {f"{node} nodes": share for node, share in found.items() if share}
        if alone and len(shares) == len(nodes):
            lowest = min(shares.values(), key=lambda share: share.value)
            verdict = together(claim.judge_each(shares))
            yield _finding(claim, settings[0], lowest.percent(), verdict, (*many.values(), alone))


def _finding(
    claim: Claim, setting: Setting, here: str, verdict: Verdict, rows: Sequence[Row], figure: str = ""
) -> Finding:
    measured_claim = replace(claim, text=claim.text.partition("; here: ")[0])  # not "here: predicted"
    about = f"{setting.model}, {setting.ranks} a node, {setting.how}"
    return of_rows(measured_claim, here, verdict, rows, about, figure)


def _convergence(claim: Claim, model: PaperModel, runs: Sequence[NotedRun]) -> Iterator[Finding]:
    """Accuracies of trainings on images that are as long as the claim's: MG-WFBP's against S-SGD's."""
    ours, rival = (
        MethodRuns(schedule, tuple(run for run in runs if _is_training(run, model, schedule, claim.about["epochs"])))
        for schedule in (OURS, S_SGD)
    )
    if ours.runs and rival.runs:
        for method in (ours, rival):
            refuse_twice(method.label, method.runs)
        yield points_below(claim, ours, rival, model.label)


def _is_training(run: NotedRun, model: PaperModel, schedule: str, epochs: int) -> bool:
    return (
        model_of(run) is model
        and run.has("config", "scheduler", "name") == schedule
        and (run.has("config", "train", "epochs"), run.is_whole, run.on_imagenet) == (epochs, True, True)
        and run.has("final", "top1") is not None
    )
