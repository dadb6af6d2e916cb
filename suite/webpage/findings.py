"""What the suite found, in a few sentences made of the records."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from suite.studies import trust
from suite.studies.convergence.rows import DENSE as DENSE_TRAINING
from suite.studies.convergence.rows import Method
from suite.studies.convergence.rows import load as trained
from suite.studies.gs_sgd.claims import model_of
from suite.studies.rows import DDP, DENSE, Row, fastest, load, times_faster
from suite.studies.runner import RESULTS
from suite.studies.significance import LEAST_RUNS, LEVEL, difference_between
from suite.webpage.content import BROKEN, Section, counted
from wirebench.topology.rates import parse_rate

BY_VALUE = ("iwp", "threshold")
"""How much these send depends on gradients' values, which are noise in a replay: its speed says nothing of training."""


def sentences(sections: Sequence[Section], results: Path = RESULTS) -> list[str]:
    """Of the claims, of speed by model, and of accuracy; none of what was not measured."""
    papers = [section for section in sections if section.is_paper]
    return [_claims(papers), *_speeds(results / "methods"), *_accuracies(results / "convergence" / "resnet20")]


def _claims(papers: Sequence[Section]) -> str:
    states = counted(papers)
    said = _listed([f"{count.cell} {state}" for state, count in states.items()])
    rules = f"; in brackets: {BROKEN} of trust" if any(count.broken for count in states.values()) else ""
    claims = sum(count.claims for count in states.values())
    return f"**{claims} claims in {len(papers)} studies of papers:** {said}{rules}."


def _speeds(folder: Path) -> Iterator[str]:
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
        rate = parse_rate(rows[0].runs[0].note["link"]) / 1e9
        cluster = f"{dense.runs[0].note['hosts']} workers, {rate:g} Gbit/s, each compressor at its defaults"
        by_cluster.setdefault(cluster, []).append(_speed(methods, dense))
    for cluster, said in by_cluster.items():
        yield f"**{cluster}:** {'; '.join(said)}."


def _speed(methods: Sequence[Row], dense: Row) -> str:
    ratios = [(row, ratio) for row in methods if (ratio := times_faster(row, dense))]
    surely = [row for row, _ in ratios if _in_every_turn(row, dense)]
    best, (middle, low, high) = max(ratios, key=lambda each: each[1][0])
    broken = trust.rules_of((row.runs for row in (*methods, dense)), "turns")
    size = f"{best.runs[0].record['parameters'] / 1e6:.2g} million parameters"
    return (
        f"on {_model(best)}, {size}, {_so_many(len(surely), len(methods))} faster than dense training in every turn, "
        f"at most {middle:.1f} times [{low:.1f} - {high:.1f}], by {best.label.partition(' (')[0]}"
        + (f" (these records break rules of trust: {', '.join(broken)})" if broken else "")
    )


def _in_every_turn(row: Row, dense: Row) -> bool:
    """Whether each turn was faster than dense training's, the extremes too, which a spread leaves out."""
    return all(seconds < dense.turns.get(turn, 0.0) for turn, seconds in row.turns.items())


def _so_many(count: int, of: int) -> str:
    if count == of:
        return f"all {of} compressors are"
    return f"none of {of} compressors is" if count == 0 else f"{count} of {of} compressors are"


def _methods(rows: Sequence[Row]) -> list[Row]:
    """Each compressor's row at its defaults, which has its name alone; no dense ones, and none of BY_VALUE."""
    names = [(row.label.partition(" (")[0], row) for row in rows if row.step_seconds and not row.diverged]
    return [row for name, row in names if name not in (*DENSE, DDP, *BY_VALUE) and " " not in name]


def _model(row: Row) -> str:
    config = row.runs[0].record["config"]["model"]
    return model_of(config) or str(config.get("trace") or config["name"])


def _accuracies(folder: Path) -> Iterator[str]:
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
        f"{label} {points:.1f} [{low:.1f} to {high:.1f}], {times:.2g} times" for points, low, high, label, times in lost
    )
    rules = f" (these records break rules of trust: {', '.join(broken)})" if broken else ""
    yield (
        "**ResNet-20, ten epochs of CIFAR-10:** points of accuracy below dense training's "
        f"{statistics.mean(dense.judged):.1f} % [their {100 * (1 - 2 * LEVEL):.0f} % interval], and how many times "
        f"fewer bytes: {said}{rules}."
    )


def _lost(method: Method, dense: Method) -> tuple[float, float, float]:
    """Points of accuracy, and between which they lie."""
    low, high = difference_between(dense.judged, method.judged)
    return statistics.mean(dense.judged) - statistics.mean(method.judged), low, high


def _is_real(method: Method) -> bool:
    """Whether it is a method that can be used, not one that reads what no worker has."""
    return not method.label.startswith("oracle")


def _saving(method: Method, dense: Method) -> float:
    """How many times fewer bytes it sends than dense training does; 1 where that is not known."""
    if not method.wire_bytes or not dense.wire_bytes:
        return 1.0
    return statistics.mean(dense.wire_bytes) / statistics.mean(method.wire_bytes)


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))
