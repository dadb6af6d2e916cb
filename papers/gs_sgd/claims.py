"""The gs-SGD paper's claims about throughput, each beside the methods as printed, and how far other readings go."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from papers.findings import Finding, of_rows
from papers.gs_sgd.paper import PUBLISHED, READINGS, at
from papers.rows import Row, size, times_faster

_MODELS: tuple[tuple[str, dict[str, object]], ...] = (
    ("ResNet-20", {"name": "replay", "trace": "resnet20_gtx1080ti"}),
    ("ResNet-20", {"name": "resnet_cifar", "depth": 20}),
    ("VGG-16", {"name": "replay", "trace": "vgg16_cifar_gtx1080ti"}),
    ("VGG-16", {"name": "vgg_cifar", "depth": 16}),
)
METHODS = ("gtopk", "gs_sgd", "sketched_sgd")
AS_PRINTED = {"gtopk": "gtopk", "gs_sgd": "gs_sgd literal", "sketched_sgd": "sketched_sgd literal"}
"""Of the readings of what the paper leaves open, the one that a claim is judged by: the algorithms as printed, all with
the same k, both sketches of the same size."""
BASES = ("gtopk", "gtopk 16 bytes", "sketched_sgd", "sketched_sgd literal")
"""What throughputs are compared with."""


def model_of(section: Mapping[str, Any]) -> str | None:
    """The paper's name of the model of a record's config.model; None for one that it says nothing of."""
    names = (name for name, keys in _MODELS if all(section.get(key) == value for key, value in keys.items()))
    return next(names, None)


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Each claim about the throughput of the rows' model, or of any; none where the paper has no such model.

    Judged are the methods as printed (AS_PRINTED); results of the other readings are added.
    """
    model = model_of(rows[0].runs[0].record["config"]["model"])
    known = {row.label: row for row in rows if not row.diverged}
    found: list[Finding] = []
    for claim in PUBLISHED.claims.values():
        if model is None or "rival" not in claim.about or claim.about.get("model", model) != model:
            continue
        ours, rival = (known.get(AS_PRINTED[method]) for method in ("gs_sgd", claim.about["rival"]))
        measured = times_faster(ours, rival) if ours and rival else None
        if ours and rival and measured:
            others = _others(rows, claim.about["rival"]) + _sparser(known, claim.about["rival"])
            here = f"{measured.words()}; {_bytes(ours, rival)}{others}"
            about = "" if "model" in claim.about else model
            found.append(of_rows(claim, here, claim.judge(measured), (ours, rival), about))
    return found


def _others(rows: Sequence[Row], rival: str) -> str:
    """The least and the largest factor of all readings of both methods, of 1 %."""
    usual = [row for row in rows if not any(row.label.endswith(at("", share)) for share in READINGS)]
    pairs = itertools.product(of_method(usual, "gs_sgd"), of_method(usual, rival))
    ratios = [ratio.value for pair in pairs if (ratio := times_faster(*pair))]
    return f"; {min(ratios):.2f}x to {max(ratios):.2f}x in {len(ratios)} readings" if len(ratios) > 1 else ""


def _sparser(known: Mapping[str, Row], rival_method: str) -> str:
    """The factor at the densities beside 1 %, where both were measured."""
    said = ""
    for share in READINGS:
        ours, rival = (known.get(at(AS_PRINTED[method], share)) for method in ("gs_sgd", rival_method))
        if ours and rival and (ratio := times_faster(ours, rival)):
            said += f"; at {100 * share:g} % {ratio.words()}"
    return said


def of_method(rows: Sequence[Row], method: str) -> list[Row]:
    """The rows of a method and its variants that did not diverge, in the order of their labels."""
    those = [row for row in rows if row.label.partition(" ")[0] == method and not row.diverged]
    return sorted(those, key=lambda row: row.label)


def most_sent(row: Row) -> float | None:
    """Bytes of a step of the worker that sends most; older records have rank 0's only."""
    most = row.median("bytes_per_step", "wire_max")
    return row.median("bytes_per_step", "wire") if most is None else most


def _bytes(ours: Row, rival: Row) -> str:
    """What a worker sends in a step by either, and the rival's bytes over ours, of the worker that sends most."""
    sizes = " against ".join(size(row.median("bytes_per_step", "wire_mean")) for row in (ours, rival))
    most, rivals = most_sent(ours), most_sent(rival)
    return sizes + (f", {rivals / most:.2f}x by bytes" if most and rivals else "")
