"""The planner's order of the methods: what runs on emulated hosts, and how its order is held against their steps."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from papers.prediction import signed
from papers.prediction.signed import Signed
from papers.runner import ROOT
from papers.today.emulated import ordered
from papers.today.emulated.order import HOSTS, METHODS, NETWORKS, trainings
from papers.today.emulated.predicted import Predicted, predict
from papers.today.emulated.rated import Rated
from tests.flexreduce import run_record
from tests.papers import verb
from wirebench import compressors
from wirebench.compose.resolve import resolve
from wirebench.compressors.zero_one_adam import ZeroOneAdam
from wirebench.config import loader
from wirebench.costmodel.request_sizes import Sizes
from wirebench.errors import UserError
from wirebench.gradient.flat import Layer
from wirebench.planner.resimulated import RATES
from wirebench.telemetry import environment

pytestmark = pytest.mark.sampled(4)

run, report = verb.run("today"), verb.report("today")
PART = "order_100gbit"
KNOWN = ("dense", "bf16", "topk", "streaming_diloco")
"""Methods of which the shipped rates know how long they compress; in the planner's order the last one comes first."""


def settings(part: str, label: str) -> dict[str, Any]:
    """The run's config, as its record has it."""
    [training] = trainings(part, [label], [0], ())
    training.check()
    return loader.to_dict(resolve(loader.load(ROOT / training.config, list(training.overrides))))


@pytest.mark.parametrize("part", NETWORKS)
def test_everything_is_slowed_down_alike_and_counted_in_whole_rounds(part: str) -> None:
    network = NETWORKS[part]
    emulated = {"200mbit": 0.2, "1gbit": 1.0}[network.setting.link] * network.setting.dilation
    assert emulated == pytest.approx(network.gbit)
    for label in METHODS:
        config = settings(part, label)
        every, train = config["scheduler"].get("every", 1), config["train"]
        assert train["warmup_steps"] % every == (train["max_steps"] - train["warmup_steps"]) % every == 0, label
        assert config["network"]["dilation"] == network.setting.dilation
        assert train["max_steps"] * config["data"]["batch_size"] * HOSTS < config["data"]["train_size"]


def test_zero_one_adam_sends_one_bit_in_every_counted_step() -> None:
    """As the planner has it: no dense step among those that are counted, and none without an exchange."""
    config = settings(PART, "zero_one_adam")
    options = {
        key: value for key, value in config["compressor"].items() if key not in ("name", "dense_below", "warmup")
    }
    method = compressors.build("zero_one_adam", **options)
    assert isinstance(method, ZeroOneAdam)
    counted = range(config["train"]["warmup_steps"], config["train"]["max_steps"])
    assert not any(method.intervals.is_dense(step) for step in counted)
    assert all(method.intervals.around(step) == (step, 1) for step in counted)
    asked = Sizes(lambda: compressors.build("zero_one_adam", **options), HOSTS).of([Layer("weight", 0, 4096, 2, 64)])
    assert sum(each.num_bytes for each in asked) < 4096 * 4 / 8


def put(folder: Path, label: str, turns: Sequence[float]) -> None:
    """Runs of a method with steps of so many seconds in the mean."""
    for turn, step in enumerate(turns):
        made: dict[str, Any] = run_record("2+2")
        made["config"] = settings(PART, label)
        made["world_size"] = HOSTS
        made["images_per_second"] |= {"mean": HOSTS * made["config"]["data"]["batch_size"] / step}
        place = folder / PART / f"{label}-{turn}"
        place.mkdir(parents=True)
        (place / "record.json").write_text(json.dumps(made))
        note = {"label": label, "hosts": HOSTS, "link": NETWORKS[PART].setting.link, "launch": "python train.py"}
        (place / "note.json").write_text(json.dumps(note))


def sign(folder: Path) -> None:
    """What is predicted with the shipped rates, which lack the methods of today."""
    (folder / PART).mkdir(exist_ok=True)
    steps = predict(PART, folder / PART)
    signed.save(
        folder / PART, Signed("c0ffee" * 7, "2026-11-25T00:00:00+00:00", "results/prediction/outside.json", steps)
    )


