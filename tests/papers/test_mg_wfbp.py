"""The MG-WFBP paper: what its authors measured, predicted with one fitted number; and its claims, simulated."""

import functools
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from papers.findings import claims_table, instead
from papers.mg_wfbp import cluster, figures, paper
from papers.mg_wfbp import simulated as report
from papers.mg_wfbp.claims import claims
from papers.mg_wfbp.paper import GOOGLENET, RESNET, PaperModel, PaperStep
from tests import charts
from tests.papers import verb
from tests.papers.test_methods_run import record
from wirebench.errors import UserError
from wirebench.record.notes import IMAGENET
from wirebench.telemetry import environment

pytestmark = pytest.mark.sampled(5)


@functools.cache
def efficiencies(label: str) -> paper.Efficiencies:
    return report.efficiencies(next(model for model in paper.MODELS if model.label == label))


def test_all_nine_measured_steps_are_predicted_within_8_percent():
    """The cost of a message is fitted to two of them."""
    predict = report.predictor(GOOGLENET)
    call_seconds = paper.fit(GOOGLENET, predict)
    found = paper.steps(GOOGLENET, predict, call_seconds)
    assert len(found) == 9
    assert sum(cell.fitted for cell in found) == 2
    assert call_seconds == pytest.approx(1.55e-3, rel=0.1)
    assert not [cell for cell in found if abs(cell.error) > 0.08]
    # Without it WFBP on 8 nodes is a quarter too fast.
    without = {(cell.nodes, cell.schedule): cell.error for cell in paper.steps(GOOGLENET, predict, 0.0)}
    assert without[8, "wfbp"] < -0.2


def test_published_rates_are_steps():
    assert GOOGLENET.alone == pytest.approx(64 / (2 * 81.68))
    assert GOOGLENET.seconds(8, "wfbp") == pytest.approx(0.509, abs=5e-4)
    assert GOOGLENET.seconds(8, "wfbp") / GOOGLENET.seconds(8, "mg_wfbp") == pytest.approx(1.203, abs=5e-4)
    assert RESNET.seconds(8, "sync_easgd") / RESNET.seconds(8, "mg_wfbp") == pytest.approx(1.394, abs=5e-4)


def test_the_fit_finds_what_it_is_given():
    """Steps that cost 20 messages each on top of a base; the rates of the model are those of 2 ms."""
    rate = 32 / (0.4 + 20 * 0.002)
    model = GOOGLENET._replace(rates=dict.fromkeys(paper.SCHEDULES, (rate, rate, rate)))
    assert paper.fit(model, lambda _nodes, _name, each: 0.4 + 20 * each) == pytest.approx(0.002, rel=0.01)
    assert paper.fit(model, lambda _nodes, _name, each: 1.0 + each) == 0.0, "nothing fits better than nothing"


def test_resnet_from_the_trace_that_papers_md_describes():
    """PAPERS.md, C2: 1.80, 1.46, 55.1, 44.8, 80.6 and 84.7 %. Of the star it says nothing."""
    at = efficiencies("ResNet-50")[64]
    assert at["mg_wfbp"] / at["wfbp"] == pytest.approx(1.80, abs=5e-3)
    assert at["mg_wfbp"] / at["sync_easgd"] == pytest.approx(1.46, abs=6e-3)
    percent = {name: round(100 * share, 1) for name, share in at.items()}
    assert percent.pop(paper.STAR) < 5
    assert percent == {"sync_easgd": 55.1, "wfbp": 44.8, "mg_wfbp": 80.6, "optimal": 84.7}


@pytest.mark.parametrize("model", paper.MODELS, ids=lambda model: model.label)
def test_one_message_overtakes_one_per_layer_between_16_and_64_nodes(model: PaperModel):
    assert paper.crossing(efficiencies(model.label)) == (32, 64)


def test_crossings():
    def of(wfbp, single):
        return {n: {"wfbp": a, "sync_easgd": b} for n, a, b in zip((4, 8, 16), wfbp, single, strict=True)}

    assert paper.crossing(of((3, 2, 1), (1, 1.5, 2))) == (8, 16)
    assert paper.crossing(of((3, 3, 3), (1, 1, 1))) is None
    assert paper.crossing(of((1, 1, 1), (3, 3, 3))) is None


