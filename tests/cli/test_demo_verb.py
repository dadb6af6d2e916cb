"""wirebench demo: the table of trainings and speed-ups, the figure, and the whole of it on one machine."""

from pathlib import Path

import pytest

from tests.cli.verbs import verb
from wirebench.cli.planning import demo
from wirebench.cli.planning.demo import DENSE, GBIT, METHODS
from wirebench.planner.candidate import Speedup
from wirebench.record import schema


def _records() -> dict:
    sent = {"dense": 130e3, "bf16": 65e3, "quantised_sum": 13e3, "topk": 26e3}
    return {
        name: [{"bytes_per_step": {"wire": sent[name]}, "final": {"top1": top1}} for top1 in (0.9, 0.94, 0.95)]
        for name in METHODS
    }


def test_the_table_has_speed_ups_accuracy_and_bytes_of_every_method():
    gains = {name: [Speedup(2.0, 1.5, 2.5)] * len(GBIT) for name in METHODS}
    made = demo.table(_records(), gains)
    columns = {str(column.header): list(column.cells) for column in made.columns}
    assert columns["method"] == list(METHODS)
    assert columns["0.1 Gbit/s"] == ["1", *["2.00x [1.50 to 2.50]"] * 3]
    assert set(columns["top-1, %"]) == {"93.0 [90.0 to 95.0]"}
    assert columns["fewer bytes"] == ["1.0x", "2.0x", "10.0x", "5.0x"]


def test_simulated_speed_ups_fall_with_the_rate_of_the_links(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo, "PROBE_SECONDS", 0.05)
    found = demo._simulated()
    assert found[DENSE] == [Speedup(1.0, 1.0, 1.0)] * len(GBIT)
    for name in list(METHODS)[1:]:
        slow, _, fast = found[name]
        assert slow.expected > fast.expected
        assert all(each.low <= each.expected <= each.high for each in found[name])


@pytest.mark.slow
def test_it_trains_compares_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(demo, "SEEDS", 1)
    assert verb("demo")(["--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == list(METHODS)
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    kept = {path.parent.name: schema.read(path.parent) for path in tmp_path.glob("*/record.json")}
    assert kept.keys() == {f"{name}-0" for name in METHODS}
    # Few bits lose nothing on this task, and what is sent is what the method says.
    assert kept["bf16-0"]["final"]["top1"] > 0.9
    assert 2 * kept["bf16-0"]["bytes_per_step"]["wire"] == kept["dense-0"]["bytes_per_step"]["wire"]
