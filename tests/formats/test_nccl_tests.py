"""The JSON of nccl-tests: its keys and units, and numbers that follow from each other as they do in its own files."""

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.bench.test_bench_collectives import CELL
from wirebench.formats import nccl_tests

HEADER: dict[str, Any] = {
    "environment": {
        "utc": "2026-11-21T09:53:47+00:00", "command": "torchrun -m wirebench 'bench' x", "variables": {"OMP_A": "1"},
        "versions": {"nccl": "2.27.3"}, "device": "cuda:0",
        "hosts": [
            {"ranks": [0, 1], "cpu": {"model": "C"}, "gpus": ["G", "H"]},
            {"ranks": [2, 3], "cpu": {"model": "D"}, "gpus": ["I", "J"]},
        ],
    },
    "ranks": [{"rank": rank, "host": "ab"[rank // 2], "pid": 100 + rank} for rank in range(4)],
}  # fmt: skip


def written(*cells, header=HEADER):
    ended = datetime(2026, 11, 21, 9, 54, tzinfo=UTC)
    return json.loads(json.dumps(nccl_tests.document(header, cells, 20, ended), allow_nan=False))


def test_a_row_has_the_units_of_nccl_tests():
    document = written(CELL, dataclasses.replace(CELL, collective="tree", items=2000, identical=False))
    row, wrong = document["results"]
    assert (row["size"], row["count"], row["type"], row["redop"], row["root"]) == (4000, 1000, "float", "sum", "    -1")
    assert row["out_of_place"] is None
    # The median of 1, 2 and 3 ms for 4000 bytes among 4 ranks.
    assert row["in_place"] == pytest.approx({"time": 2000, "alg_bw": 0.002, "bus_bw": 0.003, "nwrong": 0})
    per = row["in_place_per_iter"]
    assert per["times_us"] == pytest.approx([2000, 1000, 3000])
    assert (per["min_us"], per["p50_us"], per["p95_us"], per["max_us"]) == pytest.approx((1000, 2000, 3000, 3000))
    assert per["cv_pct"] == pytest.approx(100 * per["stdev_us"] / per["avg_us"])
    assert [each["experiment_name"] for each in (row, wrong)] == ["ring", "tree"]
    assert wrong["in_place"]["nwrong"] == 1
    assert document["out_of_bounds"] == {"count": 1, "okay": "false"}
    assert document["average_bus_bandwidth"]["bandwidth"] == pytest.approx((0.003 + 0.006) / 2)


def test_the_head_says_what_is_known():
    document = written(CELL)
    assert document["version"] == 3
    assert document["nccl_version"] == 22703
    assert document["args"] == ["torchrun", "-m", "wirebench", "bench", "x"]
    assert document["config"]["minimum_bytes"] == document["config"]["maximum_bytes"] == 4000
    devices = document["config"]["devices"]
    assert [(each["rank"], each["hostname"], each["device"], each["device_info"]) for each in devices] == [
        (0, "a", 0, "G"), (1, "a", 1, "H"), (2, "b", 0, "I"), (3, "b", 1, "J"),
    ]  # fmt: skip


def test_without_a_gpu_there_is_no_device_and_no_nccl():
    environment = {**HEADER["environment"], "device": "cpu", "versions": {"nccl": None}}
    document = written(CELL, header={**HEADER, "environment": environment})
    assert document["nccl_version"] is None
    assert {(each["device"], each["device_info"]) for each in document["config"]["devices"]} == {
        (None, "C"), (None, "D"),
    }  # fmt: skip
