"""What wirebench advise recommends: accuracy beside speed, what is not counted, what compressing costs at worst."""

import json
import math
import re
import shutil
import statistics
from types import SimpleNamespace
from typing import cast

import pytest

from suite.planner import ranges
from suite.planner.accuracy import LOSS, Accuracies, Ended
from suite.planner.advice import WORTHWHILE, Advice, place
from suite.planner.schedules import words_of
from suite.planner.wording import local_steps, not_counted
from suite.studies.convergence import accuracies
from suite.studies.convergence import rows as convergence
from suite.studies.today.known import losses, top1
from suite.studies.today.known.sources import sources
from suite.studies.today.tasks import GPT, OWN
from tests.suite.test_advise import FEW, answer, faster
from wirebench.simulation.compress_rates import SHIPPED as RATES
from wirebench.simulation.pipeline import Step
from wirebench.simulation.simulator import Factors, Simulated
from wirebench.simulation.trace import SHIPPED, load


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """Predictions that are hardly ever off: how wide their ranges are is tested apart."""
    monkeypatch.setattr(ranges, "load", lambda path=None, network=0.0: ranges.Errors(0.999, 1.001, 20, network))


def composed(compressor: str, scheduler: str = "wfbp", **others: object) -> Advice:
    local = "" if scheduler == "wfbp" else scheduler
    return cast(Advice, SimpleNamespace(compressor=compressor, scheduler=scheduler, local=local, **others))


def test_what_harms_or_was_tried_on_noise_is_shown_and_not_recommended(tmp_path):
    where = ["--trace", "resnet50_v100", "--network", "1gbe", "--workers", "4", "--compressors"]
    found = answer(tmp_path, *where, "randomk", "topk", "iwp")
    rows = {row["compressor"]: row for row in found["rows"]}
    ended = rows["randomk"]["accuracy"]
    lost, (worst, best) = -ended["top1_points"], ended["top1_points_range"]
    assert -best < lost < -worst and lost > 5 and not ended["diverged"] and rows["topk"]["not_counted"] is None
    assert found["answer"].startswith("topk with ")
    for name, reason in (
        ("randomk", f"lost {lost:.1f} [{-best:.1f} - {-worst:.1f}] points of top-1 in training"),
        ("iwp", "was timed on noise alone"),
    ):
        assert f" {name}, {faster(rows[name], rows['none'])}, is not counted: it {reason}." in found["answer"]
        assert rows[name]["not_counted"] == reason
    alone = answer(tmp_path, *where, "iwp")
    assert alone["answer"].startswith("On this network nothing that is to be recommended beats dense")
    assert re.search(r" (% faster|times as fast), is not counted: it was timed on noise alone\.", alone["answer"])


def test_what_lost_too_much_in_training_is_not_counted():
    known = {"topk": Ended(-0.9, 0.01), "gs_sgd": Ended(-13.1, 0.01), "randomk": Ended(None, 0.01)}
    best = [composed(name) for name in ("none", "fp16", *known)]
    assert not_counted(best, Accuracies("", {})) == {}, "nothing was trained, and nothing stands out"
    assert not_counted(best, Accuracies("", known)) == {
        "fp16": "was never trained (results/convergence and results/today/resnet): measure its accuracy first",
        "gs_sgd": "lost 13.1 points of top-1 in training", "randomk": "diverged in training",
    }  # fmt: skip


