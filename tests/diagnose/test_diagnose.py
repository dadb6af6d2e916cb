"""wirebench diagnose: each planted fault is named first, and nothing is found in a healthy run."""

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_show import RECORD
from tests.cli.verbs import verb
from tests.golden import check
from wirebench.diagnose import evidence
from wirebench.diagnose.exchange import rows
from wirebench.diagnose.link import FittedLink
from wirebench.topology import presets, topology_file

main = verb("diagnose")
RATE, START = 125e6, 0.0003
"""Of the healthy run's link: 1 Gbit/s, and what a message takes beside its bytes."""
SIZES = (4e6, 2e6, 1e6, 5e5)


def healthy() -> dict[str, Any]:
    """Two ranks on two hosts, top-k, four messages of a step that the backward pass hides but for a little."""
    record = copy.deepcopy(RECORD)
    phases = {
        "data": 0.001,
        "forward": 0.06,
        "backward": 0.12,
        "compress": 0.004,
        "exchange_exposed": 0.012,
        "update": 0.004,
    }
    ranks = [
        {
            "rank": rank, "host": f"h{rank}", "threads": 1, "cores": 1, "ranks_on_host": 1, "step_seconds": 0.2,
            "phases": dict(phases), "sent": {"eth0": 10**9}, "link_mbit": {"eth0": 1000.0},
        }
        for rank in range(2)
    ]  # fmt: skip
    sent = {"payload": sum(SIZES), "dense": 60e6, "wire": sum(SIZES), "wire_mean": sum(SIZES), "nic": None}
    record |= {"phases": phases, "ranks": ranks, "world_size": 2, "engine": "torch", "device": "cpu", "backend": "gloo"}
    record["step_seconds"] = {"median": 0.2, "p10": 0.19, "p90": 0.21}
    record["bytes_per_step"] |= sent
    record["config"]["compressor"] = {"name": "topk"}
    record["requests"] = [{"kind": "Gather", "plan": "native", "rounds": 1, "bytes": size} for size in SIZES]
    return record


def write(folder: Path, record: dict[str, Any], rate: float = RATE, start: float = START) -> None:
    """A run's folder: its messages take their start-up and their bytes, and now and then the time of a late rank."""
    name = {"name": "thread_name", "ph": "M", "pid": 0, "tid": 3, "args": {"name": "requests"}}
    events = [
        {
            "name": each["kind"], "ph": "X", "pid": 0, "tid": 3, "ts": 0.0, "args": {"wire_bytes": each["bytes"]},
            "dur": 1e6 * (start + each["bytes"] / rate) + 5e4 * (step % 3 == 1),
        }
        for step in range(5)
        for each in record["requests"]
    ]  # fmt: skip
    (folder / "trace.json").write_text(json.dumps({"traceEvents": [name, *events]}))
    (folder / "record.json").write_text(json.dumps(record))


