"""What a run leaves behind, how it survives kills and resumption, and what a valid record is."""

import inspect
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams import metadata

from tests.record.gpus import RANK_0, all_ranks, device
from wirebench.config import loader as configuration
from wirebench.errors import UserError
from wirebench.record.scalars import method
from wirebench.record.schema import problems, read, validate
from wirebench.record.writer import NullRecord, RunRecord, run_directory
from wirebench.telemetry.step_stats import PHASES, StepTimes, summary
from wirebench.utils import files

ROOT = Path(__file__).resolve().parents[2]
CONFIG = configuration.Config(name="tiny")


def run_record(directory, tensorboard=False):
    tables, text = configuration.to_dict(CONFIG), configuration.dump(CONFIG)
    return RunRecord(directory, tables, text, {"hostname": "h"}, tensorboard, world_size=4, note=print)


def times(step, seconds=0.5):
    return StepTimes(step, seconds, dict.fromkeys(PHASES, 0.1), 8, True)


def write_step(record, step, loss=1.0, **extra):
    record.step(times(step), epoch=0, loss=loss, learning_rate=0.1, wire_bytes=100, extra=extra)


def fields():
    return {
        "engine": "local",
        "device": "cpu",
        "parameters": 10,
        **summary([times(1)], 4),
        "bytes_per_step": {"payload": 40, "dense": 40, "wire": 60.0, "nic": None},
        "compression_ratio": {"values": 1.0, "with_indices": 1.0, "wire": 1.0},
        "requests": [{"kind": "sum", "plan": "ring", "rounds": 6, "bytes": 40}],
        "final": {"loss": 0.5, "top1": 0.9},
        "seconds_total": 3.0,
        "gpu": None,
    }


def lines(directory):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in (directory / "steps.jsonl").read_text().splitlines()]


def test_scalars_beside_those_of_steps(tmp_path):
    record = run_record(tmp_path, tensorboard=True)
    record.scalars({})
    assert not (tmp_path / "tb").exists()
    write_step(record, 0)
    record.scalars({"gpu/power_watts": 300.0}, 0)
    write_step(record, 1)
    record.scalars({"gpu/all/power_watts": 600.0})
    record.close()
    [events] = (tmp_path / "tb").iterdir()
    told = EventAccumulator(str(events)).Reload()
    assert [(each.step, each.value) for each in told.Scalars("gpu/power_watts")] == [(0, 300.0)]
    assert [(each.step, each.value) for each in told.Scalars("gpu/all/power_watts")] == [(1, 600.0)]
    assert all("gpu/power_watts" not in line for line in lines(tmp_path))


def test_a_whole_run(tmp_path):
    record = run_record(tmp_path / "runs" / "a")
    write_step(record, 0, gradient_norm=2.0)
    write_step(record, 1)
    record.epoch({"epoch": 0, "seconds": 1.0, "loss": 0.5, "top1": 0.9})
    returned = record.finish("finished", **fields(), predicted={"seconds": 0.4})
    saved = read(tmp_path / "runs" / "a")
    assert saved == returned
    assert (saved["schema"], saved["status"], saved["world_size"]) == (1, "finished", 4)
    assert saved["history"] == [{"epoch": 0, "seconds": 1.0, "loss": 0.5, "top1": 0.9}]
    assert saved["environment"] == {"hostname": "h"}
    assert saved["predicted"] == {"seconds": 0.4}
    assert configuration.load(tmp_path / "runs" / "a" / "config.toml") == CONFIG
    assert configuration.from_dict({k: v for k, v in saved["config"].items() if k != "name"}, "tiny") == CONFIG
    first = lines(tmp_path / "runs" / "a")[0]
    assert first["images_per_second"] == 4 * 8 / 0.5
    assert first["gradient_norm"] == 2.0
    assert first.keys() >= {"step", "phases", "images", "counted", "epoch", "loss", "learning_rate", "wire_bytes"}
    assert {path.name for path in (tmp_path / "runs" / "a").iterdir()} == {"config.toml", "record.json", "steps.jsonl"}


def test_numbers_that_are_not_finite_become_null(tmp_path):
    record = run_record(tmp_path)
    write_step(record, 0, loss=float("nan"), norms=[1.0, float("-inf")])
    record.epoch({"epoch": 0, "seconds": 1.0, "loss": float("inf"), "top1": 0.1})
    record.finish("diverged", **{**fields(), "final": {"loss": float("nan"), "top1": None}})
    assert lines(tmp_path)[0]["loss"] is None
    assert lines(tmp_path)[0]["norms"] == [1.0, None]
    assert read(tmp_path)["final"] == {"loss": None, "top1": None}
    assert read(tmp_path)["history"][0]["loss"] is None


