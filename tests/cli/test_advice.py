"""What wirebench advise knows of trainings: accuracies, losses, what was trained; what compressing costs at worst."""

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from papers.accuracy import alone, times
from papers.accuracy import known as trained
from papers.accuracy import rows as accuracy
from papers.accuracy.known import QUICK, RESNET20, sources
from papers.accuracy.modern import OWN
from papers.accuracy.tasks import GPT, GPT_BY_FORMAT, RESNET
from papers.runner import RESULTS
from tests.cli.test_advise import answer
from tests.papers.accuracy.test_modern import put, record
from wirebench import schedulers
from wirebench.exchange.pipeline import Step
from wirebench.planner import known as shipped
from wirebench.planner import ranges
from wirebench.planner.accuracy import LOSS, Accuracies, Ended, Standing
from wirebench.planner.candidate import Candidate, place
from wirebench.planner.dense import reached
from wirebench.record import recorded
from wirebench.simulation.simulator import Factors, Simulated
from wirebench.simulation.trace import SHIPPED, load


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """Predictions that are hardly ever off: how wide their ranges are is tested apart."""
    monkeypatch.setattr(ranges, "load", lambda path=None, network=0.0: ranges.Errors(0.999, 1.001, 20, network))


def composed(compressor: str, scheduler: str = "wfbp", **others: object) -> Candidate:
    local = "" if scheduler == "wfbp" else scheduler
    return cast(Candidate, SimpleNamespace(compressor=compressor, scheduler=scheduler, local=local, **others))


def test_what_is_known_of_a_training_decides_where_a_composition_stands():
    """The same compressor may end well in every step, and badly after local steps, or was never trained so."""
    plain = {
        "topk": Ended(-4.0, None, measure=LOSS), "bf16": Ended(0.1, None, (-0.9, 0.6), LOSS, dense=-0.5),
        "int8": Ended(-0.6, None, (-0.7, -0.5), LOSS, dense=-0.5), "dgc": Ended(0.0, None, measure=LOSS, options="k=2"),
        "randomk": Ended(None, None, measure=LOSS),
    }  # fmt: skip
    after = [Ended(-52.0, None, (-52.4, -51.2), LOSS, "outer"), Ended(-7.0, None, None, LOSS, "outer:every=2")]
    known = Accuracies("a task", plain, {"topk": after, "none": after}, LOSS, 30.0)
    within, costs, too_much, unknown = Standing
    for name, scheduler, standing in (
        ("none", "wfbp", within), ("bf16", "wfbp", within), ("int8", "wfbp", costs), ("topk", "wfbp", costs),
        ("dgc", "wfbp", costs), ("randomk", "wfbp", unknown), ("fp16", "wfbp", unknown),
        ("topk", "outer", too_much), ("none", "outer:every=2", costs), ("topk", "outer:every=2", costs),
        ("topk", "outer:every=60", unknown), ("topk", "easgd", unknown), ("bf16", "outer", unknown),
    ):  # fmt: skip
        assert known.standing(composed(name, scheduler), None) is standing, (name, scheduler)
    assert known.standing(composed("int8"), None, tolerance=0.6) is within, (
        "by its mean, which lost more than its worst"
    )
    assert known.of(composed("topk", "outer:every=2:momentum=0.5")) == after[1], "the schedule that is most like it"
    assert known.untrained(composed("topk", "outer:every=60"), None) == "was trained with outer, not outer:every=60"
    assert known.untrained(composed("fp16", "outer"), None) == (
        "was never trained with local steps (results/sizes and results/today/gpt)"
    )
    assert Accuracies("", {}).standing(composed("fp16"), None) is unknown, "where nothing was measured"


def test_a_schedule_is_what_differs_from_its_defaults():
    words_of = schedulers.PLUGINS.words_of
    assert words_of("outer:every=30:rate=1:nesterov=false:momentum=0.0") == "outer:momentum=0:nesterov=false:rate=1"
    assert words_of("outer") == words_of("outer:every=30") == "outer"
    assert words_of("outer:rate=0.123456789") == "outer:rate=0.123456789", "to the last digit"


def unpack(run: Path, folder: Path) -> None:
    """A committed run in a folder of its own, where a test can change it."""
    found = recorded.at(run)
    assert found is not None
    folder.mkdir()
    (folder / "record.json").write_text(json.dumps(found.record))
    (folder / recorded.NOTE).write_text(json.dumps(found.note))


