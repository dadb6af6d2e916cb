"""wirebench advise: the ranking, what pays below which rate, the table; one line for mistakes."""

import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from papers.shipped import CPU, CPU_LATER, GPU, GPU_AGAIN
from tests import charts
from tests.cli.verbs import verb
from tests.distributed.launch import PLUGINS
from wirebench import compressors
from wirebench.bench import turns
from wirebench.config import loader
from wirebench.figures.files import save
from wirebench.planner import bars, given, known, ranges, timing
from wirebench.planner.candidate import WORTHWHILE
from wirebench.planner.compositions import compressing, sizes_of
from wirebench.planner.networks import rate
from wirebench.planner.rank import HIGHEST_GBIT, Adviser
from wirebench.record import compressor_results
from wirebench.simulation import compress_rates
from wirebench.simulation.compress_rates import SHIPPED_GPU, Rates
from wirebench.simulation.roofline import GPUS
from wirebench.simulation.trace import SHIPPED, load
from wirebench.topology import presets
from wirebench.topology.processor import IDLE, Processor
from wirebench.topology.tree import Topology
from wirebench.utils import user_files

main = verb("advise")

ROOT = Path(__file__).resolve().parents[2]
TRACE = ["--trace", "resnet20_gtx1080ti", "--workers", "4"]
FEW = ["--compressors", "fp16", "topk", "gs_sgd"]


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """Predictions that are hardly ever off: how wide their ranges are is tested apart."""
    monkeypatch.setattr(ranges, "load", lambda path=None, network=0.0: ranges.Errors(0.999, 1.001, 20, network))


def answer(tmp_path: Path, *arguments: str) -> dict:
    path = tmp_path / "found.json"
    assert main([*arguments, "--json", str(path)]) == 0
    return json.loads(path.read_text())


def test_compositions_are_ranked_and_the_lines_name_rows_of_them(tmp_path, capsys):
    found = answer(tmp_path, "--trace", "resnet50_v100", "--gpu", "v100", "--network", "1gbe", "--workers", "8", *FEW)
    rows = found["rows"]
    printed = capsys.readouterr().out
    for name, key in (("free", "free"), ("fastest at a cost", "fastest_at_a_cost")):
        settings = found["answer"][key]["overrides"]
        assert f"{name}: train with {' '.join(settings)}" in printed
        assert loader.load("smoke", settings).compressor.name == found["answer"][key]["compressor"]
    assert [row["standing"] for row in rows] == ["within"] * 2 + ["costs"] * 3 + ["too_much"] * 0
    assert {row["compressor"] for row in rows} == {"fp16", "gs_sgd", "none", "topk"}
    for standing in ("within", "costs"):
        those = [row for row in rows if row["standing"] == standing]
        ranked = [row["step_seconds_expected"] * (WORTHWHILE if row["compressor"] == "none" else 1) for row in those]
        assert ranked == sorted(ranked)
    of = {(row["compressor"], row["scheduler"]): row for row in rows}
    lines = found["answer"]
    assert list(lines) == ["free", "nearly_free", "fastest_at_a_cost"]
    for line in filter(lambda line: "nothing" not in line, lines.values()):
        assert line == of[line["compressor"], line["scheduler"]]
    ddp = found["as_ddp"]
    assert (ddp["compressor"], ddp["scheduler"], ddp["collective"], ddp["speedup"]) == ("none", "fused", "ring", 1.0)
    for row in rows:
        assert row["speedup"] == pytest.approx(row["images_per_second"] / ddp["images_per_second"])
    dense, fp16, topk = (next(row for row in rows if row["compressor"] == name) for name in ("none", "fp16", "topk"))
    assert dense["limit"] == "messages" and dense["break_even"] is None
    assert (
        topk["bytes_per_step"]["wire"]
        < fp16["bytes_per_step"]["wire"]
        == pytest.approx(dense["bytes_per_step"]["wire"] / 2)
    )
    assert max(map(len, printed[printed.index(" compressor ") : printed.index("\npays below:")].splitlines())) <= 120
    places = [line.split()[1] for line in printed.splitlines() if re.match(r" *\d+ \w+ ", line)]
    assert places == [row["compressor"] for row in rows]


def formats_alone(tmp_path: Path, formats: Sequence[str], device: str | None = None) -> str:
    """A file of these formats, whose coding is as fast as two copies of the vector, on the shipped rates' GPU."""
    header, *shipped = (json.loads(line) for line in user_files.read(SHIPPED_GPU).splitlines())
    header, cells = {**header, "device": header["device"] if device is None else device}, []
    like = next(each for each in shipped if each["method"] == "quantised_sum")
    for form in formats:
        copies = 2 * like["copy_seconds"][0]
        seconds = {part: [copies if part in ("encode", "decode") else 0.0] for part in like["seconds"]}
        cells.append({**like, "method": f"quantised_sum form={form} feedback=false", "seconds": seconds})
    path = tmp_path / "rates.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in (header, *cells)), encoding="utf-8")
    return str(path)