def test_steps_are_there_at_once_for_a_run_that_is_killed(tmp_path):
    record = run_record(tmp_path)
    for step in range(3):
        write_step(record, step)
        assert [line["step"] for line in lines(tmp_path)] == list(range(step + 1))
    with pytest.raises(UserError, match="the run has not ended, or was killed"):
        read(tmp_path)
    record.close()


def test_resume_keeps_what_came_before(tmp_path):
    first = run_record(tmp_path)
    for step in range(6):
        write_step(first, step, loss=1.0)
    first.close()
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": 6, "loss": 0.')
    second = run_record(tmp_path)
    second.truncate(4)
    second.restore([{"epoch": 0, "seconds": 1.0, "loss": 0.5, "top1": 0.8}])
    write_step(second, 4, loss=2.0)
    second.epoch({"epoch": 1, "seconds": 1.0, "loss": 0.4, "top1": 0.9})
    second.finish("finished", **fields())
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2)]
    assert [entry["epoch"] for entry in read(tmp_path)["history"]] == [0, 1]


def test_a_new_run_in_an_old_folder_begins_anew(tmp_path):
    first = run_record(tmp_path)
    write_step(first, 0)
    first.finish("finished", **fields())
    second = run_record(tmp_path)
    assert read(tmp_path)["status"] == "finished", "nothing has been trained yet"
    write_step(second, 0, loss=9.0)
    assert not (tmp_path / "record.json").exists(), "the old result is not the new run's"
    second.close()
    assert [line["loss"] for line in lines(tmp_path)] == [9.0]


def test_a_folder_that_cannot_be_written_is_the_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^output\.dir: .*file/run cannot be written: Not a directory$"):
        run_record(tmp_path / "file" / "run")


def test_an_incomplete_record_is_saved_and_loud(tmp_path):
    with pytest.raises(AssertionError, match="parameters: is missing"):
        run_record(tmp_path).finish("finished", **{k: v for k, v in fields().items() if k != "parameters"})
    assert json.loads((tmp_path / "record.json").read_text())["seconds_total"] == 3.0


def test_extra_cannot_hide_a_step_field(tmp_path):
    with pytest.raises(AssertionError, match="loss"):
        run_record(tmp_path).step(times(0), epoch=0, loss=1.0, learning_rate=0.1, wire_bytes=1, extra={"loss": 0.0})


def read_events(directory):
    """Of the one run that TensorBoard finds below a run's folder."""
    [folder] = {path.parent for path in (directory / "tb").rglob("events.*")}
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_tensorboard_shows_the_config_and_the_settings_once(tmp_path):
    for first_step in (0, 2):
        record = run_record(tmp_path, tensorboard=True)
        record.truncate(first_step)
        for step in range(first_step, first_step + 2):
            write_step(record, step)
        record.close()
    assert len(list(tmp_path.rglob("events.*"))) == 2  # one for each start
    events = read_events(tmp_path)
    [text] = events.Tensors("config/text_summary")
    assert configuration.dump(CONFIG) in text.tensor_proto.string_val[0].decode()
    starts = []
    for file in sorted(tmp_path.rglob("events.*")):
        for event in EventFileLoader(str(file)).Load():
            starts += [value for value in event.summary.value if value.tag == metadata.SESSION_START_INFO_TAG]
    [start] = starts
    values = metadata.parse_session_start_info_plugin_data(start.metadata.plugin_data.content).hparams
    assert values["compressor.name"].string_value == "none"
    assert values["world_size"].number_value == 4
    assert values["optimizer.lr"].number_value == CONFIG.optimizer.lr


def test_tensorboards_run_names_tell_methods_apart():
    tables = configuration.to_dict(CONFIG)
    assert method(tables) == "none,wfbp"
    tables |= {"compressor": {"name": "topk", "density": 0.01}, "collective": {"name": "mine.chain"}}
    assert method(tables) == "topk-density=0.01,wfbp,mine.chain"