def test_figures_name_the_commit_that_first_gave_their_numbers(tmp_path, monkeypatch):
    steps = [PaperStep(2, name, 0.4, 0.41) for name in paper.SCHEDULES]
    nodewise = {4: dict.fromkeys(figures.SHOWN, 0.9), 64: dict.fromkeys(figures.SHOWN, 0.5)}

    def known(predicted):
        stars = {"GoogLeNet": {2: 0.5}}
        found = report.SimulatedResults(0.0015, {"GoogLeNet": predicted}, stars, {"GoogLeNet": nodewise})
        made = report.known_since(tmp_path, found)
        (tmp_path / report.FILE).write_text(made.text)
        return made.git

    first, later = ({"commit": letter * 40, "dirty": False} for letter in "ab")
    monkeypatch.setattr(environment, "git", lambda: first)
    assert known(steps) == first
    monkeypatch.setattr(environment, "git", lambda: later)
    assert known(steps) == first, "the later one gives the same"
    assert known([*steps[:-1], steps[-1]._replace(predicted=0.42)]) == later
    (tmp_path / report.FILE).write_text("{}")
    with pytest.raises(UserError, match="is not what `wirebench study mg_wfbp report` writes"):
        known(steps)
    where = "from a; commit b"
    real = figures.real_figure(GOOGLENET, steps, {2: 0.5}, where)
    for drawn in (real, figures.simulated_figure(GOOGLENET, nodewise, where)):
        charts.check(drawn)
        assert charts.note(drawn).endswith(f"{where}.")


def test_verdicts():
    at_64 = {"wfbp": 0.5, "sync_easgd": 0.6, "mg_wfbp": 0.87, "optimal": 0.9}
    simulated = {16: {"wfbp": 0.6, "sync_easgd": 0.5}, 64: at_64}
    steps = [(nodes, name) for name in paper.SCHEDULES for nodes in (2, 4, 8)]
    predicted = [PaperStep(nodes, name, 0.4, 0.5 if name == "wfbp" else 0.4) for nodes, name in steps]
    found = {claim.text: claim for claim in claims(GOOGLENET, simulated, predicted)}
    wfbp = found["simulated, 64 nodes: MG-WFBP over WFBP"]
    assert (wfbp.claimed, wfbp.here, wfbp.verdict.words) == ("1.78x", "1.74x", "reproduced")
    easgd = found["simulated, 64 nodes: MG-WFBP over SyncEASGD"].verdict
    assert easgd.words == "direction reproduced: 1.45x, not 1.35x"
    assert found["simulated: WFBP faster on 4 to 16 nodes, SyncEASGD on 64"].verdict.good
    measured = found["measured, 8 nodes: MG-WFBP over WFBP; here: predicted"]
    assert (measured.claimed, measured.here) == ("1.00x", "predicted 1.25x")
    assert measured.verdict.state == "not run here", "a prediction is no measurement"
    resnet = {each.text: each for each in claims(RESNET, simulated, predicted)}
    simulated_gain = resnet["simulated, 64 nodes: MG-WFBP over WFBP"]
    assert simulated_gain.here == "1.74x, from a reconstructed trace"
    assert simulated_gain.verdict.words == "direction reproduced: the times of its layers were not published"
    linear = resnet["simulated, 64 nodes: efficiency of MG-WFBP"].verdict
    assert linear.words.startswith("contradicted: 87.0 %, not 100.0 %; the paper's own figures")
    assert not any(text.startswith("simulated, 64 nodes: efficiency") for text in found)
    [optimal] = [each.verdict for text, each in found.items() if "is optimal" in text]
    assert optimal.words.startswith("contradicted: 0.97x, not 1.00x; the greedy rule looks one layer ahead")
    # GoogLeNet's step of one node takes 0.392 s.
    [wfbp] = [each for text, each in found.items() if text.startswith("measured, 2 and 4 nodes: efficiency of WFBP")]
    assert (wfbp.here, wfbp.verdict.state) == ("predicted 78.4 %", "not run here")
    made_so = resnet["simulated, 64 nodes: efficiency of SyncEASGD"].verdict
    assert made_so.state == "not run here" and "reconstructed so that this comes out" in made_so.why


def put(
    folder: Path, name: str, schedule: str, nodes: int, seconds: float, top1: float | None = None,
    images: int = IMAGENET, **config: Any,
) -> dict[str, Any]:  # fmt: skip
    """A run under this schedule on so many machines of one rank: the authors' log of GoogLeNet, replayed."""
    made = record("none", seconds)
    made |= {"world_size": nodes, "load": [{"hostname": "a", "cores": 8, "others_cores": 0.1, "steal": 0.0}] * nodes}
    replayed = {"name": "replay", "trace": GOOGLENET.trace}
    made["config"] |= {"model": replayed, "network": {"dilation": 1.0}, "scheduler": {"name": schedule}, **config}
    made["final"]["top1"] = top1
    made["samples"] = {"train": images}
    (folder / name).mkdir(parents=True)
    (folder / name / "record.json").write_text(json.dumps(made))
    return made


