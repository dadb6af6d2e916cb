"""wirebench simulate: what is printed, written and drawn; one line for mistakes."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from papers.shipped import GPU
from tests import charts
from tests.cli.verbs import verb
from tests.simulation.test_coding_rates import DECODING, ENCODING, of_int8
from wirebench import collectives, schedulers
from wirebench.bench import turns
from wirebench.costmodel.request_cost import Pricer
from wirebench.figures import colours
from wirebench.planner import simulate, speedups, sums, timing
from wirebench.planner.compositions import sizes_of
from wirebench.planner.speedups import Point
from wirebench.simulation import compress_rates
from wirebench.simulation.simulator import Simulator, free
from wirebench.simulation.trace import SHIPPED, load
from wirebench.topology import presets

main = verb("simulate")

ROOT = Path(__file__).resolve().parents[2]
TRACE = ["--trace", "resnet20_gtx1080ti"]


def rows(tmp_path: Path, *arguments: str) -> list[dict]:
    path = tmp_path / "found.json"
    assert main([*TRACE, *arguments, "--json", str(path)]) == 0
    return json.loads(path.read_text())["rows"]


def test_a_line_for_every_schedule_at_every_point(tmp_path, capsys):
    found = rows(
        tmp_path, "--workers", "2", "4", "--gbit", "1", "10", "--speed", "1", "8", "--schedulers", "wfbp", "dear"
    )
    points = [(row["workers"], row["gbit"], row["speed"], row["scheduler"]) for row in found]
    assert points == [(n, g, s, x) for n in (2, 4) for g in (1, 10) for s in (1, 8) for x in ("wfbp", "dear")]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(
        "resnet20_gtx1080ti (estimated, NVIDIA GeForce GTX 1080 Ti), none on ring; 10gbe: nominal rate"
    )
    for row, line in zip(found, printed[2:-1], strict=True):
        assert line.split()[:6] == [
            str(row["workers"]), f"{row['gbit']:g}", "128", f"{row['speed']:g}", row["scheduler"],
            f"{1e3 * row['step_seconds']:.2f}",
        ]  # fmt: skip
        alone = row["step_seconds"] - row["exposed_seconds"]
        assert row["efficiency"] == pytest.approx(alone / row["step_seconds"])
        assert row["images_per_second"] == pytest.approx(row["workers"] * 128 / row["step_seconds"])
    by = {point: row["step_seconds"] for point, row in zip(points, found, strict=True)}
    assert by[4, 1, 1, "wfbp"] > by[4, 10, 1, "wfbp"] > by[4, 10, 8, "wfbp"]


def test_a_wire_format_sends_its_bytes_and_shows_its_error(tmp_path, capsys):
    """int8 sends 8.125 of 32 bits, and zeros that fill the last chunk of each of 16 pieces of a message; its error in
    one hop of 16 ranks is nearly the one that was measured.
    """
    few = ["--workers", "16", "--schedulers", "single", "--collective", "one_hop"]
    (dense,), (coded,) = rows(tmp_path, *few), rows(tmp_path, *few, "--wire", "int8")
    full = dense["bytes_per_step"]["wire"] * 8.125 / 32
    assert full <= coded["bytes_per_step"]["wire"] < full + 2 * 16 * 260
    assert coded["step_seconds"] < dense["step_seconds"] and dense["sum_error"] is None
    measured = sums.load("images").measured("int8", "one_hop", 16)
    assert coded["sum_error"] == pytest.approx(measured, rel=0.08)
    printed = capsys.readouterr().out
    dense_text, coded_text = printed.split("none on one_hop in int8; 10gbe")
    assert simulate.UNTIMED in coded_text and simulate.UNTIMED not in dense_text
    assert f"{100 * coded['sum_error']:.3g} %" in printed


def test_coding_takes_what_a_file_of_rates_has(tmp_path, capsys, monkeypatch):
    """4 workers in one hop: a share of 1 - 1/4 coded, then 1/4; 1 - 1/4 decoded, then all. fp16 keeps our rates."""
    monkeypatch.setattr(compress_rates, "SHIPPED_GPU", GPU)  # without formats
    path = of_int8(tmp_path / "formats.jsonl", "NVIDIA H200", times=10**4)
    hop = ["--workers", "4", "--schedulers", "single", "--collective", "one_hop", "--wire", "int8"]
    measured = ["--gpu", "h200", "--rates", str(path)]
    (free,), (coded,) = rows(tmp_path, *hop), rows(tmp_path, *hop, *measured)
    elements = sum(layer.numel for layer in load(SHIPPED / "resnet20_gtx1080ti.json").layers)
    took = 10**4 * elements * (ENCODING + 1.75 * DECODING)
    assert coded["step_seconds"] - free["step_seconds"] == pytest.approx(took, rel=0.1)
    dense = ["--workers", "4", "--schedulers", "single", "--compressor", "fp16"]
    assert rows(tmp_path, *dense, *measured) == rows(tmp_path, *dense, *measured[:2])
    capsys.readouterr()
    assert main([*TRACE, *hop, "--gpu", "h200", "--wire", "int4", *measured[2:]]) == 2
    assert capsys.readouterr().err == (
        "wirebench simulate: --wire: how long coding in int4 takes was not measured (wirebench bench compressors "
        "--formats); --rates takes the file of its --json\n"
    )
    assert main([*TRACE, *hop, *measured[2:]]) == 2
    assert "--rates: goes with --gpu" in capsys.readouterr().err


def test_computation_takes_time_in_proportion_to_the_batch(tmp_path):
    one = ["--workers", "4", "--schedulers", "sync_easgd"]
    small, usual, large = rows(tmp_path, *one, "--batch", "32", "128", "512")
    computed = [row["step_seconds"] - row["exposed_seconds"] for row in (small, usual, large)]
    assert computed == pytest.approx([computed[1] / 4, computed[1], 4 * computed[1]])
    assert small["exposed_seconds"] == pytest.approx(large["exposed_seconds"])
    assert large["images_per_second"] == pytest.approx(4 * 512 / large["step_seconds"])
    (faster,) = rows(tmp_path, *one, "--speed", "4")
    assert faster["step_seconds"] == pytest.approx(small["step_seconds"])


def test_a_line_is_the_simulators_step(tmp_path):
    (row,) = rows(
        tmp_path, "--workers", "6", "--network", "1gbe", "--per-machine", "2", "--compressor", "topk",
        "--density", "0.05", "--collective", "tree", "--schedulers", "optimal", "--call-us", "30",
    )  # fmt: skip
    topology = presets.cluster(presets.find("1gbe"), 6, 2)
    trace = load(SHIPPED / "resnet20_gtx1080ti.json")
    pricer = Pricer(collectives.build("tree"), topology, 30e-6)
    step = Simulator(trace, sizes_of("topk", 0.05, trace, 6), free, pricer).step(schedulers.build("optimal"))
    assert row["step_seconds"] == step.step.seconds
    assert row["messages"] == len(step.groups)
    assert row["bytes_per_step"] == {"payload": step.num_bytes, "wire": step.wire_bytes}
    assert row["message_elements"] == list(step.elements)


def test_a_topologys_links_are_used(tmp_path):
    uneven = str(ROOT / "configs/topologies/2+3_1gbit.toml")
    (slow,) = rows(tmp_path, "--topology", uneven, "--workers", "5", "--schedulers", "sync_easgd")
    (fast,) = rows(tmp_path, "--topology", uneven, "--workers", "5", "--schedulers", "sync_easgd", "--gbit", "10")
    assert slow["exposed_seconds"] > 1.5 * fast["exposed_seconds"]


def test_compressing_takes_time_where_a_gpu_is_named_and_dense_gradients_take_none(tmp_path):
    for name, longer in (("fp16", True), ("none", False)):
        few = ["--compressor", name, "--schedulers", "sync_easgd"]
        (without,), (named,) = rows(tmp_path, *few), rows(tmp_path, *few, "--gpu", "k80")
        assert (named["step_seconds"] > without["step_seconds"]) == longer and (named == without) != longer


def test_what_all_gather_is_sent_to_all_and_decoded_by_all(tmp_path):
    """A rank's share is sent to every other one; a sum is shared out."""
    found = {
        (name, n): rows(
            tmp_path, "--workers", str(n), "--compressor", name, "--schedulers", "sync_easgd", "--gpu", "k80"
        )
        for name in ("topk", "none")
        for n in (4, 32)
    }
    for (name, n), (row,) in found.items():
        payload, wire = row["bytes_per_step"]["payload"], row["bytes_per_step"]["wire"]
        # Of topk, vectors go dense in a sum of their own.
        assert wire == pytest.approx(2 * (n - 1) / n * payload) if name == "none" else wire > 0.5 * (n - 1) * payload