def test_losses_are_those_of_the_records():
    known, folder = trained.of_task(GPT), RESULTS / GPT.folder
    ended = {
        name: [run.record["final"]["loss"] for run in recorded.directly_below(folder) if run.composition == name]
        for name in ("dense", "dense-quarter", "demo", "diloco", "local_sgd", "gs_sgd-momentum=0")
    }
    dense = statistics.mean(ended["dense"])
    for found, name in (
        (known.known["demo"], "demo"), (known.local["none"][0], "diloco"), (known.local["none"][2], "local_sgd"),
        (known.known["gs_sgd"], "gs_sgd-momentum=0"), (known.known["none"], "dense"),
    ):  # fmt: skip
        ratios = [loss / dense for loss in ended[name]]
        assert len(ratios) == 3
        assert found.said == f"{statistics.mean(ratios):.3f} [{min(ratios):.3f} - {max(ratios):.3f}]"
    worst = [100 * (1 - max(ended[name]) / dense) for name in ("dense", "demo")]
    assert known.known["demo"].lost == pytest.approx(max(worst[0] - worst[1], -(known.known["demo"].points or 0)))
    assert known.known["none"].lost == pytest.approx(0.0, abs=1e-9)
    tokens = f"{13440 * 128 / 1853568:.1f} tokens a parameter"
    assert known.known["demo"].model == (f"a GPT of 1.9M parameters, {tokens}", 1853568)
    assert known.too_much == pytest.approx(100 * (statistics.mean(ended["dense-quarter"]) / dense - 1))
    assert known.local.keys() == {"none", "chunk_topk", "topk"} and {"dion", "lion_sign"} <= known.known.keys()
    assert known.known["gs_sgd"].options == "momentum=0" and not known.known["dion"].options
    labels = [each.label for each in sources(GPT)]
    assert not {"muon", "muloco momentum=0.5", "dense half", "sparseloco k=512", "onebit_adam"} & {*labels}
    assert {"dense", "sparseloco", "sparseloco every=2", "zero_one_adam", "streaming_diloco"} <= {*labels}


def test_formats_that_send_more_and_lose_no_less_are_not_told(tmp_path):
    """Of nvfp4 the one with 32 workers loses more; mxfp8 is as good as int8, with more bytes; fp8 has one world."""
    task, larger = (replace(each, series="x") for each in GPT_BY_FORMAT)
    for part, ends in (
        (task, {"dense": (3.0, 9e6), "int8": (3.001, 2e6), "mxfp8": (2.99, 2.1e6), "fp8": (2.9, 1.9e6),
                "nvfp4 feedback": (3.01, 1.1e6), "mxfp4": (3.5, 1.2e6), "int4 feedback": (3.1, 1e6)}),
        (larger, {"dense": (3.0, 9e6), "nvfp4 feedback": (3.05, 1.5e6), "int8": (3.0, 3e6), "mxfp8": (3.0, 2e6),
                  "mxfp4": (3.0, 1e6), "int4 feedback": (3.0, 1e6)}),
    ):  # fmt: skip
        for label, (loss, sent) in ends.items():
            put(tmp_path, label, 0, record(loss, sent), part.name, "x")
    found = trained.of_formats((task, larger), tmp_path)
    assert {*found} == {"quantised_sum:form=nvfp4", "quantised_sum:feedback=false:form=int8"}
    assert found["quantised_sum:form=nvfp4"].points == pytest.approx(100 * (1 - 3.05 / 3))
    assert trained.of_formats((larger,), tmp_path / "nowhere") == {}


def test_losses_that_cannot_be_read_say_nothing(tmp_path):
    assert trained.of_task(GPT, tmp_path) == Accuracies("", {}, measure=LOSS)
    (tmp_path / recorded.RUNS).write_text("{\n")
    assert trained.of_task(GPT, tmp_path).setting.startswith("nothing, ") and not trained.of_task(GPT, tmp_path).known