def test_formats_and_ways_are_compared_by_bytes_errors_and_times(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compress_rates, "SHIPPED_GPU", GPU)  # without formats
    where = ["--trace", "resnet20_gtx1080ti", "--gpu", "v100", "--network", "1gbe", "--workers", "16"]
    where += ["--compressors", "fp16", "quantised_sum"]
    rates = formats_alone(tmp_path, ["int8"])
    without = answer(tmp_path, *where, "--wire", "int8")
    assert {row["seconds"] for row in without["sums"] if row["form"] == "int8"} == {None}
    found = answer(tmp_path, *where, "--wire", "int8", "mxfp8", "--rates", rates)
    assert found["rows"] == without["rows"] and found["timed_here"]["compressors"] == [], "compressors have our rates"
    first, bar, *rows = found["sums"]
    assert (first["form"], first["share"], first["error"]) == ("fp32", 1.0, 0.0) and first["speedup"] > 0.99
    assert (bar["way"], bar["error"], bar["seconds"]) == ("without loss", 0.0, None) and 0.8 < bar["share"] < 0.9
    by = {(row["form"], row["way"]): row for row in rows}
    assert len(by) == len(rows) == 10, "one machine a rank has no hierarchy"
    one_hop, ring, half = (by["int8", way] for way in ("one_hop", "ring", "scatter"))
    assert (
        one_hop["share"] == pytest.approx(8.125 / 32, rel=1e-3) == 2 * half["share"]
        and ring["error"] > one_hop["error"]
    )
    assert one_hop["error"] == pytest.approx(one_hop["measured"], rel=0.1)
    assert half["speedup"] is None and half["seconds"] < one_hop["seconds"]
    assert one_hop["coding_seconds"] > 0 and one_hop["speedup"] > 1 and first["coding_seconds"] == 0
    assert loader.load("smoke", one_hop["overrides"]).collective.wire == "int8"
    unknown = by["mxfp8", "one_hop"]
    assert unknown["seconds"] is None and unknown["speedup"] is None and unknown["error"] > one_hop["error"]
    printed = capsys.readouterr().out
    assert "sums: no times: how long coding in mxfp8 takes was not measured" in printed
    assert re.search(rf"^int8 +one_hop +\S+ +0\.254 +{100 * one_hop['error']:.3g} % ", printed, re.M)
    assert "without loss: a code of exponents sends 0.85 times the bytes of dense gradients" in printed
    assert found["lossless"]["fp32"]["bound"] >= 1.1


@pytest.mark.slow
def test_machines_have_a_format_of_their_own_and_large_worlds_no_law(tmp_path):
    where = ["--trace", "resnet20_gtx1080ti", "--gpu", "v100", "--network", "1gbe", "--per-machine", "8", *FEW[:2]]
    rates = formats_alone(tmp_path, ["int8", "bf16"])
    found = answer(tmp_path, *where, "--workers", "64", "--wire", "int8", "--rates", rates)
    by = {row["way"]: row for row in found["sums"] if row["form"] == "int8"}
    levels = by["hierarchical"]
    assert levels["share"] > by["one_hop"]["share"] and levels["error"] < by["halving_doubling"]["error"]
    assert (
        levels["measured"] == pytest.approx(levels["error"], rel=0.1) and levels["speedup"] > by["one_hop"]["speedup"]
    )
    assert "collective.wire_within=bf16" in levels["overrides"] and "collective.levels=true" in levels["overrides"]
    large = answer(tmp_path, *where, "--workers", "512", "--wire", "int8", "--rates", rates)
    beyond = [row for row in large["sums"] if row["form"] == "int8"]
    assert len(beyond) == len(by) and all(row["error"] is None and row["seconds"] for row in beyond)
    for row in beyond:  # as at 64 workers: fp32 in a ring has a share of 1
        assert row["share"] == pytest.approx(by[row["way"]]["share"], rel=0.03) and row["share"] < 0.6


def test_rates_of_a_cpu_where_a_gpu_compresses_have_a_warning(tmp_path, capsys):
    warning = f"warning: --rates: {tmp_path}/rates.jsonl: was measured on a CPU, and here a GPU compresses\n"
    for device, warned in (("", True), (None, False)):
        rates = formats_alone(tmp_path, ["int8"], device)
        assert main([*TRACE, "--compressors", "fp16", "--schedulers", "fused", "--rates", rates]) == 0
        assert (warning in capsys.readouterr().err) == warned


def test_a_wrong_option_of_the_model_is_found_before_data_are_read(capsys, monkeypatch):
    monkeypatch.setattr(given.inputs, "chosen", lambda *_: pytest.fail("data were read"))
    where = ["--model", "gpt", "--data", "python_sources", "--batch", "8", "--gpu", "a100", "--workers", "4"]
    assert main([*where, "--option", "depth=two"]) == 2
    assert capsys.readouterr().err == "wirebench advise: --option depth: needs a whole number, got 'two'\n"