def test_one_machine_has_no_rate_between_machines(tmp_path):
    found = rows(tmp_path, "--workers", "4", "8", "--per-machine", "4", "--gbit", "1", "--schedulers", "wfbp")
    assert [row["gbit"] for row in found] == [None, 1]


def test_schedules_that_do_not_fit_are_left_out_unless_named(tmp_path):
    whole = rows(tmp_path, "--compressor", "fetch_sgd")
    assert [row["scheduler"] for row in whole] == ["single"]
    native = rows(tmp_path, "--collective", "native")
    assert [row["scheduler"] for row in native] == [name for name in simulate.USUAL if name != "dear"]


@pytest.mark.slow
def test_plugins_of_ones_own_go_by_dotted_paths(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "dotted"
    folder.mkdir()
    (folder / "mine.py").write_text("from wirebench.compressors.topk import TopK\n\n\nclass Mine(TopK):\n    pass\n")
    (folder / "cut.py").write_text("from wirebench.schedulers.wfbp import Wfbp\n\n\nclass Cut(Wfbp):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(timing, "SIZES", ("4k", "40k", "80k"))
    monkeypatch.setattr(turns, "REPEATS", 3)
    words = ["--compressor", "dotted.mine", "--schedulers", "dotted.cut", "wfbp"]
    free = rows(tmp_path, *words)
    assert [row["scheduler"] for row in free] == ["dotted.cut", "wfbp"]
    assert free[0]["step_seconds"] == free[1]["step_seconds"] and "measured here" not in capsys.readouterr().out
    path = tmp_path / "found.json"
    priced = rows(tmp_path, *words, "--gpu", "v100")
    assert priced[0]["step_seconds"] > free[0]["step_seconds"], "it takes time now"
    assert json.loads(path.read_text())["timed_here"]["compressors"] == ["dotted.mine"]
    assert "Rates of dotted.mine were measured here just now, on " in capsys.readouterr().out
    assert main([*TRACE, *words, "--gpu", "v10"]) == 2
    assert "timing" not in capsys.readouterr().err, "mistakes come before what takes long"
    for name in ("dotted.mine", "dotted.cut", "dotted"):
        sys.modules.pop(name)


def test_a_compressor_that_needs_a_density_is_built_with_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "needs_density.py").write_text(
        "from wirebench.compressors.topk import TopK\n\n\n"
        "class Needs(TopK):\n    def __init__(self, density: float) -> None:\n        super().__init__(density)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["--compressor", "needs_density.Needs", "--density", "0.01", "--schedulers", "wfbp"]
    (mine,), (topk,) = rows(tmp_path, *words), rows(tmp_path, "--compressor", "topk", *words[2:])
    assert mine == topk
    assert main([*TRACE, *words, "--wire", "int8"]) == 2
    assert capsys.readouterr().err.startswith("wirebench simulate: --wire: rounds the gradients of compressor none")
    sys.modules.pop("needs_density")


def test_a_batch_of_samples_is_not_called_images(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(simulate, "save", lambda made, path: drawn.append(made))
    trace = tmp_path / "tokens.json"
    dataclasses.replace(load(SHIPPED / "resnet20_gtx1080ti.json"), unit="tokens").save(trace)
    words = ["--trace", str(trace), "--batch", "64", "128", "--schedulers", "wfbp"]
    assert main([*words, "--figure", str(tmp_path / "a.png"), "--json", str(tmp_path / "a.json")]) == 0
    assert charts.axes(drawn[0], "x") == {"batch, tokens of a worker"}
    assert json.loads((tmp_path / "a.json").read_text())["unit"] == "tokens"


def test_a_figure_and_a_timeline_are_written(tmp_path, capsys):
    figure, timeline = tmp_path / "a.png", tmp_path / "step.json"
    rows(tmp_path, "--workers", "2", "8", "--schedulers", "wfbp", "--figure", str(figure), "--timeline", str(timeline))
    printed = capsys.readouterr().out
    assert all(f"{path}: written" in printed for path in (figure, timeline))
    assert figure.read_bytes().startswith(b"\x89PNG")
    events = [event for event in json.loads(timeline.read_text())["traceEvents"] if event.get("ph") == "X"]
    assert {"forward", "backward"} <= {event["name"] for event in events}
    assert len(events) > 59, "a message for each of 59 layers, and the passes"


def swept(name, values, key="workers"):
    found = {"workers": 8, "gbit": 1.0, "batch": 32, "speed": 1.0}
    return [
        Point(**{**found, key: at}, scheduler=name, efficiency=share, between=(0.9 * share, share))
        for at, share in values.items()
    ]


def test_schedules_that_come_out_alike_share_a_curve_and_its_name():
    points = [
        *swept("wfbp", {2: 0.5, 4: 0.25}), *swept("optimal", {2: 0.9, 4: 0.8}), *swept("mg_wfbp", {2: 0.899, 4: 0.8}),
        *swept("dear", {2: 0.9, 4: 0.7}),
    ]  # fmt: skip
    figure = speedups.figure(points, "a trace")
    charts.check(figure)
    assert charts.lines(figure) == {
        "wfbp": ([2, 4], [1.0, 1.0]), "optimal = mg_wfbp": ([2, 4], [1.8, 3.2]), "dear": ([2, 4], [1.8, 2.8]),
        "linear": ([2, 4], [2, 4]),
    }  # fmt: skip
    assert charts.names(figure) == ["wfbp", "dear", "optimal = mg_wfbp", "linear"]
    assert "Simulated: a trace. Schedules with equal results are one curve" in charts.note(figure)
    colour = {row["name"]: row["colour"] for row in charts.of(figure, "line")}
    assert colour["dear"] == colours.SCHEDULES["dear"]


def test_what_else_is_swept_has_an_efficiency():
    figure = speedups.figure(swept("wfbp", {1.0: 0.5, 10.0: 1.0}, "gbit"), "a trace", where="From b; commit c.")
    assert charts.lines(figure) == {"wfbp": ([1, 10], [50, 100])}
    assert [(row["low"], row["high"]) for row in charts.of(figure, "rule") if "low" in row] == [(45, 50), (90, 100)]
    assert charts.note(figure).endswith("From b; commit c.")
    assert charts.axes(figure, "x") == {"rate between machines, Gbit/s"}
    assert charts.axes(figure, "y") == {"efficiency, % of a linear speed-up"}
