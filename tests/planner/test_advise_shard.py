"""`--shard` of simulate and advise: bytes by level, and the exchange between pods."""

import json
from pathlib import Path

import pytest

from wirebench.cli.planning import advise, simulate
from wirebench.simulation import trace

NUMEL = trace.load(trace.SHIPPED / "resnet50_v100.json").numel


def test_simulate_has_bytes_by_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Within a pod about three times the parameters, between two pods an eighth of them."""
    pods = ["--per-machine", "8", "--shard", "8", "--workers", "16", "--network", "10gbe"]
    words = ["--trace", "resnet50_v100", *pods, "--schedulers", "wfbp", "optimal", "outer"]
    assert simulate.main([*words, "--json", str(tmp_path / "rows.json")]) == 0
    said = capsys.readouterr().out
    assert "within MB" in said and "Within a pod FSDP on NCCL sends 3 N (S - 1)/S elements." in said
    told = json.loads((tmp_path / "rows.json").read_text())
    assert told["backend"] == "nccl"
    by_unit, merged, local = told["rows"]
    sent = by_unit["bytes_per_step"]
    assert 2.7 * 4 * NUMEL * 7 / 8 < sent["within"] < 3 * 4 * NUMEL * 7 / 8
    assert sent["wire"] == pytest.approx(4 * NUMEL / 8, rel=0.01)
    assert by_unit["messages"] == 17 and merged["messages"] <= 17, "16 blocks, and the rest of the model"
    assert merged["step_seconds"] <= by_unit["step_seconds"]
    assert local["bytes_per_step"]["wire"] == pytest.approx(sent["wire"] / 30, rel=0.01)
    assert simulate.main([*words[:2], *pods[-4:], "--json", str(tmp_path / "whole.json")]) == 0
    whole = json.loads((tmp_path / "whole.json").read_text())["rows"][0]
    assert "within" not in whole["bytes_per_step"] and whole["bytes_per_step"]["wire"] > 10 * sent["wire"]


def test_of_a_cpu_fsdp_sends_what_gloo_sends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its reduce-scatter is an all-reduce: four times the parameters in place of three, and seconds for them."""
    model = json.loads((trace.SHIPPED / "resnet20_gtx1080ti.json").read_text())
    of_cpu = tmp_path / "cpu.json"
    of_cpu.write_text(json.dumps(model | {"hardware": "a CPU"}))
    pods = ["--workers", "4", "--per-machine", "2", "--gbit", "0.01", "--shard", "2"]
    found = {}
    for name in ("resnet20_gtx1080ti", str(of_cpu)):
        words = ["--trace", name, *pods, "--json", str(tmp_path / "rows.json")]
        assert advise.main([*words, "--compressors", "none"]) == 0
        assert simulate.main([*words[:-1], str(tmp_path / "step.json"), "--schedulers", "naive"]) == 0
        said, entry = capsys.readouterr().out, json.loads((tmp_path / "rows.json").read_text())["pods"]
        step = json.loads((tmp_path / "step.json").read_text())
        assert step["backend"] == entry["backend"]
        assert step["rows"][0]["bytes_per_step"]["within"] == entry["within_bytes"]
        assert said.count(f"sends {3 + (entry['backend'] == 'gloo')} N (S - 1)/S elements") == 2
        found[entry["backend"]] = entry["within_bytes"]
    assert 1.3 < found["gloo"] / found["nccl"] < 1.5


def test_advise_ranks_what_goes_between_pods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--trace", "resnet20_gtx1080ti", "--workers", "4", "--per-machine", "2", "--gbit", "0.01"]
    chosen = ["--compressors", "topk", "lion_sign", "--json", str(tmp_path / "rows.json"), "--all"]
    assert advise.main([*words, "--shard", "2", *chosen]) == 0
    said = capsys.readouterr().out
    assert "2 pods of 2: in a step a worker sends" in said and "over dense hybrid sharding (wfbp on ring)" in said
    told = json.loads((tmp_path / "rows.json").read_text())
    numel = told["trace"]["parameters"]
    dense = next(row for row in told["rows"] if row["compressor"] == "none")
    assert told["pods"]["dense_between_bytes"] == pytest.approx(4 * numel / 2, rel=0.05)
    assert dense["bytes_per_step"]["wire"] == pytest.approx(told["pods"]["dense_between_bytes"])
    assert 2.7 * 4 * numel / 2 < told["pods"]["within_bytes"] <= 3 * 4 * numel / 2
    assert {row["scheduler"] for row in told["rows"] if row["compressor"] == "lion_sign"} == {"single"}
    assert "dear" not in {row["scheduler"] for row in told["rows"]}
    topk = next(row for row in told["rows"] if row["compressor"] == "topk")
    assert topk["images_per_second"] > 1.5 * dense["images_per_second"]
    assert topk["break_even_gbit"] is None or topk["break_even_gbit"] > 0.01
