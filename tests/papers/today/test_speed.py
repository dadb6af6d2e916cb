"""The measured part of wirebench study today: what runs on emulated hosts, and what its table makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from papers.accuracy.modern import DENSE
from papers.runner import ROOT
from papers.today.emulated import measured
from papers.today.emulated.speed import HOSTS, MEASURED, SPARSELOCO, STREAMED, WAITING, trainings
from tests.flexreduce import run_record
from tests.papers import verb
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.telemetry.timeline import Timeline

pytestmark = pytest.mark.sampled(1)

run, report = verb.run("today"), verb.report("today")


def put(folder: Path, label: str, turn: int, step: float, waiting: float) -> Path:
    """A run with steps of so many seconds in the mean, of which it waits so many."""
    made: dict[str, Any] = run_record("2+2")
    setting = MEASURED[label].setting
    made["config"]["data"] = {"name": "synthetic", "batch_size": setting.batch}
    made["config"] |= {"model": {"name": "replay", "trace": "resnet18"}, "train": {"seed": 0}}
    made["config"]["network"] = {"dilation": setting.dilation}
    made["images_per_second"] |= {"mean": 4 * setting.batch / step}
    made["phases"]["exchange_exposed"] = waiting
    place = folder / "speed" / f"{label.replace(' ', '-')}-{turn}"
    place.mkdir(parents=True)
    (place / "record.json").write_text(json.dumps(made))
    note = {"label": label, "hosts": HOSTS, "link": setting.link, "launch": "python train.py"}
    (place / "note.json").write_text(json.dumps(note))
    return place


def test_counted_steps_are_whole_rounds_within_an_epoch() -> None:
    """A dense run takes three minutes at most: a step takes 4 x 69 ms, and 7/4 of 47 MB at the rate of its link."""
    for each in trainings(None, [0], ()):
        each.check()
        settings = resolve(loader.load(ROOT / each.config, list(each.overrides)))
        every = settings.scheduler.options.get("every", 1)
        assert settings.train.warmup_steps % every == settings.train.max_steps % every == 0, each.label
        assert settings.train.max_steps * settings.data.batch_size * HOSTS < settings.data.options["train_size"]
    dense = MEASURED[DENSE]
    assert (dense.warmup + dense.counted) * (0.28 + 7 / 4 * 46.8e6 * 8 / 25e6) < 180
    assert {label: MEASURED[label].counted // 30 for label in (SPARSELOCO, STREAMED)} == {SPARSELOCO: 2, STREAMED: 1}


def test_turns_follow_one_another_and_seeds_name_them(tmp_path: Path) -> None:
    started = []

    def launch(command: list[str]) -> int:
        hosts, link = command[command.index("--hosts") + 1], command[command.index("--link") + 1]
        started.append((hosts, link, [word for word in command if word.startswith("scheduler.delay")]))
        return 1

    turn = [("8", "25mbit", []), ("8", "25mbit", []), ("8", "200mbit", ["scheduler.delay=5"])]
    turn.append(("8", "200mbit", ["scheduler.delay=0"]))
    assert run(["--task", "speed", "--out", str(tmp_path)], launch) == 1 and started == turn * 5
    started.clear()
    assert run(["--task", "speed", "--out", str(tmp_path), "--turns", "0", "--methods", DENSE], launch) == 1
    assert started == turn[:1]
    with pytest.raises(UserError, match="--methods: no 'demo'; there is: dense, sparseloco, streaming_diloco"):
        trainings(["demo"], None, ())


def test_steps_per_second_and_waits_are_compared_by_turn(tmp_path: Path) -> None:
    for turn, slower in enumerate((1.0, 1.1, 1.2, 1.3, 1.4)):
        put(tmp_path, DENSE, turn, 27.0 * slower, 26.7 * slower)
        put(tmp_path, SPARSELOCO, turn, 0.45 * slower, 0.1)
        run = put(tmp_path, STREAMED, turn, 0.7, 0.002 * slower)
        put(tmp_path, WAITING, turn, 0.8, 0.1 * slower)
        if turn == 0:
            drawn = Timeline()
            drawn.draw("compute", "exchange_exposed", 0.9, 1.2)
            drawn.draw("requests", "Sum", 0.0, 1.0)
            drawn.draw("requests", "Sum", 1.5, 2.5)
            drawn.save(run / "trace.json")
    found = {each.claim.id: each for each in measured.findings(measured.load(tmp_path / "speed"))}
    speed, hidden = found["sparseloco_speed"], found["streaming_hides"]
    assert speed.here == "60.0x [60.0 to 60.0], at most 90.0x" and speed.verdict.state == "reproduced"
    assert hidden.here == "98.0 % [98.0 to 98.0]" and hidden.verdict.state == "reproduced"
    assert "load unknown" in hidden.rules and len(hidden.records) == 10
    assert report(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "speed" / "table.md").read_text()
    assert "Without any exchange a step would be 90.0 times as fast" in text
    assert "| dense | 5 | 25mbit | 4 | 9 | 32400.0 [27099.2 to 37700.8] |" in text
    assert "shows (ui.perfetto.dev), 1900.0 of the 2000.0 ms of its exchanges lie beside local steps." in text


def test_slower_than_the_goal_is_not_reproduced_and_a_missing_rival_says_nothing(tmp_path: Path) -> None:
    for turn in range(2):
        put(tmp_path, SPARSELOCO, turn, 0.45, 0.1)
    assert not measured.findings(measured.load(tmp_path / "speed"))
    for turn in range(2):
        put(tmp_path, DENSE, turn, 9.0, 8.7)
    [found] = measured.findings(measured.load(tmp_path / "speed"))
    assert found.verdict.words == "direction reproduced: 20.00x, not 50.00x" and "turns (2)" in found.rules
    note = json.loads((path := tmp_path / "speed" / "dense-0" / "note.json").read_text())
    path.write_text(json.dumps({**note, "link": "1gbit"}))
    with pytest.raises(UserError, match="mixes settings: link is"):
        measured.load(tmp_path / "speed")
