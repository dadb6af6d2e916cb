"""wirebench study today: what is trained with what, the curve in a run's note, times, the front, and the verdicts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import compressors
from suite.compose.resolve import resolve
from suite.figures import colours
from suite.studies.notes import NotedRun
from suite.studies.runner import RESULTS, ROOT
from suite.studies.series import options_of
from suite.studies.today import figures, verdicts
from suite.studies.today.curve import WINDOW, curve_of, loss_after, pace
from suite.studies.today.report import methods_of
from suite.studies.today.run import SHALLOW, SHORT, Traced, completed, tasks
from suite.studies.today.table import front
from suite.studies.today.tasks import DENSE, GPT, QUICK, SETTINGS, TASKS, compositions
from tests.flexreduce import run_record
from tests.studies import verb
from wirebench.config import loader
from wirebench.errors import UserError

run, report = verb.run("today"), verb.report("today")


def record(loss: float, megabytes: float, **sections: dict[str, Any]) -> dict[str, Any]:
    """A run with this final loss, in which a worker sent so much."""
    made = run_record("2+2")
    made["config"] |= {"data": {"name": "python_sources", "batch_size": 8}, "train": {"epochs": 1}}
    made["config"] |= {"optimizer": {"lr": 0.3}, "model": {"name": "gpt"}, **sections}
    made["config"].pop("compressor", None)
    made["history"] = [
        {"epoch": 0, "seconds": 1.0, "loss": loss, "top1": 0.5, "top5": 0.6, "test_loss": loss,
         "seconds_total": 1.0, "wire_bytes_total": 1e6 * megabytes}
    ]  # fmt: skip
    made["final"] = {"loss": loss, "top1": 0.5, "top5": 0.6}
    made["warnings"] = []
    made["requests"] = [{"kind": "Sum", "plan": "native", "rounds": 6, "bytes": 40, "payload_bytes": 40}]
    return made


def put(folder: Path, label: str, seed: int, made: dict[str, Any], **more: object) -> Path:
    place = folder / "gpt" / f"{label}-{seed}"
    place.mkdir(parents=True)
    made["config"]["train"] = {**made["config"]["train"], "seed": seed}
    (place / "record.json").write_text(json.dumps(made))
    sent = made["history"][-1]["wire_bytes_total"]
    curve = [[20, 5.0, sent / 2], [40, made["final"]["loss"], sent]]
    note = {"label": label, "seed": seed, "launch": "python train.py", "curve": curve, "last_bytes": sent / 40}
    (place / "method.json").write_text(json.dumps({**note, **more}))
    return place


@pytest.mark.parametrize("task", TASKS)
def test_every_method_is_a_composition_that_makes_sense(task: str) -> None:
    chosen = compositions(TASKS[task], None)
    trained = {each.overrides[2 if task == "resnet" else 1].partition("=")[2] for each in chosen}
    updates = {name for name in compressors.available() if compressors.class_of(name).makes_update}
    assert trained >= updates | {"none", "bf16", "dgc", "topk", "powersgd", "gs_sgd", "chunk_topk", "quantised_sum"}
    for each in chosen:
        cell = Traced(TASKS[task], each, 0, (), None)
        settings = resolve(loader.load(ROOT / TASKS[task].config, list(cell.words)))
        assert settings.output.health_every == 0
    assert set(QUICK) <= SETTINGS["gpt"].keys()


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(UserError, match=r"--methods: no 'muon'; there is: dense, bf16"):
        compositions(GPT, ["muon"])


def test_short_runs_are_few_and_lie_apart_and_images_are_left_out_where_there_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = completed(options_of("today", ["--quick", "--seeds", "3"]))
    assert (short.task, short.methods, short.seeds, short.steps) == (["gpt"], list(QUICK), [3], SHORT)
    assert (short.out, short.set) == (ROOT / "build/tables/today", [SHALLOW])
    usual = completed(options_of("today", []))
    assert (usual.task, usual.methods, usual.steps, usual.out) == (list(TASKS), None, 0, RESULTS / "today")
    assert tasks(usual) == ["gpt"]
    assert capsys.readouterr().err == "left out without --data: resnet\n"
    with pytest.raises(UserError, match="--data: which folder has the cifar-10-batches-bin of resnet"):
        tasks(completed(options_of("today", ["--task", "resnet"])))
    with pytest.raises(UserError, match="has no cifar-10-batches-bin"):
        tasks(completed(options_of("today", ["--data", str(tmp_path)])))


def test_no_two_methods_of_a_panel_have_the_same_colour() -> None:
    for methods in SETTINGS.values():
        shown = [label for label in methods if label != DENSE]
        panels = {figures._family(label) for label in shown}
        assert colours.OTHER not in panels
        for panel in panels:
            tones = [figures._colour(label) for label in (DENSE, *shown) if figures._family(label) in (panel, DENSE)]
            assert len(set(tones)) == len(tones), panel


def test_runs_keep_their_curve_and_are_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = []

    def launch(command: list[str]) -> int:
        folder = Path(next(word for word in command if word.startswith("output.dir=")).partition("=")[2])
        started.append(folder.name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "record.json").write_text(json.dumps(record(2.0, 1.0)))
        lines = [{"step": n, "loss": 1.0, "wire_bytes": 10.0} for n in range(WINDOW + 1)]
        (folder / "steps.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
        return 0

    words = ["--task", "gpt", "--methods", "dense", "demo", "--seeds", "0", "--out", str(tmp_path), "--steps", "21"]
    assert run(words, launch) == 0 and started == ["dense-0", "demo-0"]
    note = json.loads((tmp_path / "gpt" / "demo-0" / "method.json").read_text())
    assert note["curve"] == [[20, 1.0, 200.0], [21, 1.0, 210.0]] and note["last_bytes"] == 10.0
    assert not (tmp_path / "gpt" / "demo-0" / "steps.jsonl").exists()
    assert (tmp_path / "gpt" / "table.md").exists() and (tmp_path / "gpt" / "bytes.png").exists()
    assert run(words, launch) == 0 and len(started) == 2
    assert run([*words[:-1], "22"], launch) == 2 and len(started) == 2
    assert "dense-0/method.json: settings is" in capsys.readouterr().err
    assert run([*words[:-1], "22", "--again"], launch) == 0 and len(started) == 4


def test_the_curve_of_a_file_that_is_damaged_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text("{")
    with pytest.raises(UserError, match=r"steps\.jsonl: cannot be read"):
        curve_of(tmp_path / "steps.jsonl")


def test_the_loss_between_two_windows_lies_on_a_line() -> None:
    curve = [[20, 5.0, 1.0], [40, 3.0, 2.0]]
    assert [loss_after(curve, steps) for steps in (10, 20, 30, 40, 99)] == [None, 5.0, 4.0, 3.0, 3.0]


@pytest.fixture
def noted(tmp_path: Path) -> Callable[..., NotedRun]:
    def make(delay: int, last: float) -> NotedRun:
        made = record(2.0, 1.0, scheduler={"name": "outer", "delay": delay})
        return NotedRun(tmp_path, {"curve": [[40, 2.0, 40.0]], "last_bytes": last}, made)

    return make


def test_a_step_costs_what_the_mean_step_sends(noted: Callable[..., NotedRun], monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange of 30 bytes takes 6 s, a mean step sends 1. Delayed by a step of 2 s, a third of it is hidden."""
    monkeypatch.setattr("suite.studies.today.curve.exchange_seconds", lambda run, gbit: 6.0)
    monkeypatch.setattr("suite.studies.today.curve.computing_seconds", lambda run, passes: 2.0)
    plain = pace(noted(0, 30.0), 1.0, 0.0)
    assert plain is not None and plain == pytest.approx((2.0, 0.2, 0.0)) and plain.seconds == pytest.approx(2.2)
    assert pace(noted(1, 30.0), 1.0, 0.0) == pytest.approx((2.0, 0.2 * 2 / 3, 0.2 / 3))
    assert pace(noted(9, 30.0), 1.0, 0.0) == pytest.approx((2.0, 0.0, 0.2))


