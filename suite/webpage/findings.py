"""What the suite found, in a few sentences made of the records."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from suite.planner.accuracy import Accuracies, Ended
from suite.studies import trust
from suite.studies.claim import State
from suite.studies.convergence.accuracies import load as load_accuracies
from suite.studies.convergence.rows import DENSE as DENSE_TRAINING
from suite.studies.convergence.rows import Method
from suite.studies.convergence.rows import load as trained
from suite.studies.estimate import Estimate, difference, surely
from suite.studies.gs_sgd.claims import model_of
from suite.studies.rows import DDP, DENSE, Row, fastest, load, times_faster
from suite.studies.runner import RESULTS
from suite.studies.significance import LEAST_RUNS, LEVEL
from suite.webpage.content import BROKEN, Count, Section, counted
from suite.webpage.loss_by_time import loss_by_time
from suite.webpage.prose import listed
from wirebench.topology.rates import parse_rate

LITTLE = 1.0
"""Points of accuracy."""
BY_VALUE = ("iwp", "threshold")
"""How much these send depends on gradients' values, which are noise in a replay: its speed says nothing of training."""


Link = Callable[[Path], str]
"""Where a sentence leads to for the table in a folder."""


def sentences(sections: Sequence[Section], link: Link, results: Path = RESULTS) -> list[str]:
    """Of the claims, of speed by model, of accuracy, and of loss by time; none of what was not measured."""
    accuracies = load_accuracies(results / "convergence" / "quick")
    speeds = _speeds(results / "methods", accuracies, link)
    times = loss_by_time(results / "today" / "gpt", link)
    return [_claims(sections), *speeds, *_accuracies(results / "convergence" / "resnet20", link), *times]


def _claims(sections: Sequence[Section]) -> str:
    papers, own = (counted(sections, papers=each) for each in (True, False))
    studies = sum(section.is_paper for section in sections)
    said = f"**{_how_many(papers)} claims of papers, in {studies} studies:** {_by_state(papers)}"
    said += f"; of {_how_many(own)} claims of the suite's own {_by_state(own)}" if own else ""
    broken = any(count.broken for count in counted(sections).values())
    said += f"; in brackets: {BROKEN} of trust." if broken else "."
    return f"{said} A verdict is about what ran here, which is mostly smaller than what the papers ran."


def _how_many(counts: Mapping[State, Count]) -> int:
    return sum(count.claims for count in counts.values())


def _by_state(counts: Mapping[State, Count]) -> str:
    return listed([f"{count.cell} {state}" for state, count in counts.items()])


def _speeds(folder: Path, accuracies: Accuracies, link: Link) -> Iterator[str]:
    """For each cluster: how many methods are faster than dense training, and the fastest, by model.

    Networks that were slowed down are left out.
    """
    by_cluster: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*/table.md"), reverse=True):
        rows = load(path.parent)
        dense, methods = fastest(rows, DENSE), _methods(rows)
        slowed = rows[0].runs[0].has("config", "network", "dilation") or 1
        if dense is None or not methods or slowed != 1:
            continue
        said = _speed(methods, dense, accuracies) + f" ([table]({link(path.parent)}))"
        by_cluster.setdefault(_setting(methods, dense), []).append(said)
    lost = " In brackets: of speed the 95 % interval"
    lost += (
        f"; of points of accuracy the worst and the best seed, of {accuracies.setting}." if accuracies.setting else "."
    )
    for setting, said_of in by_cluster.items():
        yield f"**{setting}:** {'; '.join(said_of)}.{lost}"


def _setting(methods: Sequence[Row], dense: Row) -> str:
    """What the rows share, in words: a reader takes hosts for machines, and a replay for training, unless told."""
    run = dense.runs[0]
    rate = parse_rate(run.note["link"]) / 1e9
    densities = sorted({value for row in methods if (value := row.runs[0].has("config", "compressor", "density"))})
    replay = ", computing replayed" if run.has("config", "model", "name") == "replay" else ""
    ends = " to ".join(f"{each:g}" for each in dict.fromkeys((*densities[:1], *densities[-1:])))
    density = f", density {ends}" if ends else ""
    return f"{run.note['hosts']} hosts with links of {rate:g} Gbit/s, emulated on one machine{replay}{density}"