def test_a_loss_counts_by_how_the_compressor_was_trained():
    """The same compressor may end well in every step, and badly after local steps, or was never trained so."""
    plain = {name: Ended(points, None, measure=LOSS) for name, points in (("topk", -4.0), ("bf16", 0.5))}
    after = [Ended(-52.0, None, (-52.4, -51.2), LOSS, "outer"), Ended(-7.0, None, None, LOSS, "outer:every=2")]
    local = {"topk": after, "none": [Ended(-10.0, None, None, LOSS, "outer")]}
    known = Accuracies("a task", plain, local, LOSS, 30.0, ", above that of a quarter")
    tried = [composed("topk", each) for each in ("wfbp", "outer", "outer:every=2", "outer:every=60", "easgd")]
    assert [known.cell(each, None) for each in tried] == ["1.040", "1.51..1.52", "1.070", "1.51..1.52*", ""]
    assert [known.trained(each) for each in tried] == [True] * 4 + [False], "elastic averaging is no outer step"
    assert known.of(composed("topk", "outer:every=2:momentum=0.5")) == after[1], "the schedule that is most like it"
    assert [known.counts(each) for each in tried] == [True, False, True, False, False]
    ended = "ended at 1.520 [1.512 - 1.524] times dense training's loss"
    assert [not_counted([each], known).get("topk") for each in tried] == [
        None, f"{ended}, above that of a quarter", None,
        f"{ended} with outer, not outer:every=60, above that of a quarter",
        "was never trained with local steps (results/today/gpt): measure its loss first",
    ]  # fmt: skip
    assert not_counted([composed("fp16")], known) == {
        "fp16": "was never trained (results/today/gpt): measure its loss first"
    }
    assert known.otherwise(tried[3], 0.01) == "at density None, not 0.01 and with outer, not outer:every=60"
    other = Accuracies("", {"gs_sgd": Ended(-1.0, 0.01, None, LOSS, "", "momentum=0")}, measure=LOSS)
    assert other.otherwise(composed("gs_sgd"), 0.01) == "with momentum=0"


def test_what_local_steps_cost_is_told():
    known = Accuracies("a task", {}, {"none": [Ended(-10.0, None, None, LOSS, "outer")]}, LOSS, 30.0)
    speed = {"images_per_second": 10.0, "images_between": (9.0, 11.0), "unit": "samples", "collective": "ring"}
    dense = [composed("none", each, **speed) for each in ("outer", "wfbp")]
    without = " Without local steps, with wfbp on ring, it makes 10 [9 - 11] samples/s."
    assert local_steps(dense, known) == (
        f" Dense training with outer ended at 1.100 times dense training's loss.{without}"
    )
    assert local_steps([composed("none", "easgd"), dense[1]], known) == (
        f" Dense training with easgd was not trained here.{without}"
    )
    assert local_steps(dense, Accuracies("", {})).startswith(" What local steps cost in accuracy is not known here")


def test_a_schedule_is_what_differs_from_its_defaults():
    assert words_of("outer:every=30:rate=1:nesterov=false:momentum=0.0") == "outer:momentum=0:nesterov=false:rate=1"
    assert words_of("outer") == words_of("outer:every=30") == "outer"


@pytest.mark.slow
def test_a_language_model_is_advised_by_the_studys_losses(tmp_path, capsys):
    gpt = ["--model", "gpt", "--data", "python_sources", "--batch", "8", "--gpu", "h200", "--workers", "8"]
    often = "outer:every=2:rate=1:momentum=0:nesterov=false"
    where = ["--network", "1gbe", "--schedulers", "wfbp", "outer", often, "--compressors", "bf16", "randomk", "topk"]
    found = answer(tmp_path, *gpt, *where, "quantised_sum", "onebit", "chunk_topk")
    rows, known = {row["compressor"]: row for row in found["rows"]}, losses.load()
    assert rows["quantised_sum"]["scheduler"] == "wfbp", "it is faster with local steps, and was not trained so"
    points = known.known["quantised_sum"].points
    assert points is not None and rows["quantised_sum"]["accuracy"]["loss_ratio"] == pytest.approx(1 - points / 100)
    assert rows["quantised_sum"]["break_even"] is None, "nor is it in the break-even"
    assert rows["chunk_topk"]["scheduler"] == often, "with 30 local steps it is faster, and lost too much"
    assert rows["chunk_topk"]["accuracy"]["schedule"] == words_of(often) and rows["topk"]["scheduler"] == "outer"
    assert [row["trained"] for row in found["rows"]] == [True] * 5 + [False] * 2
    assert re.search(
        r" randomk, \S+ \[\S+ - \S+\] times as fast, and onebit are not counted: they were never trained "
        r"with local steps \(results/today/gpt\): measure their loss first\.", found["answer"],
    )  # fmt: skip
    assert found["answer"].endswith(" samples/s.") and "top-1" not in found["answer"]
    printed = capsys.readouterr().out
    assert f"loss: times that of dense training, of the best seed and the worst: {known.setting}; *: meas" in printed
    assert known.local["none"][0].cell in printed and found["accuracy_setting"] == known.setting
    assert {row["accuracy"]["measure"] for row in found["rows"] if row["accuracy"]} == {"loss"}