def diagnosed(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([str(folder), "--json", *words]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_healthy_run_has_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, healthy())
    told = diagnosed(tmp_path, capsys)
    assert told["findings"] == []
    assert told["link"]["bytes_per_second"] == pytest.approx(RATE) and told["link"]["start_seconds"] == pytest.approx(
        START
    )
    assert sum(told["parts"].values()) == pytest.approx(0.2, rel=0.05)
    assert told["break_even_bytes_per_second"] == pytest.approx((60e6 - sum(SIZES)) / 0.004)


def test_busbw_stands_beside_the_fit_of_the_network_alone(tmp_path: Path) -> None:
    """Alone the network would carry the step's messages twice as fast."""
    write(tmp_path, healthy())
    seen = dataclasses.replace(evidence.read(tmp_path), alone=FittedLink(START / 2, 2 * RATE))
    [row] = [each for each in rows(seen) if each.name == "busbw of the messages"]
    assert row.evidence == f"by the fit of the network alone {8e-9 * 2 * (row.value or 0.0):.3g} Gbit/s"


def test_the_nominal_start_up_is_that_of_the_runs_topology(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    topology_file.save(presets.cluster(presets.find("25gbe"), 2), path, "made up", fit={})
    record = healthy()
    record["config"]["network"] = {"topology": str(path)}
    write(tmp_path, record)
    assert evidence.read(tmp_path).nominal_start == pytest.approx(20e-6)
    path.unlink()
    assert evidence.read(tmp_path).nominal_start is None, "the record is read on another machine"


def slow(record: dict[str, Any]) -> None:
    record["ranks"][1]["phases"] |= {"forward": 0.1, "backward": 0.2}
    record["ranks"][0]["phases"]["exchange_exposed"] = 0.13


def starved(record: dict[str, Any]) -> None:
    record["ranks"][1]["phases"]["data"] = 0.08


def heavy(record: dict[str, Any]) -> None:
    for rank in record["ranks"]:
        rank["phases"]["compress"] = 0.9


def many(record: dict[str, Any]) -> None:
    record["requests"] = [{"kind": "Sum", "plan": "native", "rounds": 1, "bytes": 1e3 + 100 * n} for n in range(100)]
    for rank in record["ranks"]:
        rank["phases"]["exchange_exposed"] = 0.1


def exposed(record: dict[str, Any]) -> None:
    for rank in record["ranks"]:
        rank["phases"]["exchange_exposed"] = 0.4


def elsewhere(record: dict[str, Any]) -> None:
    exposed(record)
    record["ranks"][1] |= {"sent": {"eth1": 10**9, "eth0": 10}, "link_mbit": {"eth0": 1000.0, "eth1": 100.0}}


def crowded(record: dict[str, Any]) -> None:
    for rank in record["ranks"]:
        rank |= {"threads": 8, "cores": 2, "ranks_on_host": 2}


def packed(record: dict[str, Any]) -> None:
    """One rank a host, but all hosts are one machine."""
    shared(record)
    for rank in record["ranks"]:
        rank |= {"threads": 8, "cores": 8}


def through_the_host(record: dict[str, Any]) -> None:
    exposed(record)
    record["device"] = "cuda"


def long_passes(record: dict[str, Any]) -> None:
    """Means of phases that add up to more than the median step."""
    for rank in record["ranks"]:
        rank["phases"]["forward"] = 0.1


def hidden(record: dict[str, Any]) -> None:
    for rank in record["ranks"]:
        rank["phases"]["exchange_exposed"] = 0.002


def on_one_host(record: dict[str, Any]) -> None:
    for rank in record["ranks"]:
        rank |= {"host": "here", "ranks_on_host": 2, "cores": 2}


def virtual(record: dict[str, Any]) -> None:
    """Virtual workers: what their exchange computes is said, and no rate."""
    record |= {"engine": "local", "world_size": 4, "ranks": record["ranks"][:1]}
    record["ranks"][0]["phases"]["exchange_exposed"] = 0.054


def alone(record: dict[str, Any]) -> None:
    virtual(record)
    record |= {"engine": "torch", "world_size": 1}


def slower_host(record: dict[str, Any]) -> None:
    exposed(record)
    record["ranks"][1]["link_mbit"] = {"eth0": 100.0}


def launched(record: dict[str, Any]) -> None:
    record["startup_seconds"] = 3.0


def older(record: dict[str, Any]) -> None:
    """Without a table of ranks; and its messages were not drawn."""
    del record["ranks"]
    record["requests"] = []


PLANTED: dict[str, tuple[Callable[[dict[str, Any]], None], dict[str, float], str]] = {
    "healthy": (lambda record: None, {}, ""),
    "hidden exchange": (hidden, {}, ""),
    "launched, on 10gbe": (launched, {}, "--link 10gbe"),
    "long passes": (long_passes, {}, ""),
    "ranks of one host": (on_one_host, {}, ""),
    "virtual workers": (virtual, {}, ""),
    "a world of one": (alone, {}, ""),
    "an older record": (older, {}, ""),
    "slow rank": (slow, {}, ""),
    "data": (starved, {}, ""),
    "compressor": (heavy, {}, ""),
    "small messages": (many, {"start": 0.001}, ""),
    "link": (exposed, {"rate": RATE / 10}, ""),
    "link of one host": (slower_host, {"rate": RATE / 10}, ""),
    "interface": (elsewhere, {}, ""),
    "threads": (crowded, {}, ""),
    "threads of emulated hosts": (packed, {}, ""),
    "staged": (through_the_host, {}, ""),
}


def test_what_is_said_of_planted_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """By hand: 7.5 MB take 60 ms at 1 Gbit/s, and four start-ups 1.2 ms, of a step of 200 ms."""
    shown = ""
    for name, (plant, link, words) in PLANTED.items():
        record = healthy()
        plant(record)
        write(tmp_path, record, **link)
        assert main([str(tmp_path), *words.split()]) == 0
        shown += f"# {name}\n{capsys.readouterr().out.replace(str(tmp_path), 'RUN')}\n"
        found = diagnosed(tmp_path, capsys)["findings"]
        assert all(each["gain"] > 0 and each["evidence"] and each["changes"][0]["what"] for each in found)
        if name in {"slow rank", "data", "compressor", "small messages", "link", "interface", "threads", "staged"}:
            assert found[0]["name"] == name
    check("diagnose/planted", shown, request.config.getoption("update"))


def test_a_run_without_a_counted_step_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = healthy()
    record["step_seconds"] = {"median": None, "p10": None, "p90": None}
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert main([str(tmp_path)]) == 2
    assert "no step of this run was counted" in capsys.readouterr().err


def test_the_nominal_rate_may_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = healthy()
    exposed(record)
    for rank in record["ranks"]:
        rank["link_mbit"] = {}
    write(tmp_path, record)
    assert diagnosed(tmp_path, capsys)["findings"] == []
    assert diagnosed(tmp_path, capsys, "--link", "10gbit")["findings"][0]["name"] == "link"


def shared(record: dict[str, Any]) -> None:
    record["load"] = [{"hostname": "vm", "ranks": [0, 1], "cores": 1, "others_cores": 0.0}]


def test_ranks_that_share_cores_are_told_where_computing_grows_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what the ranks waited for a core, no more than they compute; two emulated hosts are one machine."""
    for wait, gain in ((0.4, 0.08), (0.01, None), (0.99, 0.184)):
        record = healthy()
        shared(record)
        for rank in record["ranks"]:
            rank["core_wait"] = wait
        write(tmp_path, record)
        found = diagnosed(tmp_path, capsys)["findings"]
        assert [each["name"] for each in found] == (["shared processor"] if gain else [])
        assert not found or found[0]["gain"] == pytest.approx(gain)


def test_where_the_kernel_does_not_count_hosts_with_a_core_for_each_rank_are_the_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = healthy()
    away = {**copy.deepcopy(record["ranks"][0]), "rank": 2, "host": "h2"}
    record["ranks"].append(away)
    shared(record)
    for rank in record["ranks"][:2]:
        rank["phases"] |= {"forward": 0.09, "backward": 0.18}
    write(tmp_path, record)
    found = diagnosed(tmp_path, capsys)["findings"]
    assert [each["name"] for each in found] == ["shared processor"] and found[0]["gain"] == pytest.approx(0.09)


def test_one_step_that_was_held_up_is_no_slow_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = healthy()
    record["ranks"][1]["phases"]["backward"] = 0.2
    for rank in record["ranks"]:
        rank["compute_seconds"] = 0.184
    write(tmp_path, record)
    assert diagnosed(tmp_path, capsys)["findings"] == []
