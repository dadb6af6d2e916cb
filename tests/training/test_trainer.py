"""A whole run in this process, with virtual workers: the same again, whatever it is cut into, and what it records."""

import json
from typing import Any

import pytest

from wirebench.compose.build import compose
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.gradient import flat
from wirebench.training.loop import conduct

TABLE: dict[str, dict[str, Any]] = {
    "model": {"name": "toy", "hidden": 2, "unused": True},
    "data": {
        "name": "synthetic", "image_size": 4, "channels": 1, "num_classes": 3, "train_size": 48, "test_size": 10,
        "batch_size": 4,
    },
    "engine": {"workers": 3, "threads": 1, "device": "cpu"},
    "optimizer": {"lr": 0.05},
    "train": {"epochs": 2, "warmup_steps": 1},
    "output": {"tensorboard": False},
}  # fmt: skip


def record_of(folder, **changes: Any) -> dict[str, Any]:
    """The record of a run of TABLE with `section__key=value` changed."""
    table = {section: dict(keys) for section, keys in TABLE.items()}
    table["output"]["dir"] = str(folder)
    for key, value in changes.items():
        section, _, name = key.partition("__")
        table.setdefault(section, {})[name] = value
    run = compose(loader.from_dict(table))
    try:
        conduct(run)
    finally:
        run.stopper.close()
    record: dict[str, Any] = json.loads((folder / "record.json").read_text())
    return record


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> dict[str, Any]:
    return record_of(tmp_path_factory.mktemp("plain"))


def losses(record: dict[str, Any]) -> list[float]:
    return [entry["loss"] for entry in record["history"]] + [record["final"]["loss"]]


def test_the_record_of_a_run(plain):
    assert (plain["status"], plain["engine"], plain["world_size"]) == ("finished", "local", 3)
    assert plain["parameters"] == 2 * 9 + 2 + 3 * 8 + 3 + 3
    assert plain["images_per_second"]["steps"] == 2 * 4 - 1, "one step is warm-up"
    assert all(plain["phases"][name] > 0 for name in plain["phases"])
    assert plain["bytes_per_step"]["payload"] == plain["bytes_per_step"]["dense"] == 4 * plain["parameters"]
    assert [entry["epoch"] for entry in plain["history"]] == [0, 1]
    assert len(plain["requests"]) == 5, "one message per tensor"


def test_the_same_run_again_is_the_same_to_the_bit(plain, tmp_path):
    assert losses(record_of(tmp_path)) == losses(plain)
    assert losses(record_of(tmp_path / "other", train__seed=1)) != losses(plain)


@pytest.mark.parametrize(
    "changes",
    [
        {"scheduler__name": "sync_easgd"},
        {"collective__name": "ring"},
        {"collective__name": "tree"},
        {"train__accumulation": 2},
    ],
    ids=str,
)
def test_how_gradients_travel_changes_no_result(plain, tmp_path, changes):
    assert losses(record_of(tmp_path, **changes)) == pytest.approx(losses(plain), rel=1e-5)


def test_an_update_is_of_clipped_gradients_and_not_clipped_itself(tmp_path):
    lion = {"compressor__name": "lion_sign", "optimizer__momentum": 0.0, "train__max_steps": 1}
    once = {"scheduler__name": "sync_easgd", **lion}
    assert losses(record_of(tmp_path / "clip", **once, optimizer__clip=1e-3)) == losses(
        record_of(tmp_path / "none", **once)
    ), "the sign of a first gradient is that of any multiple"
    with pytest.raises(UserError, match=r"needs it whole: optimizer\.clip scales each worker's gradient by the norm"):
        record_of(tmp_path / "wfbp", **lion, optimizer__clip=1e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"output__health_every": 2, "scheduler__name": "single"},
        {"scheduler__name": "dear"},
        {"scheduler__name": "outer", "scheduler__every": 2},
        {"compressor__name": "powersgd"},
        {"compressor__name": "dgc", "compressor__dense_below": 1000, "optimizer__momentum": 0.0},
    ],
    ids=str,
)
def test_gaps_between_aligned_layers_change_no_result(tmp_path, changes, monkeypatch):
    """As where channels_last weights lie on a GPU; the toy's layers have odd sizes."""
    without = record_of(tmp_path / "without", **changes)
    monkeypatch.setattr(flat, "_step_of", lambda parameters: 4)
    found = record_of(tmp_path / "gaps", **changes)
    assert losses(found) == pytest.approx(losses(without), rel=1e-5)
    assert found["parameters"] == without["parameters"]
    assert found["bytes_per_step"]["dense"] == without["bytes_per_step"]["dense"]
    for name, reading in (without["health"] or {}).items():
        assert found["health"][name] == pytest.approx(reading, rel=1e-5, abs=1e-6), name


def test_a_run_can_end_within_an_epoch(tmp_path):
    record = record_of(tmp_path, train__max_steps=3)
    assert record["steps_done"] == 3
    assert [entry["epoch"] for entry in record["history"]] == [0]


def test_a_data_set_without_test_images_has_no_accuracy(tmp_path):
    record = record_of(tmp_path, data__test_size=0)
    assert record["status"] == "finished"
    assert record["final"] == {"loss": None, "top1": None, "top5": None}