def test_losses_are_those_of_the_records():
    known, folder = losses.load(), losses.FOLDER
    ended = {
        name: [json.loads(path.read_text())["final"]["loss"] for path in folder.glob(f"{name}-[0-9]/record.json")]
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
    assert known.too_much == pytest.approx(100 * (statistics.mean(ended["dense-quarter"]) / dense - 1))
    assert known.local.keys() == {"none", "chunk_topk", "topk"} and {"dion", "lion_sign"} <= known.known.keys()
    assert known.known["gs_sgd"].options == "momentum=0" and not known.known["dion"].options
    labels = [each.label for each in sources(GPT)]
    assert not {"muon", "muloco momentum=0.5", "dense half", "sparseloco k=512", "onebit_adam"} & {*labels}
    assert {"dense", "sparseloco", "sparseloco every=2", "zero_one_adam", "streaming_diloco"} <= {*labels}


def test_losses_that_cannot_be_read_say_nothing(tmp_path):
    assert losses.load(tmp_path) == Accuracies("", {}, measure=LOSS)
    (tmp_path / "dense-0").mkdir()
    (tmp_path / "dense-0" / "method.json").write_text("{")
    assert losses.load(tmp_path).setting.startswith("nothing, ") and not losses.load(tmp_path).known


def test_losses_without_a_quarter_or_of_a_run_that_diverged(tmp_path):
    for name in ("dense-0", "demo-0"):
        shutil.copytree(losses.FOLDER / name, tmp_path / name)
    known = losses.load(tmp_path)
    assert known.counts(composed("demo")) and (known.too_much, known.limit) == (math.inf, "")
    assert known.known["demo"].between is None and "one seed, so that" in known.setting
    path = tmp_path / "demo-0" / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "diverged"}))
    assert losses.load(tmp_path).known["demo"].points is None
    assert not_counted([composed("demo")], losses.load(tmp_path)) == {"demo": "diverged in training"}


@pytest.mark.slow
def test_other_rates_are_said_of_those_that_count(tmp_path):
    found = answer(
        tmp_path, "--trace", "resnet20_gtx1080ti", "--gpu", "k80", "--network", "100gbe", "--workers", "64",
        "--compressors", "qsgd", "randomk",
    )  # fmt: skip
    below = {row["compressor"]: row["break_even"] for row in found["rows"]}
    assert below["randomk"] and not below["qsgd"]
    assert found["answer"].endswith(", and at no rate that was tried does qsgd.")


@pytest.mark.slow
def test_of_those_that_are_alike_the_one_that_lost_least_is_named(tmp_path):
    where = ["--trace", "resnet50_v100", "--network", "10gbe", "--workers", "32", "--compressors", "topk", "dgc"]
    found = answer(tmp_path, *where, "--rates", str(RATES))  # by a CPU's copies, these two are alike
    topk, dgc = (next(row for row in found["rows"] if row["compressor"] == name) for name in ("topk", "dgc"))
    assert WORTHWHILE < topk["step_seconds"] / dgc["step_seconds"] < 1
    assert dgc["accuracy"]["top1_points"] > topk["accuracy"]["top1_points"]
    assert (
        found["answer"].startswith("dgc with ")
        and f"It is lossy: {dgc['accuracy']['top1_points']:+.1f} [" in found["answer"]
    )


@pytest.mark.slow
def test_dense_stands_before_what_is_hardly_faster(tmp_path):
    """Where computing hides everything, a lossy method's last microsecond is no reason for it."""
    found = answer(tmp_path, "--trace", "googlenet_k80", "--network", "ib200", "--workers", "4", *FEW)
    assert found["rows"][0]["compressor"] == "none"


