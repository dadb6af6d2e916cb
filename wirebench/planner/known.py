"""What trainings of the project say of compressors: top-1 of images, or the loss of a language model.

data/accuracies.json has it, as `wirebench study publish` writes it from the records.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wirebench.planner.accuracy import LOSS, TOP1, Accuracies, Ended, Model
from wirebench.planner.dense import DenseRuns
from wirebench.utils.parsing import json_of

SHIPPED = Path(__file__).parent / "data" / "accuracies.json"
IMAGES, LANGUAGE = "images", "language"
MEASURES = {each.head: each for each in (TOP1, LOSS)}


def load(images: bool, numel: int) -> Accuracies:
    """Shipped accuracies: of image models, nearest to `numel` parameters, or else the losses of language models."""
    table = _shipped()
    return nearest(table[IMAGES], numel) if images else table[LANGUAGE][0]


def nearest(studies: Sequence[Accuracies], numel: int) -> Accuracies:
    """Merge the studies: a method that several trained has the results of the network nearest in size to the model.

    Each study compares its methods with its own dense runs. The first has most methods.
    """
    first, *others = studies
    for other in others:
        if not first.known or not other.known:
            continue
        chosen = {
            name: min(filter(None, (first.known.get(name), other.known.get(name))), key=lambda each: _off(each, numel))
            for name in {**first.known, **other.known}
        }
        named = ", ".join(sorted(name for name in chosen if chosen[name] is not first.known.get(name)))
        setting = f"{first.setting}; {named}: {other.setting}" if named else first.setting
        first = replace(first, known=chosen, setting=setting)
    return first


def table(accuracies: Accuracies) -> dict[str, Any]:
    """The accuracies as JSON values."""
    return {
        "measure": accuracies.measure.head,
        "setting": accuracies.setting,
        "too_much": None if accuracies.too_much == math.inf else accuracies.too_much,
        "known": {name: _of(each) for name, each in accuracies.known.items()},
        "local": {name: [_of(each) for each in those] for name, those in accuracies.local.items()},
        "dense": [each._asdict() for each in accuracies.dense] or None,
    }


def read(content: dict[str, Any]) -> Accuracies:
    """The accuracies from the JSON values that `table` returned."""
    measure = MEASURES[content["measure"]]

    def ended(values: dict[str, Any]) -> Ended:
        between, model = values["between"], values["model"]
        made = Ended(**{**values, "measure": measure})
        return made._replace(between=between and (between[0], between[1]), model=model and Model(*model))

    return Accuracies(
        content["setting"],
        {name: ended(each) for name, each in content["known"].items()},
        {name: [ended(each) for each in those] for name, those in content["local"].items()},
        measure,
        math.inf if content["too_much"] is None else content["too_much"],
        tuple(DenseRuns(**{**each, "losses": tuple(each["losses"])}) for each in content["dense"] or ()),
    )


def _of(ended: Ended) -> dict[str, Any]:
    return {key: value for key, value in ended._asdict().items() if key != "measure"}


@functools.cache
def _shipped() -> dict[str, list[Accuracies]]:
    content = json_of(SHIPPED.read_text(encoding="utf-8"))
    return {kind: [read(each) for each in content[kind]] for kind in (IMAGES, LANGUAGE)}


def _off(ended: Ended, numel: int) -> float:
    """How far the network's size is from the model's, on a scale of factors."""
    return math.inf if ended.model is None else abs(math.log(ended.model.parameters / numel))
