"""What a run on GPUs leaves of them: in its record, among TensorBoard's scalars, and where a person looks."""

import json
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.distributed.forked import fork
from tests.distributed.launch import CONFIG
from tests.distributed.on_made_up_gpus import see_a_gpu
from tests.training.test_trainer import record_of
from wirebench.record import compare
from wirebench.record.schema import problems, read
from wirebench.telemetry import gpu


def test_a_run_of_virtual_workers(tmp_path, monkeypatch):
    see_a_gpu(monkeypatch)
    record = record_of(tmp_path, engine__device="auto", output__tensorboard=True)
    assert problems(record) == []
    found = record["gpu"]
    [device] = found["devices"]
    assert (device["ranks"], device["energy_source"], device["problem"]) == ([0, 1, 2], "counter", None)
    assert found["energy_joules"] == device["energy_joules"] > 0
    assert found["joules_per_sample"] == found["energy_joules"] / (2 * 48), "two epochs of 48 images"
    assert found["joules_per_point"] == found["energy_joules"] / (100 * record["final"]["top1"])
    assert 0 < found["sampling"]["share_of_time"] < 1
    [events] = (tmp_path / "tb").iterdir()
    events_of = EventAccumulator(str(events), size_guidance={"scalars": 0}).Reload()
    names = {name for name in events_of.Tags()["scalars"] if name.startswith("gpu/")}
    assert {"gpu/power_watts", "gpu/utilisation_percent", "gpu/memory_mb", "gpu/energy_joules"} <= names
    assert {"gpu/all/power_watts", "gpu/all/joules_per_sample", "gpu/0/energy_joules"} <= names
    told = [(each.step, each.value) for each in events_of.Scalars("gpu/all/energy_joules")]
    assert [step for step, _ in told] == [3, 7], "at the end of each epoch"
    assert 0 < told[0][1] < told[1][1] <= found["energy_joules"]
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert not any(name.startswith("gpu") for line in lines for name in line)


def test_nvml_that_fails_in_mid_run_costs_a_run_nothing_else(tmp_path, monkeypatch):
    fake = see_a_gpu(monkeypatch)
    sample, failing = gpu.GpuSampler._sample, {"energy", "power", "memory", "utilisation"}

    def once(self: gpu.GpuSampler) -> None:
        sample(self)
        fake.unsupported = failing

    monkeypatch.setattr(gpu.GpuSampler, "_sample", once)
    record = record_of(tmp_path, engine__device="auto")
    assert record["status"] == "finished" and problems(record) == []
    assert record["gpu"]["energy_joules"] is record["gpu"]["joules_per_sample"] is None
    [line] = [each for each in compare.remarks(record) if each.startswith("GPU of ranks 0 to 2, Fake GPU: NVML failed")]
    assert "samples are incomplete" in line
    assert compare.rows(record)["joules/sample"] == "-"


def test_a_cpu_run_has_none(tmp_path, monkeypatch):
    see_a_gpu(monkeypatch)
    record = record_of(tmp_path, engine__device="cpu")
    assert record["gpu"] is None and "GPU" not in compare.rows(record)


@pytest.mark.parametrize(
    ("engine", "uuids", "devices", "without"),
    [
        ("torch", "a,b", [["a", [0]], ["b", [1]]], []),
        ("horovod", "a,a", [["a", [0, 1]]], []),
        ("torch", "-,b", [["b", [1]]], [0]),
    ],
    ids=["own", "shared", "one without"],
)
def test_two_ranks_in_one_record(engine: str, uuids: str, devices: list[Any], without: list[int], tmp_path) -> None:
    folder = tmp_path / "run"
    words = [CONFIG, f"output.dir={folder}", "train.max_steps=2", "engine.device=auto"]
    ended = fork(engine, 2, words, tmp_path, {"UUIDS": uuids}, script="tests/distributed/on_made_up_gpus.py")
    assert ended.code == 0, ended.said
    record = read(folder)
    found, config = record["gpu"], record["config"]
    assert [[each["uuid"], each["ranks"]] for each in found["devices"]] == devices
    assert (found["ranks_without_gpu"], found["ranks_missing"]) == (without, [])
    assert found["energy_joules"] == sum(each["energy_joules"] for each in found["devices"]) > 0
    assert found["joules_per_sample"] == found["energy_joules"] / (2 * 2 * config["data"]["batch_size"])
    assert compare.rows(record)["joules/sample"] != "-"