def test_of_steps_that_are_predicted_alike_the_one_with_less_to_lose_comes_first():
    """The same step, of which either exchange may take twice as long: what is hidden shows in one of them."""

    def advice(scheduler, longest):
        low, high = Factors(0.9, 0.9), Factors(2.0, 2.0)
        ends = {low: 0.99, high: longest}
        found = SimpleNamespace(step=SimpleNamespace(seconds=1.0))
        return Advice(
            "topk", scheduler, "ring", cast(Simulated, found), 1.0,
            lambda factors: cast(Step, SimpleNamespace(seconds=ends[factors])), (low, high),
        )  # fmt: skip

    risky, safe = advice("optimal", 1.6), advice("fused", 1.0)
    assert sorted((risky, safe), key=place) == [safe, risky]
    assert risky.expected_seconds == pytest.approx((0.99 + 4 + 1.6) / 6)


@pytest.mark.slow
def test_an_accuracy_of_another_density_is_marked(tmp_path, capsys):
    where = ["--trace", "resnet50_v100", "--network", "1gbe", "--workers", "4", "--compressors", "topk"]
    own = answer(tmp_path, *where)
    assert (
        "at density 0.01, not 0.001 (" in own["answer"]
        and "*: measured with another density" in capsys.readouterr().out
    )
    same = answer(tmp_path, *where, "--density", "0.01")
    assert "not 0.01" not in same["answer"] and "*" not in capsys.readouterr().out
    assert [row["density"] for each in (own, same) for row in each["rows"] if row["compressor"] == "topk"] == [
        0.001,
        0.01,
    ]
    assert own["rows"][0]["accuracy"] == same["rows"][0]["accuracy"]


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
    worst = faster(topk, dense, "images_per_second_serial")
    assert f", {worst} if nothing else went on while it compresses. It pays" in found["answer"]


def test_accuracies_are_those_of_the_records():
    known = accuracies.load()
    top1 = {
        name: [
            json.loads(path.read_text())["final"]["top1"]
            for path in accuracies.FOLDER.glob(f"{name}-[0-9]/record.json")
        ]
        for name in ("dense", "topk", "dgc")
    }
    for name in ("topk", "dgc"):
        seeds = [100 * (each - statistics.mean(top1["dense"])) for each in top1[name]]
        low, high = f"{min(seeds):+.1f}", f"{max(seeds):+.1f}"
        assert known.known[name].said == f"{statistics.mean(seeds):+.1f} [{low} - {high}]", "no variant"
        assert known.cell(composed(name), known.known[name].density) == f"{low}..{high}"
    topk = composed("topk")
    assert known.cell(topk, 0.001) == known.cell(topk, 0.01) + "*"
    assert known.known["none"].said.startswith("+0.0 [-") and known.trained(composed("none"))
    assert "dense" not in known.known and not any(" " in name for name in known.known)


def test_what_convergence_did_not_train_and_local_steps_are_the_other_studys():
    """Which trained the same network on the same images; a method is held against the dense runs of its own study."""
    first, known = accuracies.load(), top1.load()
    ended = {
        name: [json.loads(path.read_text())["final"]["top1"] for path in top1.FOLDER.glob(f"{name}-[0-9]/record.json")]
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
    of = [convergence.shared([convergence.load(each, own=OWN)[0]]) for each in (accuracies.FOLDER, top1.FOLDER)]
    assert {**of[0], "steps": 8 * 390} == of[1], "dense training of as many epochs"


def test_without_records_nothing_is_said_of_the_accuracy(tmp_path):
    assert accuracies.load(tmp_path) == Accuracies("", {})
    (tmp_path / "topk-0").mkdir()
    (tmp_path / "topk-0" / "method.json").write_text("no")
    damaged = accuracies.load(tmp_path)
    assert damaged.setting.startswith(f"nothing, {tmp_path}/topk-0/method.json: ") and damaged.known == {}
    assert top1.load(tmp_path / "topk-0") == accuracies.load(), "nothing is there"
    other = top1.load(tmp_path)
    assert other.known == accuracies.load().known and other.setting.endswith(f"seeds; {tmp_path}: {damaged.setting}")


def test_a_run_that_was_interrupted_has_no_accuracy(tmp_path):
    for name in ("dense", "topk"):
        shutil.copytree(accuracies.FOLDER / f"{name}-0", tmp_path / f"{name}-0")
    path = tmp_path / "topk-0" / "record.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "status": "interrupted", "final": {"loss": None, "top1": None}}))
    assert list(accuracies.load(tmp_path).known) == ["none"]