@pytest.mark.slow
def test_where_computing_takes_long_nothing_beats_dense(tmp_path, capsys):
    found = answer(tmp_path, "--trace", "googlenet_k80", "--gpu", "k80", "--network", "ib200", "--workers", "4", *FEW)
    assert all("nothing" in line for line in found["answer"].values())
    dense, *_ = found["rows"]
    assert (dense["compressor"], dense["limit"]) == ("none", "computing"), (
        "a lossy method's last microsecond is no gain"
    )
    assert re.search(r"^free  .* nothing beats DDP's schedule of dense gradients$", capsys.readouterr().out, re.M)


def test_where_nothing_pays_at_any_rate_no_rate_is_named(tmp_path, capsys):
    """QSGD's 4 bits an entry, gathered from 64 workers, are more than the dense sum sends."""
    found = answer(
        tmp_path, "--trace", "resnet20_gtx1080ti", "--gpu", "k80", "--network", "1gbe", "--workers", "64",
        "--compressors", "qsgd",
    )  # fmt: skip
    qsgd = next(row for row in found["rows"] if row["compressor"] == "qsgd")
    assert qsgd["break_even"] is None and re.search(r"\d qsgd .* nowhere ", capsys.readouterr().out)


def test_one_machine_has_no_break_even_and_links_that_are_named(tmp_path, capsys):
    inside = ["--workers", "4", "--per-machine", "4", "--network", "1gbe", "--compressors", "fp16"]
    found = answer(tmp_path, "--trace", "resnet20_gtx1080ti", "--gpu", "v100", *inside)
    assert found["network"].startswith("one machine") and all(row["break_even"] is None for row in found["rows"])
    assert "1200 Gbit/s (one machine); 4 workers a machine, on NVLink at its nominal rate, 150 GB/s" in (
        capsys.readouterr().out
    )
    slower = answer(tmp_path, "--trace", "resnet20_gtx1080ti", "--gpu", "gtx1080ti", *inside)
    assert "96 Gbit/s (one machine); 4 workers a machine, on PCIe 3 x16" in capsys.readouterr().out
    assert found["as_ddp"]["communicate_seconds"] < slower["as_ddp"]["communicate_seconds"]
    alone = [*inside[:2], "--per-machine", "2", *inside[4:]]
    between = answer(tmp_path, "--trace", "resnet50_a100", *alone)
    assert between["inside"].startswith("NVLink at its nominal rate, 300 GB/s") and between["gbit"] == 1


def test_the_table_says_what_the_numbers_say(tmp_path, capsys):
    where = ["--trace", "resnet50_v100", "--network", "1gbe", "--workers", "8", "--schedulers", "wfbp", "--density"]
    found = answer(tmp_path, *where, "0.02", "--wide", "--compressors", "topk", "onebit")
    printed = [line.split() for line in capsys.readouterr().out.splitlines() if re.match(r" *\d+ \w+ ", line)]
    assert len(printed) == len(found["rows"]) == 3
    for cells, row in zip(printed, found["rows"], strict=True):
        assert cells[1:4] == [row["compressor"], row["scheduler"], row["collective"]] and cells[-1] == row["limit"]
        expected, low, high = (three_digits(each) for each in (row["speedup"], *row["speedup_range"]))
        assert cells[4:6] == f"{expected}x [{low}-{high}]".split()
        ranges_of = [row[f"{part}_seconds_range"] for part in ("compress", "communicate", "exposed")]
        assert cells[-4:-1] == ["-".join(dict.fromkeys(f"{1e3 * each:.1f}" for each in ends)) for ends in ranges_of]
        assert cells[-5] == f"{row['bytes_per_step']['wire'] / 1e6:.4g}"
        if row["compressor"] == "none":
            assert cells[6] == "exact" and row["accuracy"]["top1_points"] == 0
            continue
        assert cells[6].rstrip("*") == f"{row['accuracy']['top1_points']:+.1f}", "another size has no range"
        assert not row["accuracy"]["of"]["near"]
        assert cells[7] == f"{-row['accuracy']['worst_seed_lost']:+.1f}"
        assert cells[6].endswith("*") == (row["compressor"] == "topk"), "twice the density that was trained"
        low, high = row["break_even_gbit_range"]
        assert cells[8] == f"{low:.3g}-{high:.3g}" and low <= row["break_even_gbit"] <= high
        assert row["break_even"] == rate(row["break_even_gbit"])


def three_digits(value: float) -> str:
    return next(text for text in (f"{value:.2f}", f"{value:.1f}", f"{value:.0f}") if len(text) <= 4 or "." not in text)


def test_rows_stand_in_groups_below_their_names(tmp_path, capsys):
    where = ["--trace", "resnet50_v100", "--network", "1gbe", "--workers", "8", "--schedulers", "wfbp"]
    found = answer(tmp_path, *where, "--compressors", "fp16", "topk", "randomk", "iwp", "chunk_topk")
    group, groups = "", []
    for line in capsys.readouterr().out.partition(" compressor ")[2].splitlines()[1:]:
        if re.match(r" *\d+ \w+ ", line):
            groups.append(group)
        elif line.startswith("  "):
            group = line.strip()
    named = {"within": "free, nearly free", "costs": "at a cost"}
    assert groups == [named.get(row["standing"], "not recommended") for row in found["rows"]]
    assert len(set(groups)) == 3 and {"too_much", "unknown"} <= {row["standing"] for row in found["rows"]}