def test_every_method_is_predicted_with_the_rates_that_the_study_measures(tmp_path: Path, capsys: Any) -> None:
    shutil.copy(ROOT / "results/prediction/rates.jsonl", tmp_path / RATES)
    for part in NETWORKS:
        steps = predict(part, tmp_path)
        assert steps.keys() == METHODS.keys() and not capsys.readouterr().err
        assert all(0 < each["low"] <= each["seconds"] <= each["high"] for each in steps.values())
    (tmp_path / RATES).unlink()
    assert set(KNOWN) <= predict(PART, tmp_path).keys() < METHODS.keys()
    assert "demo: is not predicted: how long 'demo' compresses was not measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "tau", "state"),
    [
        ((1.06, 0.97, 0.89, 0.86), "1.00 [1.00 to 1.00] of 4 methods; of median steps 1.00", "reproduced"),
        ((1.06, 0.89, 0.97, 0.86), "0.67 [0.67 to 0.67] of 4 methods; of median steps 0.67", "direction reproduced"),
        ((0.86, 0.89, 0.97, 1.06), "-1.00 [-1.00 to -1.00] of 4 methods; of median steps -1.00", "not reproduced"),
    ],
)
def test_the_planners_order_is_held_against_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float], tau: str, state: str
) -> None:
    sign(tmp_path)
    for label, step in zip(KNOWN, seconds, strict=True):
        put(tmp_path, label, [step] * 5)
    [found] = ordered.findings(tmp_path / PART, ordered.load(tmp_path / PART))
    assert found.verdict.words.startswith("not decidable: without dgc, powersgd, ")
    monkeypatch.setattr(ordered, "METHODS", KNOWN)
    [found] = ordered.findings(tmp_path / PART, ordered.load(tmp_path / PART))
    assert (found.here, found.verdict.state) == (tau, state) and len(found.records) == 20
    assert report(["--out", str(tmp_path)]) == 0
    text = (tmp_path / PART / "table.md").read_text()
    right = {"reproduced": 6, "direction reproduced": 5, "not reproduced": 0}[state]
    assert "Of the 6 pairs of methods 6 are in the same order in all 5 turns" in text
    assert f"has {right} of these the right way round, a tau of {tau.partition(' ')[0]}." in text
    assert text.index("| 1 | streaming_diloco |") < text.index("| 4 | dense |")
    assert "the planner's order on resnet18_gtx1080ti on 4 hosts, links of 1 Gbit/s, slowed down 100 times" in text


