"""Local steps on emulated hosts: what the table makes of their runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from papers import judged
from papers.speed import waiting
from papers.speed.parts import DENSE, SPARSELOCO, STREAMED, WAITING
from tests.flexreduce import run_record
from tests.papers import verb
from tests.papers.records import write
from wirebench.errors import UserError
from wirebench.telemetry.timeline import Timeline

pytestmark = pytest.mark.sampled(1)

report = verb.report("speed")


def put(folder: Path, label: str, turn: int, step: float, waiting: float) -> Path:
    """A run with steps of so many seconds in the mean, of which it waits so many."""
    made: dict[str, Any] = run_record("2+2")
    link, dilation, batch = ("25mbit", 4, 32) if label in (DENSE, SPARSELOCO) else ("200mbit", 5, 64)
    made["config"]["data"] = {"name": "synthetic", "batch_size": batch}
    made["config"] |= {"model": {"name": "replay", "trace": "resnet18"}, "train": {"seed": 0}}
    made["config"]["network"] = {"dilation": dilation}
    made["images_per_second"] |= {"mean": 4 * batch / step}
    made["phases"]["exchange_exposed"] = waiting
    return write(folder / "speed" / f"{label.replace(' ', '-')}-{turn}", made, label=label, hosts=8, link=link)


def test_steps_per_second_and_waits_are_compared_by_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged, "placed", lambda claim, verdict, records: verdict)  # records of ten parameters
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
    found = {each.claim.id: each for each in waiting.findings(waiting.load(tmp_path / "speed"))}
    speed, hidden = found["sparseloco_speed"], found["streaming_hides"]
    assert speed.here == "60.0x [60.0 to 60.0], at most 90.0x" and speed.verdict.state == "reproduced"
    assert hidden.here == "98.0 % [98.0 to 98.0]" and hidden.verdict.state == "reproduced"
    assert "load unknown" in hidden.rules and len(hidden.records) == 10
    assert report([str(tmp_path / "speed")]) == 0
    text = (tmp_path / "speed" / "table.md").read_text()
    assert "Without any exchange a step would be 90.0 times as fast" in text
    assert "| dense | 5 | 25mbit | 4 | 9 | 32400.0 [27099.2 to 37700.8] |" in text
    assert "shows (ui.perfetto.dev), 1900.0 of the 2000.0 ms of its exchanges lie beside local steps." in text


def test_slower_than_the_goal_is_not_reproduced_and_a_missing_rival_says_nothing(tmp_path: Path) -> None:
    for turn in range(2):
        put(tmp_path, SPARSELOCO, turn, 0.45, 0.1)
    assert not waiting.findings(waiting.load(tmp_path / "speed"))
    for turn in range(2):
        put(tmp_path, DENSE, turn, 9.0, 8.7)
    [found] = waiting.findings(waiting.load(tmp_path / "speed"))
    assert found.verdict.words == "direction reproduced: 20.00x, not 50.00x" and "turns (2)" in found.rules
    note = json.loads((path := tmp_path / "speed" / "dense-0" / "note.json").read_text())
    path.write_text(json.dumps({**note, "link": "1gbit"}))
    with pytest.raises(UserError, match="mixes settings: link is"):
        waiting.load(tmp_path / "speed")