@pytest.mark.slow
def test_faster_hardware_and_other_rates(tmp_path, capsys):
    of = ["--trace", "resnet50_v100", "--workers", "4", "--compressors", "fp16"]
    plain, fast = answer(tmp_path, *of), answer(tmp_path, *of, "--speed", "4")
    assert "resnet50_v100, 4 x as fast (estimated" in capsys.readouterr().out
    dense = [next(r for r in found["rows"] if r["compressor"] == "none") for found in (plain, fast)]
    assert dense[0]["efficiency"] > dense[1]["efficiency"]
    assert dense[1]["images_per_second"] > dense[0]["images_per_second"]
    double = answer(tmp_path, *of, "--batch", "64")
    assert "4 workers x 64 images: a step alone takes 238.2 ms" in capsys.readouterr().out
    assert double["rows"][0]["images_per_second"] > plain["rows"][0]["images_per_second"]
    slow = answer(tmp_path, *of, "--gbit", "1")
    assert slow["gbit"] == 1 and slow["network"].startswith("--gbit in place of the rate of 10gbe: ")
    assert slow["as_ddp"]["step_seconds"] > plain["as_ddp"]["step_seconds"]


@pytest.mark.slow
def test_a_named_gpus_memory_compresses_and_an_unknown_one_must_be_named(tmp_path, capsys):
    found = answer(tmp_path, "--trace", "googlenet_k80", "--workers", "4", "--compressors", "fp16")
    assert (found["memory"], found["memory_bytes_per_second"]) == ("NVIDIA Tesla K80, one of its two GPUs", 240e9)
    here = answer(tmp_path, "--trace", "resnet20_epyc", "--workers", "4", "--compressors", "fp16")
    assert here["memory"] == "this machine's, measured just now"
    other = tmp_path / "l40.json"
    dataclasses.replace(load(SHIPPED / "resnet20_epyc.json"), hardware="NVIDIA L40").save(other)
    capsys.readouterr()
    assert main(["--trace", str(other), "--workers", "4"]) == 2
    assert "--gpu: whose memory compresses? The trace's 'NVIDIA L40' is none of k80," in capsys.readouterr().err
    assert answer(tmp_path, "--trace", str(other), "--gpu", "v100", "--workers", "4", "--compressors", "fp16")


def test_a_busy_machine_is_pointed_out_where_its_memory_was_measured(tmp_path, capsys, monkeypatch):
    busy = {"hostname": "test-host", "cores": 2, "seconds": 0.4, "others_cores": 1.5}
    of = ["--trace", "resnet20_epyc", "--workers", "4", "--compressors", "fp16"]
    for met, warned in ((busy, 1), (busy | {"others_cores": 0.1}, 0), (busy | {"seconds": 0.001}, 0)):
        monkeypatch.setattr(given.LoadMeter, "load", lambda meter, met=met: [met])
        assert len(answer(tmp_path, *of)["warnings"]) == warned
        printed = capsys.readouterr().out
        assert printed.count("warning: other programs kept 1.5 of this machine's 2 cores busy") == warned
        assert "GB/s (this machine's, measured just now)" in printed


def test_more_workers_take_longer_to_decode_what_they_gather():
    trace, seconds = load(SHIPPED / "resnet50_v100.json"), {}
    for name in ("qsgd", "fp16"):
        for workers in (4, 32):
            sizes = sizes_of(name, None, trace, workers)
            seconds[name, workers] = compressing(Rates(), name, sizes, trace, 900e9)[0](25_000_000)
    assert seconds["qsgd", 32] > 2 * seconds["qsgd", 4]
    assert seconds["fp16", 32] == seconds["fp16", 4]


def test_more_workers_merge_on_more_levels_and_on_shared_cores_all_merges_of_all():
    trace, rates = load(SHIPPED / "resnet50_v100.json"), Rates()

    def seconds(name: str, workers: int, processor: Processor = IDLE) -> float:
        sizes = sizes_of(name, None, trace, workers)
        return compressing(rates, name, sizes, trace, 900e9, processor)[0](25_000_000) * processor.crowded(workers)

    level = (seconds("gtopk", 16) - seconds("gtopk", 4)) / 2
    assert level > 0 and seconds("gtopk", 1024) == pytest.approx(seconds("gtopk", 4) + 8 * level)
    assert seconds("fp16", 1024) == seconds("fp16", 4)
    # Eight ranks on two cores: each core makes three and a half of the seven merges, and four ranks' other work.
    alone = seconds("gtopk", 4) - 2 * level
    assert seconds("gtopk", 8, Processor(2.0)) == pytest.approx(4 * alone + 3.5 * level)