def test_nobody_on_the_front_is_beaten_in_both() -> None:
    points = {"a": (1.0, 5.0), "b": (2.0, 4.0), "c": (3.0, 4.5), "d": (2.0, 4.5), "e": (9.0, 1.0)}
    assert front(points) == ["a", "b", "e"]


def test_the_headlines_are_judged(tmp_path: Path) -> None:
    for seed, wobble in enumerate((-0.001, 0.0, 0.001)):
        put(tmp_path, "dense", seed, record(2.0 + wobble, 1000.0))
        put(tmp_path, "diloco", seed, record(2.1 + wobble, 33.0))
        put(tmp_path, "sparseloco", seed, record(2.05 + 2 * wobble, 10.0))
        put(tmp_path, "onebit_adam", seed, record(2.0 + wobble, 100.0))
        put(tmp_path, "zero_one_adam", seed, record(2.2 + 2 * wobble, 40.0))
    found = {each.claim.id: each for each in verdicts.findings("gpt", methods_of(tmp_path / "gpt"))}
    assert found["sparseloco_loss"].verdict.state == "reproduced"
    assert found["sparseloco_bytes"].here == "100.00x" and found["sparseloco_bytes"].verdict.state == "reproduced"
    assert found["zero_one_bytes"].verdict.state == "direction reproduced"
    assert found["zero_one_loss"].verdict.state == "not reproduced"
    assert "qgz_bytes" not in found and not verdicts.findings("resnet", methods_of(tmp_path / "gpt"))
    assert report(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "gpt" / "table.md").read_text()
    assert "`wirebench study today run --task gpt --methods quantised_sum bf16` | not run here: no runs of it" in text
    assert "| bytes | sparseloco, onebit_adam |" in text
    assert "| sparseloco | 3 | 2.0500 +- 0.0020 | 1.025x | worse" in text


def test_what_diverged_decides_nothing(tmp_path: Path) -> None:
    for seed in range(3):
        put(tmp_path, "onebit_adam", seed, record(2.0, 100.0))
        put(tmp_path, "zero_one_adam", seed, record(2.0, 40.0) | {"status": "diverged" if seed == 1 else "finished"})
    found = {each.claim.id: each.verdict for each in verdicts.findings("gpt", methods_of(tmp_path / "gpt"))}
    assert found["zero_one_loss"].words == "not decidable: zero_one_adam (1 of 3 diverged)"


def test_a_folder_without_runs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(["--out", str(tmp_path)]) == 2
    assert "has no TASK/METHOD-SEED/method.json; train first" in capsys.readouterr().err