def test_losses_without_a_quarter_or_of_a_run_that_diverged(tmp_path):
    for name in ("dense-0", "demo-0"):
        unpack(RESULTS / GPT.folder / name, tmp_path / name)
    known = trained.of_task(GPT, tmp_path)
    assert known.standing(composed("demo"), None) is Standing.COSTS
    assert (known.too_much, known.dense) == (math.inf, ())
    assert known.known["demo"].between is None and "one seed, so that" in known.setting
    path = tmp_path / "demo-0" / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "diverged"}))
    assert trained.of_task(GPT, tmp_path).known["demo"].points is None
    assert trained.of_task(GPT, tmp_path).untrained(composed("demo"), None) == "diverged in training"


def test_of_steps_that_are_predicted_alike_the_one_with_less_to_lose_comes_first():
    """The same step, of which either exchange may take twice as long: what is hidden shows in one of them."""

    def advice(scheduler, longest):
        low, high = Factors(0.9, 0.9), Factors(2.0, 2.0)
        ends = {low: 0.99, high: longest}
        found = SimpleNamespace(step=SimpleNamespace(seconds=1.0))
        return Candidate(
            "topk", scheduler, "ring", cast(Simulated, found), 1.0,
            lambda factors: cast(Step, SimpleNamespace(seconds=ends[factors])), (low, high),
        )  # fmt: skip

    risky, safe = advice("optimal", 1.6), advice("fused", 1.0)
    assert sorted((risky, safe), key=place) == [safe, risky]
    assert risky.expected_seconds == pytest.approx((0.99 + 4 + 1.6) / 6)


@pytest.mark.slow
def test_compressing_may_stop_all_else(tmp_path):
    """At worst a step is computing, compressing and messages, one after the other."""
    found = answer(tmp_path, "--trace", "resnet50_v100", "--network", "1gbe", "--workers", "4", "--compressors", "topk")
    topk = next(row for row in found["rows"] if row["compressor"] == "topk")
    model = load(SHIPPED / "resnet50_v100.json")
    alone = model.forward_seconds + model.backward_seconds
    longest = min(topk["step_seconds"], alone + topk["communicate_seconds"]) + topk["compress_seconds"]
    shorter = topk["step_seconds"] / longest
    assert topk["images_per_second_serial"] == pytest.approx(topk["images_per_second"] * shorter) and shorter < 1
    dense = next(row for row in found["rows"] if row["compressor"] == "none")
    assert dense["images_per_second_serial"] == dense["images_per_second"]
    low, high = topk["images_per_second_serial_range"]
    assert low < topk["images_per_second_serial"] < high


def test_accuracies_are_those_of_the_records():
    known = trained.of_classics()
    top1 = {
        name: [run.record["final"]["top1"] for run in recorded.directly_below(QUICK) if run.composition == name]
        for name in ("dense", "topk", "dgc")
    }
    for name in ("topk", "dgc"):
        seeds = [100 * (each - statistics.mean(top1["dense"])) for each in top1[name]]
        low, high = f"{min(seeds):+.1f}", f"{max(seeds):+.1f}"
        assert known.known[name].said == f"{statistics.mean(seeds):+.1f} [{low} - {high}]", "no variant"
        assert known.known[name].cell == f"{low}..{high}"
        assert known.known[name].dense == pytest.approx(100 * (min(top1["dense"]) - statistics.mean(top1["dense"])))
    topk = composed("topk")
    assert known.otherwise(topk, 0.001) == "at density 0.01, not 0.001" and not known.otherwise(topk, 0.01)
    assert known.standing(topk, 0.01) is known.standing(topk, 0.02) is Standing.COSTS
    assert known.standing(topk, 0.001) is Standing.UNKNOWN, "a tenth of what was sent"
    assert known.known["none"].said.startswith("+0.0 [-") and known.standing(composed("none"), None) is Standing.WITHIN
    assert "dense" not in known.known and not any(" " in name for name in known.known)