def test_an_order_is_judged_by_its_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two methods stand the other way round in three turns of five, and by their medians they do not."""
    sign(tmp_path)
    monkeypatch.setattr(ordered, "METHODS", KNOWN)
    steps = ([1.00, 1.01, 1.06, 1.07, 1.08], [1.02, 1.03, 1.20, 1.05, 1.04], [0.89] * 5, [0.86] * 5)
    for label, turns in zip(KNOWN, steps, strict=True):
        put(tmp_path, label, turns)
    [found] = ordered.findings(tmp_path / PART, ordered.load(tmp_path / PART))
    assert found.here == "0.80 [0.57 to 1.03] of 4 methods; of median steps 1.00"
    assert found.verdict.state == "direction reproduced"


def test_an_order_is_of_three_methods_and_of_one_network(tmp_path: Path) -> None:
    put(tmp_path, KNOWN[0], [1.0])
    with pytest.raises(UserError, match=r"has runs and no predicted\.json"):
        ordered.load(tmp_path / PART)
    with pytest.raises(UserError, match="has runs, and nothing was predicted before them"):
        Predicted(PART, tmp_path / PART).is_there(tmp_path / PART)
    sign(tmp_path)
    put(tmp_path, KNOWN[1], [1.0])
    assert not ordered.findings(tmp_path / PART, ordered.load(tmp_path / PART))
    note = json.loads((path := tmp_path / PART / "bf16-0" / "note.json").read_text())
    path.write_text(json.dumps({**note, "link": "200mbit"}))
    with pytest.raises(UserError, match="mixes settings: link is"):
        ordered.load(tmp_path / PART)
    path.write_text(json.dumps(note))
    record = json.loads((path := path.with_name("record.json")).read_text())
    record["environment"]["cpu"] = {"model": "Another", "cores": 2}
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match="mixes settings: machine is"):
        ordered.load(tmp_path / PART)


@pytest.mark.parametrize(
    ("rates", "predicted", "message"),
    [
        ("2026-01-02", "2026-01-01", r"rates\.jsonl: is of 2026-01-02 .* of 2026-01-01 "),
        ("2026-01-01", "2026-02-01", r"has a run of 2026-01-03 .* comes before all, of 2026-02-01 "),
    ],
)
def test_rates_come_before_predictions_and_these_before_runs(
    tmp_path: Path, rates: str, predicted: str, message: str
) -> None:
    put(tmp_path, KNOWN[0], [1.0])
    record = json.loads((path := tmp_path / PART / f"{KNOWN[0]}-0" / "record.json").read_text())
    record["environment"]["utc"] = "2026-01-03T00:00:00+00:00"
    path.write_text(json.dumps(record))
    header, *cells = (ROOT / "results/prediction/rates.jsonl").read_text().splitlines()
    told = json.loads(header)
    told["environment"]["utc"] = f"{rates}T00:00:00+00:00"
    (tmp_path / PART / RATES).write_text("\n".join([json.dumps(told), *cells]))
    steps = predict(PART, tmp_path / PART)
    for at, fails in ((f"{predicted}T00:00:00+00:00", True), ("2026-01-02T12:00:00+00:00", False)):
        signed.save(tmp_path / PART, Signed("c0ffee" * 7, at, "results/prediction/outside.json", steps))
        if fails:
            with pytest.raises(UserError, match=message):
                ordered.load(tmp_path / PART)
        else:
            assert len(ordered.load(tmp_path / PART)) == 1


def test_compressors_are_timed_and_steps_predicted_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "git", lambda: {"commit": "c0ffee", "dirty": False})
    commands: list[list[str]] = []

    def launch(command: list[str]) -> int:
        commands.append(command)
        if "--json" in command:
            shutil.copy(ROOT / "results/prediction/rates.jsonl", command[command.index("--json") + 1])
            return 0
        return 1

    words = ["--task", PART, "--out", str(tmp_path), "--turns", "0", "--methods", "dense", "demo"]
    assert run(words, launch) == 1
    timed, *trained = commands
    assert timed[4:6] == ["compressors", "--compressors"] and "demo" in timed and "none" not in timed
    assert [command[command.index("--link") + 1] for command in trained] == ["1gbit"] * 2
    assert (tmp_path / PART / RATES).is_file() and Rated().is_there(tmp_path / PART)
    before = signed.load(tmp_path / PART)
    assert before is not None and before.commit == "c0ffee" and before.steps.keys() == METHODS.keys()
    assert run(words, launch) == 1 and len(commands) == 5, "rates are there"
    assert run([*words, "--again"], launch) == 1 and len(commands) == 7, "what was signed is kept"
    assert signed.load(tmp_path / PART) == before
    other = next(part for part in NETWORKS if part != PART)
    assert run(["--task", other, *words[2:]], launch) == 1 and len(commands) == 10, "a network has rates of its own"
    with pytest.raises(UserError, match="--methods: no 'local_sgd'; there is: dense, bf16, "):
        trainings(PART, ["local_sgd"], None, ())


def test_a_checkout_with_changes_signs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "git", lambda: {"commit": "c0ffee", "dirty": True})
    with pytest.raises(UserError, match=r"predicted\.json: is signed with the commit that predicts"):
        Predicted(PART, tmp_path / PART).make(tmp_path / PART, lambda _: 0)
    assert run(["--task", PART, "--out", str(tmp_path)], lambda _: pytest.fail("begun")) == 2, "refused at once"


def test_rates_are_measured_once_and_a_measurement_that_fails_leaves_none(tmp_path: Path) -> None:
    assert not Rated().make(tmp_path / PART, lambda _: 1)
    assert not list((tmp_path / PART).iterdir())
    (tmp_path / PART / RATES).write_text("kept")
    assert Rated().make(tmp_path / PART, lambda _: pytest.fail("measured again"))


def test_pairs_that_turns_order_otherwise_are_not_counted(tmp_path: Path) -> None:
    sign(tmp_path)
    for label, turns in (("dense", [1.06, 1.06]), ("bf16", [0.97, 0.97]), ("topk", [0.96, 0.98])):
        put(tmp_path, label, turns)
    said = ordered.decided(ordered.load(tmp_path / PART))[0]
    assert said.startswith("Of the 3 pairs of methods 2 are in the same order in all 2 turns; the planner has 2 ")