@pytest.mark.parametrize(("wfbp", "state"), [(0.508, "reproduced"), (0.6, "direction reproduced")])
def test_runs_on_a_cluster_are_judged_and_take_the_place_of_predictions(wfbp: float, state: str, tmp_path: Path):
    steps = [("wfbp", 8, wfbp), ("mg_wfbp", 8, 0.423), ("wfbp", 1, 0.392), ("wfbp", 2, 0.4), ("wfbp", 4, 0.5)]
    for turn in range(5):
        for schedule, nodes, seconds in steps:
            put(tmp_path, f"{schedule}-{nodes}-{turn}", schedule, nodes, seconds)
        emulated = put(tmp_path, f"emulated-{turn}", "sync_easgd", 8, 0.6)
        emulated["load"] = emulated["load"][:1]
        (tmp_path / f"emulated-{turn}" / "record.json").write_text(json.dumps(emulated))
    found = {each.claim.id: each for each in cluster.findings(cluster.load(tmp_path))}
    assert {name: each.verdict.state for name, each in found.items()} == {
        "measured_over_wfbp": state, "near_linear_wfbp": "not reproduced", "near_linear_mg_wfbp": "reproduced",
    }, "hosts that one machine plays are no cluster"  # fmt: skip
    measured = found["measured_over_wfbp"]
    assert (measured.claimed, measured.about, len(measured.records)) == ("1.20x", "GoogLeNet, 1 a node, replayed", 10)
    assert found["near_linear_wfbp"].here.startswith("78.4 % ")
    predicted = [replace(measured, here="predicted", about=model.label) for model in paper.MODELS]
    assert [each.about for each in instead(predicted, [measured])] == ["ResNet-50", "GoogLeNet, 1 a node, replayed"]
    assert "| measured, 8 nodes: MG-WFBP over WFBP: GoogLeNet, 1 a node, replayed |" in "\n".join(
        claims_table([measured])
    )


def test_replays_and_networks_that_compute_stand_in_rows_of_their_own(tmp_path: Path) -> None:
    """Both parts of one command lie below one folder, with the same turns."""
    few: dict[str, Any] = {"train": {"max_steps": 200}, "model": {"name": "googlenet"}}
    for turn, (schedule, seconds) in itertools.product(range(5), (("mg_wfbp", 0.4), ("wfbp", 0.5))):
        put(tmp_path / "replay", f"{schedule}-{turn}", schedule, 8, seconds, train={"max_steps": 14})
        put(tmp_path / "computing", f"{schedule}-{turn}", schedule, 8, seconds / 2, **few)
        put(tmp_path / "small", f"{schedule}-{turn}", schedule, 8, 9.0, **few, data={"batch_size": 1})
    put(tmp_path / "small", "mg_wfbp-9", "mg_wfbp", 8, 9.0, **few, data={"batch_size": 2})
    rows = cluster.rows_of(cluster.load(tmp_path))
    assert {(setting.schedule, setting.how): len(row.runs) for setting, row in rows.items()} == {
        (schedule, how): 5 for schedule in ("mg_wfbp", "wfbp") for how in ("replayed", "computing")
    }
    assert {row.step_seconds for setting, row in rows.items() if setting.how == "replayed"} == {0.4, 0.5}


@pytest.mark.parametrize(("lost", "state"), [(0.0, "reproduced"), (0.02, "not reproduced")])
def test_accuracies_of_trainings_are_judged_beside_those_of_one_message(lost: float, state: str, tmp_path: Path):
    trained: dict[str, Any] = {"model": {"name": "resnet50"}, "data": {"name": "imagefolder", "batch_size": 32}}
    for seed in range(3):
        length: dict[str, Any] = {"train": {"epochs": 13, "seed": seed}}
        for schedule, top1 in (("mg_wfbp", 0.7 - lost), ("sync_easgd", 0.7)):
            put(tmp_path, f"{schedule}-{seed}", schedule, 8, 0.4, **trained, **length, top1=top1 + 1e-4 * seed)
    put(tmp_path, "short-0", "mg_wfbp", 8, 0.4, **trained, train={"epochs": 2, "seed": 3}, top1=0.1)
    cut: dict[str, Any] = {"train": {"epochs": 13, "seed": 4, "max_steps": 200}}
    put(tmp_path, "cut-0", "mg_wfbp", 8, 0.4, **trained, **cut, top1=0.1)
    put(tmp_path, "few-0", "mg_wfbp", 8, 0.4, **trained, train={"epochs": 13, "seed": 5}, top1=0.1, images=16)
    [judged] = [each for each in cluster.findings(cluster.load(tmp_path)) if each.claim.id == "convergence"]
    assert (judged.about, judged.verdict.state, len(judged.records)) == ("ResNet-50", state, 6)


def test_a_replay_in_slow_motion_is_no_run_of_the_papers_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    put(tmp_path, "wfbp-0", "wfbp", 8, 5.0, network={"dilation": 10.0})
    assert verb.report("mg_wfbp")(["--cluster", str(tmp_path), "--print"]) == 2
    assert "has no finished run of googlenet or resnet50" in capsys.readouterr().err
