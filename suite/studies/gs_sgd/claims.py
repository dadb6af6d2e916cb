"""The gs-SGD paper's claims about speed, beside rows that were measured."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.studies.published import load
from suite.studies.rows import Row, size, times_faster
from wirebench.utils.markdown import table

PUBLISHED = load(Path(__file__).parent)
WIDE_SUFFIX = f" c={PUBLISHED.tables['released_sketched_sgd']['columns_per_entry']}k"
"""Of the labels of methods with the sketch of the released Sketched-SGD."""
HEAD = ("claim (arXiv 2108.06004, Table II)", "paper", "here [spread]", "bytes of a step, ours", "verdict")

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


def judged(rows: Sequence[Row]) -> list[list[str]]:
    """Each claim about the rows' model, as a line of a table; none where the rows are of another model."""
    model = model_of(rows[0].runs[0].record["config"]["model"])
    known = {row.label: row for row in rows if not row.diverged}
    about = [claim for claim in PUBLISHED.claims.values() if claim.about["model"] == model]
    verdicts = []
    for claim, suffix in itertools.product(about, ("", WIDE_SUFFIX)):
        ours, rival = known.get("gs_sgd" + suffix), known.get(claim.about["rival"] + suffix)
        measured = times_faster(ours, rival) if ours and rival else None
        if ours and rival and measured:
            ratio, low, high = measured
            sizes = " against ".join(size(row.median("bytes_per_step", "wire_mean")) for row in (ours, rival))
            what, shown = f"{model}: gs-SGD over {rival.label}", f"{ratio:.2f}x [{low:.2f} - {high:.2f}]"
            verdict = claim.judge(ratio, (low, high)).factors
            verdicts.append([what, f"{claim.number[0]}x", shown, sizes, verdict])
    return verdicts


def claims(rows: Sequence[Row]) -> list[str]:
    """The table of the claims with what its brackets are; nothing where there is none."""
    verdicts = judged(rows)
    return [*table(HEAD, verdicts), BRACKETS, ""] if verdicts else []


BRACKETS = (
    "In brackets the least and the largest ratio of turns that followed each other; where a method has one turn "
    "only, its steps from the 10th to the 90th percentile stand in for turns."
)