def test_a_compressor_pays_below_its_break_even_and_not_above():
    trace, network = load(SHIPPED / "resnet50_v100.json"), presets.find("10gbe")

    def at(gbit: float) -> Topology:
        return presets.cluster(network._replace(bytes_per_second=gbit * 1e9 / 8), 8)

    def adviser(usual: float) -> Adviser:
        return Adviser(trace, lambda gbit: at(usual if gbit is None else gbit), Rates(), 900e9, ranges.of([0.9, 1.1]))

    for name in ("fp16", "topk"):
        made = adviser(10)
        limit = made.break_even(name)
        assert limit is not None and 0.1 < limit < 100
        tried = {each for each, gbit, _ in made._fastest if gbit == HIGHEST_GBIT}
        assert tried == {"none"}, "computing hides dense messages, and no compressor can be faster"
        for gbit, pays in ((0.95 * limit, True), (1.05 * limit, False)):
            found, left_out = adviser(gbit).all(["none", name], named=True)
            assert not left_out
            best = {kind: min(f.found.step.seconds for f in found if f.compressor == kind) for kind in ("none", name)}
            assert (best[name] < WORTHWHILE * best["none"]) == pays, (name, gbit)


@pytest.mark.slow
def test_an_estimate_for_a_gpu_needs_no_trace_and_is_not_made_anew(tmp_path, monkeypatch):
    """Where one is shipped; tests/cli/test_estimate_trace.py has that it is the same."""
    if torch.__version__.partition("+")[0] == load(SHIPPED / "resnet50_v100.json").torch:
        monkeypatch.setattr(given, "estimate", lambda *_: pytest.fail("it is in configs/traces"))
    where = ["--gpu", "v100", "--network", "10gbe", "--workers", "4", "--compressors", "fp16"]
    estimated = answer(tmp_path, "--model", "resnet50", "--batch", "32", *where)
    loaded = answer(tmp_path, "--trace", "resnet50_v100", *where)
    assert estimated["trace"]["estimate"] and estimated["rows"] == loaded["rows"]


def test_a_probe_measures_this_machine(tmp_path):
    found = answer(
        tmp_path, "--model", "lenet", "--image-size", "28", "--classes", "10", "--batch", "4", "--probe",
        "--probe-seconds", "0.1", "--workers", "2", "--compressors", "powersgd",
    )  # fmt: skip
    assert not found["trace"]["estimate"] and found["trace"]["source"].startswith(
        "wirebench advise --probe: medians of"
    )
    assert {row["compressor"] for row in found["rows"]} == {"none", "powersgd"}, "a probe knows the tensors' shapes"


@pytest.mark.slow
def test_compressors_are_tried_on_the_collectives_of_dense_sums(tmp_path):
    """But for those whose paper names one: with several workers a machine it matters."""
    found = answer(
        tmp_path, "--trace", "vgg16_v100", "--workers", "8", "--per-machine", "4",
        "--compressors", "fp16", "gtopk", "--all",
    )  # fmt: skip
    tried = {
        name: {row["collective"] for row in found["rows"] if row["compressor"] == name} for name in ("none", "fp16")
    }
    assert tried["fp16"] == tried["none"] and len(tried["none"]) == 5
    assert {row["collective"] for row in found["rows"] if row["compressor"] == "gtopk"} == {"tree"}
    assert found["memory_bytes_per_second"] == 900e9, "the trace's own GPU, unless another is named"


def test_what_cannot_be_known_is_left_out_with_the_reason(tmp_path, capsys):
    names = ["powersgd", "threshold", "fp16"]
    found = answer(tmp_path, "--trace", "googlenet_k80", "--workers", "4", "--compressors", *names)
    assert found["left_out"].keys() == {"powersgd", "threshold"}
    assert found["left_out"]["threshold"].startswith("of noise it sends nothing")
    assert "left out: powersgd: what it sends" in capsys.readouterr().out


@pytest.mark.slow
def test_all_shows_every_composition_and_a_figure_is_drawn(tmp_path, monkeypatch):
    figure, drawn = tmp_path / "a.png", []

    def keep(made, path):
        drawn.append(made)
        return save(made, path)

    monkeypatch.setattr(bars, "save", keep)
    found = answer(
        tmp_path, "--trace", "resnet20_gtx1080ti", "--workers", "4", "--per-machine", "2", "--compressors", "fp16",
        "--all", "--figure", str(figure),
    )  # fmt: skip
    dense = [(row["scheduler"], row["collective"]) for row in found["rows"] if row["compressor"] == "none"]
    local = len(known.load(True, 10**5).local["none"])
    assert len(set(dense)) == len(dense) == (6 + local) * 5, "six schedulers and trained local steps, five collectives"
    assert figure.read_bytes().startswith(b"\x89PNG")
    charts.check(drawn[0])
    said = charts.note(drawn[0])
    assert said.startswith("Simulated: resnet20_gtx1080ti, 4 workers x 128 images, 2 on a machine, 10 Gbit/s.")
    assert "images/s" in said and charts.axes(drawn[0], "x") == {"time per step, ms"}
    trace = r"from the trace resnet20_gtx1080ti \(estimated, .*\)"
    assert re.search(trace + r"; the network 10gbe.*; commit [0-9a-f]{10}", said)
    spread = next(row for row in charts.of(drawn[0], "rule") if "low" in row)
    parts = ("compressor", "scheduler", "collective")
    row = next(row for row in found["rows"] if spread["name"].startswith(", ".join(row[part] for part in parts)))
    assert [spread["low"], spread["high"]] == pytest.approx([1e3 * each for each in row["step_seconds_range"]])
    shown = charts.of(drawn[0], "bar")
    totals = {row["name"]: row["total"] for row in shown}
    assert len(totals) == len(found["rows"]) == 2 * 6 * 5 + local * 5
    assert list(totals.values()) == pytest.approx([1e3 * row["step_seconds"] for row in found["rows"]])
    refused = {row["name"] for row in shown if row["part"] == "the same, of a method not recommended"}
    assert refused and all(name.startswith("none, outer") for name in refused), "fp16 is recommended"