def _speed(methods: Sequence[Row], dense: Row, accuracies: Accuracies) -> str:
    ratios = {_name(row): ratio for row in methods if (ratio := times_faster(row, dense))}
    faster = surely(ratios, lambda name, ends: ends[0] > 1)
    order = sorted(ratios, key=lambda name: -ratios[name].value)
    first, mild = order[0], next((name for name in order if _lost_little(accuracies.known.get(name))), None)
    told = f"the fastest is {_told(first, ratios[first], accuracies)}"
    if mild not in (None, first):
        told += f"; of those of which no seed lost a point, {_told(mild, ratios[mild], accuracies)}"
    broken = trust.rules_of((row.runs for row in (*methods, dense)), "turns")
    size = f"{dense.runs[0].record['parameters'] / 1e6:.2g} million parameters"
    turns = f"by {len(dense.runs)} turns, all of them together at 5 % (Holm)"
    return (
        f"on {_model(dense)}, {size}, {_so_many(len(faster), len(methods))} faster than dense training {turns}; {told}"
        + (f" (these records break rules of trust: {', '.join(broken)})" if broken else "")
    )


def _lost_little(ended: Ended | None) -> bool:
    least = None if ended is None else ended.points if ended.between is None else ended.between[0]
    return least is not None and least > -LITTLE


def _told(name: str, ratio: Estimate, accuracies: Accuracies) -> str:
    """How many times faster a method is, and what it did to the accuracy, where that is known."""
    known = accuracies.known.get(name)
    points = f", {known.said} points" if known and known.points is not None else ""
    return f"{name}, {ratio.words('{:.1f} times', '{:.1f}')}{points}"


def _name(row: Row) -> str:
    return row.label.partition(" (")[0]


def _so_many(count: int, of: int) -> str:
    if count == of:
        return f"all {of} compressors are"
    return f"none of {of} compressors is" if count == 0 else f"{count} of {of} compressors are"


def _methods(rows: Sequence[Row]) -> list[Row]:
    """Each compressor's row without options of its own, named by its name alone; no dense ones, none of BY_VALUE."""
    names = [(_name(row), row) for row in rows if row.step_seconds and not row.diverged]
    return [row for name, row in names if name not in (*DENSE, DDP, *BY_VALUE) and " " not in name]


def _model(row: Row) -> str:
    config = row.runs[0].record["config"]["model"]
    return model_of(config) or str(config.get("trace") or config["name"])


def _accuracies(folder: Path, link: Link) -> Iterator[str]:
    """How many points of accuracy each method loses, between which bounds, and with how many times fewer bytes."""
    if not folder.is_dir():
        return
    methods = [method for method in trained(folder) if len(method.judged) >= LEAST_RUNS and _is_real(method)]
    dense = next((method for method in methods if method.label == DENSE_TRAINING), None)
    if dense is None or len(methods) < 2:
        return
    broken = trust.rules_of((method.runs for method in methods), "seeds")
    lost = sorted(
        (*_lost(method, dense), method.label, _saving(method, dense)) for method in methods if method != dense
    )
    said = "; ".join(
        f"{label} {-points:+.1f} [{-high:+.1f} to {-low:+.1f}], {times:.2g} times"
        for points, low, high, label, times in lost
    )
    rules = f" (these records break rules of trust: {', '.join(broken)})" if broken else ""
    ends = f"{statistics.mean(dense.judged):.1f} %"
    yield (
        f"**ResNet-20, ten epochs of CIFAR-10, dense training ends at {ends}:** points of accuracy against that "
        f"[{100 * (1 - LEVEL):.0f} % interval of the difference], and how many times fewer bytes: {said}{rules} "
        f"([table]({link(folder)}))."
    )


def _lost(method: Method, dense: Method) -> tuple[float, float, float]:
    """Points of accuracy, and between which they lie: beyond either end the table's test of both sides tells apart."""
    lost = difference(dense.judged, method.judged)
    return lost.value, *lost.ends


def _is_real(method: Method) -> bool:
    """Whether it is a method that can be used, not one that reads what no worker has."""
    return not method.label.startswith("oracle")


def _saving(method: Method, dense: Method) -> float:
    """How many times fewer bytes it sends than dense training does; 1 where that is not known."""
    if not method.wire_bytes or not dense.wire_bytes:
        return 1.0
    return statistics.mean(dense.wire_bytes) / statistics.mean(method.wire_bytes)
