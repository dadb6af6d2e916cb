"""Ranges of predictions: from how far others were off, in the ranking, and in the sentence."""

import json
import re

import pytest

from tests.cli.test_advise import answer
from tests.cli.verbs import verb
from wirebench.errors import UserError
from wirebench.planner import known as trained
from wirebench.planner import ranges
from wirebench.planner.accuracy import Accuracies, Ended
from wirebench.planner.answer import NOTHING

WHERE = ["--trace", "resnet50_v100", "--network", "1gbe", "--workers", "4"]


def errors(monkeypatch, low: float, high: float) -> None:
    """Have the planner take exchanges for so many times as long as predicted."""
    monkeypatch.setattr(ranges, "load", lambda path=None, network=0.0: ranges.Errors(low, high, 9, network))


def test_nine_out_of_ten_lie_in_the_range_and_the_prediction_too(tmp_path):
    found = ranges.of([1.5 + 0.01 * place for place in range(101)])
    assert (found.low, found.runs) == (1.0, 101) and found.high == pytest.approx(2.45)
    one = ranges.of([0.5])
    assert (one.low, one.high) == (0.5, 1.0)
    path = tmp_path / "outside.json"
    runs: list[dict[str, object]] = [{"factor": 0.5, "fitted": False}, {"factor": 9.0, "fitted": True}]
    path.write_text(ranges.written(runs, {"processor": {"cores": 2}, "other_seconds": {"2": 0.1, "8": 0.4}}))
    assert ranges.load(path) == ranges.Errors(0.5, 1.0, 1), "runs that the constants were fitted to say nothing"
    shown = {"fitted": False, "simulated_seconds": 1.0, "exposed_seconds": 0.05}
    runs += [{**shown, "factor": factor} for factor in (0.7, 1.0, 1.1)]
    runs += [{**shown, "exposed_seconds": 0.04, "factor": factor} for factor in (1.0,) * 40 + (2.0,) * 10]
    path.write_text(ranges.written(runs, {"processor": {"cores": 2}, "other_seconds": {"2": 0.1, "8": 0.4}}))
    found = ranges.load(path)
    assert 0.5 < found.low < 0.55, "steps that hide their exchange make the short end no nearer"
    assert (found.high, found.runs) == (2.0, 54), "but the long end further"
    made = ranges.machine(path)
    assert made.processor.cores == 2 and [made.other_seconds(hosts) for hosts in (2, 4, 6)] == [0.1, 0.1, 0.4]
    shortest, longest = ranges.Errors(0.5, 2.0, 9, network=0.1).factors((0.9, 1.2))
    assert shortest[:2] == pytest.approx((0.5 / 1.1, 0.45)) and longest[:2] == pytest.approx((2.2, 2.4))


@pytest.mark.parametrize(
    "text", ["", "{", '{"runs": []}', '{"runs": [{"factor": -1, "fitted": false}]}', '{"runs": 3}']
)
def test_damaged_errors_are_one_line(text, tmp_path):
    path = tmp_path / "outside.json"
    path.write_text(text)
    for read in (ranges.load, ranges.machine):
        with pytest.raises(UserError, match=r"outside\.json: ") as caught:
            read(path)
        assert "\n" not in str(caught.value) and ranges.WRITER in str(caught.value)


@pytest.mark.slow
def test_every_number_has_a_range_around_it(tmp_path, monkeypatch, capsys):
    errors(monkeypatch, 0.8, 1.5)
    found = answer(tmp_path, *WHERE, "--compressors", "topk", "fp16")
    printed = capsys.readouterr().out
    assert re.search(r"as DDP has it .*, \d+ \[\d+ - \d+\] images/s", printed)
    assert len(re.findall(r"\d\.\d+x \[[\d.]+-[\d.]+\]", printed)) == len(found["rows"])
    assert found["exchange_factors"] == {"low": 0.8, "high": 1.5, "runs": 9}
    for row in found["rows"]:
        for key in (
            "step_seconds", "images_per_second", "images_per_second_serial", "efficiency", "exposed_seconds", "speedup",
            "compress_seconds", "communicate_seconds",
        ):  # fmt: skip
            low, high = row[f"{key}_range"]
            assert low <= row[key] <= high, key
        seconds = row["communicate_seconds"]
        assert row["communicate_seconds_range"] == pytest.approx([0.8 * seconds, 1.5 * seconds])
        if row["break_even_gbit"] is not None:
            low, high = row["break_even_gbit_range"]
            assert low <= row["break_even_gbit"] <= high


@pytest.mark.slow
def test_what_overlaps_is_too_close_to_call(tmp_path, monkeypatch, capsys):
    where = [*WHERE, "--compressors", "dgc"]
    errors(monkeypatch, 1.0, 1.0)
    sure = answer(tmp_path, *where)["answer"]["nearly_free"]
    assert sure["compressor"] == "dgc" and not sure["too_close_to_call"] and sure["speedup_range"][0] > 1
    assert "too close" not in capsys.readouterr().out
    errors(monkeypatch, 0.05, 20.0)
    unsure = answer(tmp_path, *where)["answer"]["nearly_free"]
    low, high = unsure["speedup_range"]
    assert unsure["too_close_to_call"] and low < 1 < unsure["speedup"] < high
    assert re.search(r"^nearly free .*\[\d+\.\d\d - \d+\.\d\d\], too close to call; ", capsys.readouterr().out, re.M)


def test_nothing_untrained_stands_above_what_was_trained(tmp_path, monkeypatch):
    errors(monkeypatch, 0.999, 1.001)
    known = {"none": Ended(0.0, None), "fp16": Ended(-0.1, None), "topk": Ended(None, 0.01)}
    monkeypatch.setattr(trained, "load", lambda images, numel: Accuracies("a task", known))
    found = answer(tmp_path, *WHERE, "--compressors", "topk", "dgc", "fp16")
    order = [row["compressor"] for row in found["rows"]]
    assert set(order[:2]) == {"none", "fp16"} and set(order[2:]) == {"topk", "dgc"}
    rows = {row["compressor"]: row for row in found["rows"]}
    assert rows["dgc"]["step_seconds"] < rows["none"]["step_seconds"], "it would be the faster one"
    assert [rows[name]["standing"] for name in ("none", "fp16", "topk", "dgc")] == ["within"] * 2 + ["unknown"] * 2
    assert rows["dgc"]["not_recommended"].startswith("was never trained")
    assert rows["topk"]["not_recommended"] == "diverged in training"
    assert found["answer"]["free"]["compressor"] == "fp16"
    assert found["answer"]["nearly_free"] == found["answer"]["fastest_at_a_cost"] == {"nothing": NOTHING}


def test_simulated_schedules_have_ranges_too(tmp_path, monkeypatch, capsys):
    errors(monkeypatch, 0.5, 2.0)
    path = tmp_path / "s.json"
    line = ["--trace", "googlenet_k80", "--workers", "4", "--gbit", "1", "--schedulers", "wfbp", "--json", str(path)]
    assert verb("simulate")(line) == 0
    (row,) = json.loads(path.read_text())["rows"]
    low, high = row["step_seconds_range"]
    assert low < row["step_seconds"] < high and f"{1e3 * low:.4g}-{1e3 * high:.4g}" in capsys.readouterr().out