TOPK = '''
"""Top-k by another name."""

from wirebench.compressors.topk import TopK


class Mine(TopK):
    """Nothing new."""


class Failing(TopK):
    """Nothing at all."""

    def exchange(self, bucket, world):
        raise RuntimeError("out of paper")
'''
PAIRS = '''
"""Layers two by two."""

from wirebench.exchange.scheduler import Scheduler


class Pairs(Scheduler):
    """A message for two layers; the last one may travel alone."""

    def partition(self, layers, cost):
        return [range(i, min(i + 2, len(layers))) for i in range(0, len(layers), 2)]


class Forgetful(Pairs):
    """Half of the layers."""

    def partition(self, layers, cost):
        return super().partition(layers, cost)[::2]
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Modules of a user's own; what they have is timed on short vectors, and not often."""
    folder = tmp_path / "owned"
    folder.mkdir()
    (folder / "compressing.py").write_text(TOPK)
    (folder / "scheduling.py").write_text(PAIRS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(timing, "SIZES", ("4k", "40k", "80k"))
    monkeypatch.setattr(turns, "REPEATS", 3)
    yield "owned"
    for name in ("owned.compressing", "owned.scheduling", "owned"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_a_compressor_of_ones_own_is_timed_here_and_ranked(own, tmp_path, capsys):
    where = ["--trace", "resnet50_v100", "--network", "1gbe", "--workers", "4", "--compressors", "topk"]
    threads = torch.get_num_threads()
    found = answer(tmp_path, *where, "owned.compressing.Mine", "--density", "0.01")
    rows = {row["compressor"]: row for row in found["rows"]}
    assert set(rows) == {"none", "topk", "owned.compressing.Mine"} and not found["left_out"]
    mine, topk = rows["owned.compressing.Mine"], rows["topk"]
    assert mine["bytes_per_step"]["wire"] == pytest.approx(topk["bytes_per_step"]["wire"], rel=0.01)
    assert mine["density"] == 0.01
    assert mine["compress_seconds"] > 0 and mine["break_even"] and mine["accuracy"] is None
    here = found["timed_here"]
    assert here["compressors"] == ["owned.compressing.Mine"] and here["sizes"] == ["4k", "40k", "80k"]
    assert here["on"].endswith(", 1 thread") and torch.get_num_threads() == threads
    captured = capsys.readouterr()
    assert f"Rates of owned.compressing.Mine were measured here just now, on {here['on']}, with 4k," in captured.out
    assert captured.err.startswith("timing owned.compressing.Mine on this machine")
    assert "\N{HORIZONTAL ELLIPSIS}" not in captured.out, "long names have room"
    known = answer(tmp_path, *where)
    captured = capsys.readouterr()
    assert not known["timed_here"]["compressors"] and "measured here" not in captured.out
    assert "timing " not in captured.err


@pytest.mark.slow
def test_what_is_timed_here_costs_about_what_the_same_code_costs_elsewhere(own, monkeypatch):
    """In copies of a vector, which is what machines have in common: the method that was measured comes out again.

    At the rate of a CPU's memory: at a GPU's the calls' own cost is all, and that differs between CPUs.
    """
    monkeypatch.setattr(timing, "SIZES", ("0.27m", "1m"))
    rates = Rates()
    timed = timing.time_unknown(["none", "topk", "owned.compressing.Mine"], rates, None, 10**6)
    assert timed.names == ("owned.compressing.Mine",) and not timed.failed
    mine, topk = (rates.on(name, 1e10)(10**6) for name in ("owned.compressing.Mine", "topk"))
    assert 0.2 < mine / topk < 5


@pytest.mark.slow
def test_a_short_model_is_not_timed_at_the_largest_size(own):
    rates = Rates()
    assert timing.time_unknown(["owned.compressing.Mine"], rates, None, 30_000).sizes == ("4k", "40k")
    assert rates.knows("owned.compressing.Mine")
    assert timing.time_unknown(["owned.compressing.Mine"], rates, None, 30_000) == timing.NOTHING


def test_a_compressor_of_ones_own_that_fails_is_left_out_with_the_reason(own, tmp_path, capsys):
    found = answer(tmp_path, *TRACE, "--compressors", "owned.compressing.Failing", "fp16")
    assert {row["compressor"] for row in found["rows"]} == {"none", "fp16"}
    reason = "it could not be timed here: RuntimeError: out of paper"
    assert found["left_out"] == {"owned.compressing.Failing": reason}
    assert f"left out: owned.compressing.Failing: {reason}" in capsys.readouterr().out


def test_a_gpus_times_are_those_of_the_gpu_that_was_measured():
    """And of one with half the bandwidth twice as long, but for starting kernels; of changed methods the newer ones."""
    rates, bandwidth = Rates.shipped(on_gpu=True), GPUS["h200"].memory_gbs * 1e9
    cells = [cell for cell in compressor_results.load(SHIPPED_GPU).cells if not cell.rival and not cell.error]
    assert {cell.method.partition(" ")[0] for cell in cells} == set(compressors.available())
    for cell in cells:
        name, took = cell.method.partition(" ")[0], sum(cell.copies.values()) * cell.copy
        assert rates.on(name, bandwidth)(cell.items) == pytest.approx(took)
        assert 0.999 * took <= rates.on(name, bandwidth / 2)(cell.items) <= 2.001 * took
        assert rates.on(name, bandwidth)(1000) > 0
    before = [cell for cell in compressor_results.load(GPU).cells if cell.method in GPU_AGAIN]
    assert before and all(rates.on(cell.method, bandwidth)(cell.items) < cell.total_seconds for cell in before)
    dense = rates.on("none", bandwidth)(138_357_544)
    assert rates.on("none", bandwidth / 2)(138_357_544) == pytest.approx(2 * dense, rel=0.2)


def test_how_long_every_compressor_works_on_a_cpu_is_known():
    """What was measured first counts, and the methods that came later are beside it."""
    rates, first = Rates.shipped(on_gpu=False), Rates(CPU)
    for name in compressors.available():
        assert rates.knows(name), name
        assert not first.knows(name) or rates.on(name, 1e10)(10**6) == first.on(name, 1e10)(10**6)
    later = [cell for cell in compressor_results.load(CPU_LATER).cells if cell.items > 10**7 and not cell.error]
    assert {cell.method for cell in later if not first.knows(cell.method)} == {
        name for name in compressors.available() if not first.knows(name)
    }
    for cell in later:
        if not first.knows(cell.method):
            took = sum(cell.copies.values()) * cell.copy
            assert rates.on(cell.method, 8 * cell.items / cell.copy)(cell.items) == pytest.approx(took, rel=0.05)


def test_local_steps_have_their_own_accuracy_and_no_second_momentum(tmp_path, capsys):
    found = answer(tmp_path, *TRACE, "--compressors", "topk", "dgc", "--all", "--schedulers", "outer", "wfbp")
    tried = {(row["compressor"], row["scheduler"]) for row in found["rows"]}
    assert tried == {("none", "outer"), ("none", "wfbp"), ("topk", "outer"), ("topk", "wfbp"), ("dgc", "wfbp")}
    known = {(row["compressor"], row["scheduler"]): row for row in found["rows"]}
    assert known["topk", "outer"]["accuracy"] is None and known["topk", "outer"]["standing"] == "unknown"
    assert known["topk", "wfbp"]["accuracy"]["top1_points"] > -5
    after = known["none", "outer"]
    assert after["accuracy"]["schedule"] == "outer" and after["accuracy"]["top1_points"] < -5
    assert after["standing"] == "too_much" and after["not_recommended"] == "ended at -6.2 points, beyond -5.0"
    assert found["answer"]["fastest_at_a_cost"].get("scheduler") != "outer"
    alone = answer(tmp_path, *TRACE, "--compressors", "topk", "--schedulers", "outer")
    assert all("nothing" in line for line in alone["answer"].values())
    assert alone["as_ddp"] == found["as_ddp"], "the baseline stays"


def test_local_steps_are_ranked_as_they_were_trained(tmp_path, capsys):
    """Beside the same dense training as all others, each schedule with its own accuracy."""
    found = answer(tmp_path, *TRACE, "--network", "1gbe", "--gbit", "0.1", "--compressors", "chunk_topk", "--all")
    outer = {row["scheduler"]: row for row in found["rows"] if row["scheduler"].startswith("outer")}
    trained = {each.schedule for those in known.load(True, 10**5).local.values() for each in those}
    assert outer.keys() == trained
    assert all(row["accuracy"]["schedule"] == name for name, row in outer.items())
    printed = capsys.readouterr().out
    assert re.search(r"^ *\d+ none +outer:delay=5 .*\n +:fragments=3 *\n +:keep=0\.5 *$", printed, re.M)
    best = answer(tmp_path, *TRACE, "--network", "1gbe", "--gbit", "0.1", "--compressors", "chunk_topk")
    assert sorted((row["compressor"], row["scheduler"].partition(":")[0] == "outer") for row in best["rows"]) == [
        ("chunk_topk", False), ("chunk_topk", True), ("none", False), ("none", True),
    ]  # fmt: skip
    local = next(row for row in best["rows"] if row["compressor"] == "none" and "outer" in row["scheduler"])
    assert local["break_even_gbit_range"], "where it pays beside dense training in every step"


def test_a_scheduler_has_the_options_that_are_given_and_ddp_is_there_to_compare(tmp_path, capsys):
    few = [*TRACE, "--compressors", "topk", "--all", "--schedulers"]
    found = answer(tmp_path, *few, "outer", "outer:every=60:delay=5")
    printed = capsys.readouterr().out
    seldom = next(row for row in found["rows"] if row["scheduler"] == "outer:every=60:delay=5")
    reason = r"was trained with \S+, not outer:delay=5:every=60"
    assert seldom["standing"] == "unknown" and re.fullmatch(reason, seldom["not_recommended"])
    of = {(row["compressor"], row["collective"], row["scheduler"]): row for row in found["rows"]}
    seldom, often = (of["none", "ring", name] for name in ("outer:every=60:delay=5", "outer"))
    assert 2 * seldom["bytes_per_step"]["wire"] == pytest.approx(often["bytes_per_step"]["wire"])
    assert seldom["exposed_seconds"] < often["exposed_seconds"] / 2
    assert "*: measured with another density, other options or other local steps\n" in printed
    ddp = answer(tmp_path, *few, "fused")
    plain = next(row for row in ddp["rows"] if (row["compressor"], row["collective"]) == ("none", "ring"))
    same = ("scheduler", "step_seconds", "images_per_second_range")
    assert [found["as_ddp"][key] for key in same] == [plain[key] for key in same]


def test_schedulers_that_are_named_are_tried_alone(own, tmp_path, capsys):
    of = [*TRACE, "--gpu", "h200", "--compressors", "topk", "fetch_sgd", "lion_sign", "--all", "--schedulers"]
    found = answer(tmp_path, *of, "owned.scheduling.Pairs", "dear")
    tried = {
        name: {row["scheduler"] for row in found["rows"] if row["compressor"] == name}
        for name in ("none", "topk", "fetch_sgd", "lion_sign")
    }
    assert tried["none"] == tried["topk"] == {"owned.scheduling.Pairs", "dear"}
    assert tried["fetch_sgd"] == {"single"}, "it needs the whole model in one message"
    assert tried["lion_sign"] == {"owned.scheduling.Pairs", "dear", "single"}, "with which its gradients can be clipped"
    pairs = next(row for row in found["rows"] if row["scheduler"] == "owned.scheduling.Pairs")
    assert pairs["messages"] == 30, "of 59 layers"
    capsys.readouterr()
    for name, problem in (
        ("owned.scheduling.Forgetful", "'Forgetful': its groups must cover the layers in order"),
        ("builtin", "no scheduler of builtin goes with it"),
    ):
        assert main([*of, name]) == 2
        error = capsys.readouterr().err
        assert f"dense gradients, with which all are compared, are left out: {problem}" in error
        assert error.count("\n") == 1


@pytest.mark.slow
def test_a_faster_precision_leaves_less_to_hide_messages_behind(tmp_path, capsys):
    where = ["--model", "resnet18", "--batch", "32", "--gpu", "h100", "--workers", "4", "--compressors", "fp16"]
    fp32, bf16 = answer(tmp_path, *where), answer(tmp_path, *where, "--precision", "bf16")
    assert bf16["trace"]["name"] == "resnet18_h100_bf16" and "bf16 by autocast" in bf16["trace"]["source"]
    dense = [next(row for row in found["rows"] if row["compressor"] == "none") for found in (fp32, bf16)]
    assert dense[0]["step_seconds"] > dense[1]["step_seconds"] and dense[0]["efficiency"] > dense[1]["efficiency"]
    assert dense[0]["bytes_per_step"] == dense[1]["bytes_per_step"], "gradients stay fp32"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", [["--gpu", "h100"], ["--probe", "--probe-seconds", "0.1"]])
def test_a_model_of_tokens_has_samples_and_losses(how, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGINS))
    figure, drawn = tmp_path / "a.png", []
    monkeypatch.setattr(bars, "save", lambda made, path: drawn.append(made))
    model = ["--model", "mine.letters.Successor", "--data", "mine.letters.Counting", "--batch", "8"]
    found = answer(tmp_path, *model, *how, "--workers", "4", "--compressors", "fp16", "--figure", str(figure))
    assert found["trace"]["unit"] == "samples" and found["accuracy_setting"].startswith("gpt depth=2 ")
    assert {row["compressor"]: row["accuracy"] is None for row in found["rows"]} == {"none": False, "fp16": True}
    printed = capsys.readouterr().out
    assert "4 workers x 8 samples" in printed and " samples/s\n" in printed
    table = printed[printed.index("compressor") :]
    assert "top-1" not in table and "image" not in table
    said = charts.note(drawn[0])
    assert "8 samples" in said and "samples/s" in said and "top-1" not in said and "images" not in said
    assert "and loss, as a multiple of dense training's, " in said
