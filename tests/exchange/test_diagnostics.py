"""Readings of a step's exchange, beside what is known of it by hand."""

import json
from pathlib import Path

import pytest
import torch

from tests.distributed.launch import CONFIG, here
from tests.exchange.lanes import LAYERS, lane_of
from wirebench import compressors
from wirebench.comm.local import LocalHub
from wirebench.exchange.advance import run
from wirebench.exchange.diagnostics import Health
from wirebench.exchange.lane import Lane


def lanes(size: int, every: int = 1, **options) -> list[Lane]:
    """Lanes of `size` virtual workers, the model in one bucket."""
    found = []
    for communicator in LocalHub(size).communicators:
        _, lane = lane_of(communicator, [LAYERS], compressor=compressors.build(**options), collective="tree")
        lane.measure_every = every
        found.append(lane)
    return found


def step(workers: list[Lane], number: int, grads: list[torch.Tensor]) -> None:
    for lane, grad in zip(workers, grads, strict=True):
        lane.begin(number, 0)
        lane.flat.grad.copy_(grad)
    run([lane.exchange(lane.buckets[0]) for lane in workers])


NUMEL = lanes(1, name="none")[0].flat.grad.numel()


def spiky(places: list[int], height: float = 10.0) -> torch.Tensor:
    grad = torch.ones(NUMEL)
    grad[places] = height
    return grad


@pytest.mark.parametrize("size", [1, 3])
def test_a_dense_exchange_has_no_error_and_holds_nothing_back(size: int) -> None:
    workers = lanes(size, name="none")
    step(workers, 0, [torch.randn(NUMEL) for _ in workers])
    assert Health(workers).read(0) == {"health/compression_error": pytest.approx(0, abs=1e-6), "health/density": 1.0}


@pytest.mark.parametrize("name", ["lion_sign", "dion", "zero_one_adam"])
def test_of_an_update_only_its_density_is_told(name: str) -> None:
    """It is no average of gradients, and a momentum is no residual."""
    workers = lanes(3, name=name)
    step(workers, 0, [torch.randn(NUMEL) for _ in workers])
    assert set(Health(workers).read(0)) == {"health/density"}


def test_top_k_by_hand():
    workers = lanes(2, name="topk", density=2 / NUMEL)
    step(workers, 0, [spiky([0, 1]), spiky([0, 5])])
    reading = Health(workers).read(0)
    # Sent: place 0 by both, 1 and 5 by one each; the mean there is 10, 5 and 5, of 10, 5.5 and 5.5. All else is 1.
    rest = NUMEL - 3 + 2 * 0.25
    whole = 100 + 2 * 5.5**2 + NUMEL - 3
    assert reading["health/compression_error"] == pytest.approx((rest / whole) ** 0.5)
    assert reading["health/residual_share"] == pytest.approx((rest / whole) ** 0.5)
    assert reading["health/residual_norm"] == pytest.approx((NUMEL - 2) ** 0.5)
    assert reading["health/density"] == pytest.approx(3 / NUMEL)
    assert reading["health/topk_overlap"] == 1.0


def test_entries_that_another_choice_would_have_sent_lower_the_overlap():
    # All ranks have 4 at place 9, and each a 10 of its own elsewhere: in the mean, place 9 is among the largest.
    grads = [spiky([rank]) for rank in range(4)]
    for grad in grads:
        grad[9] = 9.0
    workers = lanes(4, name="topk", density=1 / NUMEL)
    step(workers, 0, grads)
    assert Health(workers).read(0)["health/topk_overlap"] == 3 / 4


def test_what_a_method_measured_of_itself_stands_beside_it():
    workers = lanes(4, name="gtopk", density=1 / NUMEL)
    grads = [torch.zeros(NUMEL) for _ in workers]
    for grad, (place, value) in zip(grads, [(0, 5.0), (1, 6.0), (0, 7.0), (2, 3.0)], strict=True):
        grad[place] = value
    step(workers, 0, grads)
    reading = Health(workers).read(0)
    assert reading["compressor/lost_mass"] == 5.0 / 4
    assert reading["compressor/lost_share"] == pytest.approx(5 / 21)


def test_dense_layers_are_left_out_of_density_and_overlap():
    workers = lanes(2, name="topk", density=0.1, dense_below=1)
    for number in range(2):
        step(workers, number, [torch.randn(NUMEL, generator=torch.Generator().manual_seed(r)) for r in range(2)])
        reading = Health(workers).read(number)
        # 36 elements lie in tensors of two dimensions; each rank sends 3 of them.
        assert 3 / 36 <= reading["health/density"] <= 6 / 36
        assert 0 < reading["health/residual_share"] < 1


def test_only_the_asked_for_steps_are_read():
    workers = lanes(2, every=3, name="topk")
    health, read, errors = Health(workers), [], []
    for number in range(7):
        step(workers, number, [spiky([number])] * 2)
        if reading := health.read(number):
            read.append(number)
            errors.append(reading["health/compression_error"])
    assert read == [0, 3, 6]
    summary = health.summary()
    assert summary is not None
    assert summary["health/compression_error"] == {"last": errors[-1], "mean": pytest.approx(sum(errors) / 3)}
    assert Health(workers).summary() is None
    again, older = Health(workers), Health(workers)
    again.load_state_dict(json.loads(json.dumps(health.state_dict())))
    older.load_state_dict({"history": [[0, {"health/compression_error": error}] for error in errors]})
    assert again.summary() == summary
    assert older.summary() == {"health/compression_error": summary["health/compression_error"]}


def test_a_run_writes_its_readings_and_leaves_those_steps_out_of_its_throughput(tmp_path: Path) -> None:
    settings = [f"output.dir={tmp_path}", "output.health_every=4", "train.max_steps=12", "train.warmup_steps=1"]
    assert here(2, [CONFIG, *settings]) == 0
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    read = [line["step"] for line in lines if "health/compression_error" in line]
    assert read == [0, 4, 8]
    assert [line["step"] for line in lines if not line["counted"]] == [0, 4, 8]
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["images_per_second"]["steps"] == 9
    assert 0 < record["health"]["health/compression_error"]["mean"] < 2
    assert record["compressor_state"] == pytest.approx(1.0, abs=0.5)
    assert record["warnings"] == []


def test_readings_change_nothing(tmp_path: Path) -> None:
    """Not the losses, nor what is counted of the wire: the reading's own sums are in no step and in no epoch."""
    steps, totals = [], []
    for name, every in (("with", 2), ("without", 0)):
        assert here(2, [CONFIG, f"output.dir={tmp_path / name}", f"output.health_every={every}"]) == 0
        lines = [json.loads(line) for line in (tmp_path / name / "steps.jsonl").read_text().splitlines()]
        steps.append([(line["loss"], line["wire_bytes"]) for line in lines])
        history = json.loads((tmp_path / name / "record.json").read_text())["history"]
        totals.append([entry["wire_bytes_total"] for entry in history])
        assert totals[-1][-1] == pytest.approx(sum(wire for _, wire in steps[-1]))
    assert steps[0] == steps[1]
    assert totals[0] == totals[1]
