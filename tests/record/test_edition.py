"""Editions: which runs keep to one, who names it, and that its tasks are those of the tables they name."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from papers.runner import RESULTS, ROOT
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.record import edition, recorded, rules, schema
from wirebench.record.edition import EditionTask
from wirebench.record.writer import RunRecord

TASKS = edition.tasks()
ACCURACY = next(task for task in TASKS if task.claim == "accuracy")


def runs_of(task: EditionTask) -> list[Any]:
    return recorded.directly_below((ROOT / task.table).parent)


@pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
def test_dense_runs_of_its_table_keep_to_a_task(task):
    runs = [run for run in runs_of(task) if run.composition.startswith(("dense", "naive", "wfbp", "DDP"))]
    assert runs
    for run in runs[: 2 * task.turns or len(task.seeds)]:
        named = edition.kept(run.record)
        assert named is not None and edition.named({"edition": named}) == task, list(task.differences(run.record))


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["config"]["train"].update(seed=99),
        lambda r: r["config"]["train"].update(epochs=2),
        lambda r: r["config"]["train"].pop("precision"),
        lambda r: r["config"]["model"].update(depth=32),
        lambda r: r.update(world_size=8),
    ],
)
def test_a_run_that_left_what_is_frozen_names_no_edition_and_breaks_the_rule_where_it_does(change):
    record = copy.deepcopy(runs_of(ACCURACY)[0].record)
    named = edition.kept(record)
    assert named is not None
    assert "edition" not in [each.rule for each in rules.broken({**record, "edition": named})]
    change(record)
    assert edition.kept(record) is None
    assert [each.rule for each in rules.broken({**record, "edition": named})].count("edition") == 1


@pytest.mark.parametrize(
    ("text", "python", "kept"),
    [
        (None, "3.11.7", True),
        (None, "3.12.1", False),
        ("559ad13e4f160bee", "3.12.1", True),
        ("0" * 16, "3.11.7", False),
    ],
)
def test_a_text_of_another_python_is_no_text_of_the_edition(text, python, kept):
    task = next(task for task in TASKS if task.text)
    run = next(run.record for run in runs_of(task) if edition.kept(run.record) and run.composition.startswith("dense"))
    record = {**copy.deepcopy(run), "edition": edition.kept(run)}
    record["environment"]["versions"]["python"] = python
    if text is not None:
        record["samples"]["text"] = text
    assert (edition.kept(record) is not None) == kept
    told = [each.how for each in rules.broken(record) if each.rule == "edition"]
    expected = f"samples.text is {text!r} (Python {python}), and 2026.12's gpt has '559ad13e4f160bee' (Python 3.11.7)"
    assert told == ([] if kept else [expected])


def test_a_link_of_another_rate_is_another_task():
    task = next(task for task in TASKS if "link_mbit" in task.frozen)
    record = copy.deepcopy(next(run.record for run in runs_of(task) if edition.kept(run.record)))
    record["ranks"][1]["link_mbit"] = {"eth0": 100.0}
    assert edition.kept(record) is None
    record["ranks"] = None
    assert edition.kept(record) is None


@pytest.mark.parametrize("named", [{"name": "1999.1", "task": "resnet20"}, {"name": "2026.12", "task": "none"}])
def test_an_edition_that_does_not_exist_breaks_the_rule(named):
    record = {**recorded.read(RESULTS / "gs-sgd/vgg16/gtopk-0"), "edition": named}
    assert "edition" in [each.rule for each in rules.broken(record)]
    assert schema.problems({**record, "edition": "2026.12"}), "a text is no edition"


@pytest.mark.parametrize("epochs", [True, False])
def test_a_record_names_its_edition(epochs, tmp_path: Path):
    words = ["compressor.name=fp16", *(["train.epochs=10"] if epochs else ["train.epochs=9"])]
    config = resolve(loader.load(ROOT / "configs/tables/convergence_resnet20.toml", words))
    fields = copy.deepcopy(recorded.read(RESULTS / "gs-sgd/vgg16/gtopk-0"))
    for key in ("schema", "status", "config", "environment", "world_size", "history"):
        fields.pop(key)
    record = RunRecord(tmp_path, loader.to_dict(config), loader.dump(config), {}, False, world_size=4, note=print)
    record.finish("finished", **fields)
    told = json.loads((tmp_path / "record.json").read_text())
    assert told.get("edition") == ({"name": "2026.12", "task": "resnet20"} if epochs else None)