def test_tensorboard_scalars_and_purge_on_resume(tmp_path):
    first = run_record(tmp_path, tensorboard=True)
    for step in range(3):
        write_step(first, step, loss=float(step), density=0.01)
    first.close()
    second = run_record(tmp_path, tensorboard=True)
    second.truncate(2)
    write_step(second, 2, loss=20.0)
    write_step(second, 3, loss=30.0)
    second.epoch({"epoch": 0, "seconds": 1.5, "loss": 0.5, "top1": 0.9})
    second.finish("finished", **fields())
    events = read_events(tmp_path)
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(0, 0), (1, 1), (2, 20), (3, 30)]
    assert [e.value for e in events.Scalars("train/images_per_second")] == [64, 64, 64, 64]
    assert [(e.step, e.value) for e in events.Scalars("test/top1")] == [(3, pytest.approx(0.9))]
    names = {"train/lr", "wire/bytes", "density", "epoch/loss", "epoch/seconds", *(f"phases/{p}" for p in PHASES)}
    assert names <= set(events.Tags()["scalars"])


def test_null_record_takes_the_same_calls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = NullRecord()
    write_step(record, 0)
    record.truncate(0)
    record.restore([])
    record.epoch({})
    assert record.finish("finished", **fields()) == {}
    record.close()
    assert list(tmp_path.iterdir()) == []

    def public(kind):
        return {n: inspect.signature(f) for n, f in inspect.getmembers(kind, inspect.isfunction) if n[0] != "_"}

    assert public(NullRecord) == public(RunRecord)


def valid():
    return {
        "schema": 1, "status": "finished", "config": {}, "environment": {}, "world_size": 4, "history": [], **fields()
    }  # fmt: skip


def changed(path, value):
    record = json.loads(json.dumps(valid()))
    *parents, last = path
    place = record
    for key in parents:
        place = place[key]
    place[last] = value
    return record


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ([], "needs a table"),
        ({}, "schema: needs 1, got None"),
        (changed(["status"], "fine"), "status: needs one of finished, diverged, interrupted, got 'fine'"),
        (changed(["world_size"], True), "world_size: needs a whole number, got True"),
        (changed(["phases"], {}), "phases.data: is missing"),
        (changed(["step_seconds", "p10"], "1"), "step_seconds.p10: needs a number or null, got '1'"),
        (changed(["requests", 0, "kind"], 3), "requests[0].kind: needs a text, got 3"),
        (changed(["history"], {}), "history: needs a list, got {}"),
        (changed(["checkpoints"], {"saved": 2}), "checkpoints.stall_seconds: is missing"),
        (changed(["config", "compressor"], 3), "config.compressor: needs a table, got 3"),
        (changed(["checkpoints"], None), "checkpoints: needs a table, got None"),
        (changed(["load"], [{"hostname": "vm", "cores": 2}]), "load[0].others_cores: is missing"),
    ],
)
def test_invalid_records_are_named(record, problem):
    assert problem in problems(record)
    with pytest.raises(UserError):
        validate(record)


def test_valid_records_have_no_problem():
    assert problems(valid()) == []
    validate({**valid(), "more": 1, "checkpoints": {"saved": 2, "stall_seconds": 0.1}})
    for found in (None, RANK_0, all_ranks()):
        assert problems({**valid(), "gpu": found}) == []
    assert problems({**valid(), "gpu": {}})[0] == "gpu.name: is missing"
    broken = all_ranks(device("a", 0, problem=3), joules_per_sample="many")
    assert problems({**valid(), "gpu": broken}) == [
        "gpu.devices[0].problem: needs a text or null, got 3",
        "gpu.joules_per_sample: needs a number or null, got 'many'",
    ]


def test_run_directory():
    noon = datetime(2026, 1, 2, 12, 0, 5, tzinfo=UTC)
    path = run_directory(CONFIG, noon)
    assert path.parent == Path("results/runs")
    assert path.name.startswith("tiny-20260102T120005Z-") and len(path.name) == len("tiny-20260102T120005Z-") + 8
    other = configuration.from_dict({"optimizer": {"lr": 0.2}}, "tiny")
    assert run_directory(other, noon) != path, "another config, another hash"
    assert run_directory(CONFIG, noon) == path
    odd = configuration.from_dict({}, "../a b/c")
    assert run_directory(odd, noon, "x").parent == Path("x")
    chosen = configuration.from_dict({"output": {"dir": "/tmp/chosen"}})
    assert run_directory(chosen, noon) == Path("/tmp/chosen")


def test_atomic_write_leaves_the_old_file_on_failure(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    files.write_atomically(path, "old")

    def fail(_source, _target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]
