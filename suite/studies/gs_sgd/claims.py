"""The gs-SGD paper's claims about speed, beside rows that were measured."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.studies import trust
from suite.studies.findings import Finding, claims_table
from suite.studies.published import load
from suite.studies.rows import Row, size, times_faster

PUBLISHED = load(Path(__file__).parent)

_MODELS: tuple[tuple[str, dict[str, object]], ...] = (
    ("ResNet-20", {"name": "replay", "trace": "resnet20_gtx1080ti"}),
    ("ResNet-20", {"name": "resnet_cifar", "depth": 20}),
    ("VGG-16", {"name": "replay", "trace": "vgg16_cifar_gtx1080ti"}),
    ("VGG-16", {"name": "vgg_cifar", "depth": 16}),
)


def model_of(section: Mapping[str, Any]) -> str | None:
    """The paper's name of the model of a record's config.model; None for one that it says nothing of."""
    names = (name for name, keys in _MODELS if all(section.get(key) == value for key, value in keys.items()))
    return next(names, None)


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Each claim about the rows' model; none where the rows are of another model.

    One for every variant of gs-SGD and of the rival (variants.py), since the paper leaves its settings open.
    """
    model = model_of(rows[0].runs[0].record["config"]["model"])
    those = [claim for claim in PUBLISHED.claims.values() if model and claim.about.get("model") == model]
    found = []
    for claim in those:
        for ours, rival in itertools.product(of_method(rows, "gs_sgd"), of_method(rows, claim.about["rival"])):
            measured = times_faster(ours, rival)
            if measured:
                ratio, low, high = measured
                here = f"{ratio:.2f}x [{low:.2f} - {high:.2f}]; {_bytes(ours, rival)}"
                verdict = claim.judge(ratio, (low, high))
                records = tuple(run.folder for row in (ours, rival) for run in row.runs)
                rules = trust.rules_of((ours.runs, rival.runs), "turns")
                about = f"{ours.label} over {rival.label}"
                found.append(Finding(claim, here, verdict, about, records=records, rules=rules))
    return found


def of_method(rows: Sequence[Row], method: str) -> list[Row]:
    """The rows of a method and its variants that did not diverge, in the order of their labels."""
    those = [row for row in rows if row.label.partition(" ")[0] == method and not row.diverged]
    return sorted(those, key=lambda row: row.label)


def _bytes(ours: Row, rival: Row) -> str:
    """What a worker sends in a step by either, and the rival's bytes over ours, of the worker that sends most."""
    sizes = " against ".join(size(row.median("bytes_per_step", "wire_mean")) for row in (ours, rival))
    most, rivals = (row.median("bytes_per_step", "wire") for row in (ours, rival))
    return sizes + (f", {rivals / most:.2f}x by bytes" if most and rivals else "")


def claims(rows: Sequence[Row]) -> list[str]:
    """The table of the claims with what its brackets are; nothing where there is none."""
    found = findings(rows)
    return [*claims_table(found), BRACKETS, ""] if found else []


BRACKETS = (
    "In brackets the least and the largest ratio of turns that followed each other, of five or more without the least "
    "and the largest; where a method has one turn only, its steps from the 10th to the 90th percentile stand in for "
    "turns. Sizes are the bytes of a step, the mean "
    "of the workers. By bytes: the rival's bytes over gs-SGD's, of the worker that sends most; the factor of a step "
    "that were nothing but the transfer of bytes. "
    "Computing brings it nearer to 1, start-ups and compressing move it either way."
)