def test_what_convergence_did_not_train_and_local_steps_are_the_other_studys():
    """Which trained the same network on the same images; a method is held against the dense runs of its own study."""
    first, (known, _) = trained.of_classics(), trained.images()
    ended = {
        name: [
            run.record["final"]["top1"]
            for run in recorded.directly_below(RESULTS / RESNET.folder)
            if run.composition == name
        ]
        for name in ("dense", "demo", "diloco", "local_sgd", "sparseloco")
    }
    after = {each.schedule: each for each in known.local["none"]}
    assert "outer" in after and known.local.keys() == {"none", "chunk_topk"}
    plain = "outer:momentum=0:nesterov=false:rate=1"
    for found, name in (
        (known.known["demo"], "demo"), (after["outer"], "diloco"), (after[plain], "local_sgd"),
        (known.local["chunk_topk"][0], "sparseloco"),
    ):  # fmt: skip
        points = [100 * (each - statistics.mean(ended["dense"])) for each in ended[name]]
        assert len(points) == 3
        assert found.said == f"{statistics.mean(points):+.1f} [{min(points):+.1f} - {max(points):+.1f}]"
    assert known.known.items() >= first.known.items()
    later = "demo, dion, lion_sign, quantised_sum, zero_one_adam and local steps: up to 3 seeds"
    assert known.setting == f"{first.setting}; {later}, updates with SGD at rates of their own"
    assert known.known["zero_one_adam"].options and not known.known["quantised_sum"].options
    assert "chunk_topk" not in known.known, "it was trained after local steps alone"
    of = [accuracy.shared([accuracy.load(each, own=OWN)[0]]) for each in (QUICK, RESULTS / RESNET.folder)]
    assert {**of[0], "steps": 8 * 390} == of[1], "dense training of as many epochs"


def test_without_records_nothing_is_said_of_the_accuracy(tmp_path):
    assert trained.of_classics(tmp_path) == Accuracies("", {})
    (tmp_path / recorded.RUNS).write_text("no\n")
    damaged = trained.of_classics(tmp_path)
    assert damaged.setting.startswith(f"nothing, {tmp_path}/runs.jsonl:1: ") and damaged.known == {}
    assert trained.images(folder=tmp_path.parent / "nowhere")[0] == trained.of_classics(), "nothing is there"
    other, _ = trained.images(folder=tmp_path)
    assert other.known == trained.of_classics().known and other.setting.endswith(
        f"seeds; {tmp_path}: {damaged.setting}"
    )


def test_a_run_that_was_interrupted_has_no_accuracy(tmp_path):
    for name in ("dense", "topk"):
        unpack(QUICK / f"{name}-0", tmp_path / f"{name}-0")
    path = tmp_path / "topk-0" / "record.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "status": "interrupted", "final": {"loss": None, "top1": None}}))
    assert list(trained.of_classics(tmp_path).known) == ["none"]


def test_a_method_has_the_accuracy_of_the_network_of_the_nearest_size():
    small, large = shipped.load(True, 100_000), shipped.load(True, 25_000_000)
    assert shipped.nearest(trained.images(), 25_000_000) == large and trained.language() == shipped.load(False, 1)
    assert small.known["dgc"] == trained.of_classics().known["dgc"]
    assert large.known["dgc"] == trained.of_classics(RESNET20).known["dgc"] != small.known["dgc"]
    assert large.known["dgc"].model == ("resnet_cifar depth=20 of 0.27M parameters", 269722)
    assert large.known["fp16"] == small.known["fp16"], "the larger network was not trained with it"
    assert "dgc" in large.setting and large.setting.endswith(trained.of_classics(RESNET20).setting)


def test_losses_in_as_much_time_are_those_of_the_study_where_nothing_overlaps():
    """A method's step in the study's times gives what its table says, with the same dense runs."""
    methods = accuracy.load(RESULTS / GPT.folder, own=OWN)
    by = times.yardstick(methods, alone.timed(RESULTS / GPT.folder, methods))
    dense, _ = times.sides(methods)
    of = {method.label: method for method in methods}
    forms = trained.of_task(GPT).dense
    whole = times.mean_pace(of["dense"], 0.1, by)
    assert whole is not None
    for label in ("bf16", "demo", "powersgd", "diloco"):
        pace = times.mean_pace(of[label], 0.1, by)
        beside = times.beside_dense(of[label], dense, 0.1, by, overlapped=False)
        assert pace is not None and beside is not None
        best, within = reached(forms, pace.seconds, whole.seconds, whole.computing)
        ratio = statistics.mean(accuracy.losses(of[label])) / statistics.mean(accuracy.losses(of["dense"]))
        assert ratio / best == pytest.approx(beside.ratio, rel=0.01) and within == beside.within, label
    best, within = reached(forms, whole.seconds / 100, whole.seconds, whole.computing)
    assert not within and best == pytest.approx(1.410, abs=0.002), "the shortest dense run takes longer"
    assert reached(forms, whole.seconds, whole.seconds, whole.computing)[0] <= 1
