"""wirebench study prediction report on records whose answers are known, and on runs simulated from outside."""

import argparse
import csv
import json
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from papers.prediction import another_time, outside, report, signed
from papers.prediction.measured import collect
from papers.prediction.repeats import repeats_to
from papers.prediction.report import figure
from tests import charts
from tests.cli import verbs
from tests.papers import verb
from tests.papers.test_methods_run import put, record
from wirebench.errors import UserError
from wirebench.planner import ranges
from wirebench.planner.resimulated import Resimulated, fit, rates_of, replayed
from wirebench.record import notes, recorded
from wirebench.simulation.compress_rates import SHIPPED, Rates
from wirebench.topology.processor import Processor

pytestmark = pytest.mark.sampled(5)

main, REPORT = verb.report("prediction"), "wirebench study prediction report"
fit_verb = verbs.verb("fit")
CELLS = Path(__file__).resolve().parents[2] / "results" / "break_even" / "2x1gbit.jsonl"

KINDS = ("measured", "predicted")
PAGE = (Path(__file__).resolve().parents[2] / "results" / "prediction" / "README.md").read_text(encoding="utf-8")
MACHINE = Processor(2.0, call_seconds=2e-3, message_seconds=4e-4, seconds_per_byte=2e-9)


def made(seconds: float, predicted: float, scheduler: str = "wfbp", workers: int = 4) -> dict[str, Any]:
    """The record of a replayed run, with a prediction."""
    found = record("none", seconds)
    found["config"] |= {
        "model": {"name": "replay", "trace": "resnet20_gtx1080ti"}, "scheduler": {"name": scheduler, "profile": ""},
        "compressor": {"name": "none", "dense_below": 0, "warmup": []}, "collective": {"name": "ring"},
        "network": {"dilation": 4.0},
    }  # fmt: skip
    found["world_size"] = workers
    found["prediction"] = {
        "step_seconds": predicted, "measured_seconds": seconds, "error": predicted / seconds - 1,
        "exposed_seconds": 0.1, "messages": 9,
    }  # fmt: skip
    return found


def table(text: str) -> dict[str, list[str]]:
    lines = text.partition("| run |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {name: cells for name, *cells in rows}


def test_predictions_stand_beside_what_was_measured(tmp_path: Path) -> None:
    put(tmp_path, "a", 0, made(0.2, 0.21))
    put(tmp_path, "b", 0, made(0.2, 0.25, "naive"))
    put(tmp_path, "c", 0, {**made(0.2, 0.3), "prediction": None})
    assert main([str(tmp_path)]) == 0
    text = (tmp_path / "table.md").read_text()
    assert "1 of 2 predictions, each by the run's own steps, are within 10 %;" in text
    assert "the median error is 15.0 %, the largest 25.0 %." in text
    assert "of the 1 others 1 are within 10 %" in text, "under naive no message overlaps"
    rows = table(text)
    assert rows.keys() == {"a-0", "b-0"}
    assert rows["a-0"][1:6] == ["wfbp", "none", "ring", "9", "200.00"] and rows["a-0"][7:] == ["210.00", "+5.0 %"]
    assert "None of these steps repeats itself to 3 %." in text, "they lie from 0.9 to 1.2 of the median"
    drawn = figure(collect(tmp_path))
    charts.check(drawn)
    points = [(row["name"], row["x"], row["y"], row["words"]) for row in charts.of(drawn, "point")]
    assert points == [("a-0", 200.0, 210.0, "+5.0 %"), ("b-0", 200.0, 250.0, "+25.0 %")]
    spreads = [(row["low"], row["high"], row["y"]) for row in charts.of(drawn, "rule")]
    assert spreads == [(pytest.approx(180), pytest.approx(240), y) for y in (210.0, 250.0)], "10 % to 90 % of the steps"
    assert charts.axes(drawn, "x") | charts.axes(drawn, "y") == {f"{kind} time per step, ms" for kind in KINDS}
    assert "2 runs" in charts.note(drawn) and "10 % to 90 % of the measured steps" in charts.note(drawn)
    assert {row["words"] for row in charts.of(drawn, "text")} == {"within 10 %"}
    assert (tmp_path / "errors.svg").read_bytes().startswith(b"<svg")


def test_another_time_is_that_of_the_same_settings_on_the_same_kind_of_machine(tmp_path: Path) -> None:
    first, again = tmp_path / "list", tmp_path / "list-again"

    def compared() -> str:
        assert main([str(first)]) == 0
        found = re.search(r"\d+ of these runs were made another time.*", (first / "table.md").read_text())
        return "" if found is None else found[0]

    def change(name: str, old: str, new: str) -> None:
        path = again / name / "record.json"
        path.write_text(path.read_text().replace(old, new))

    for name in ("a", "b"):
        put(first, name, 0, made(0.2, 0.2))
    assert compared() == ""
    for name in ("a", "b"):
        put(again, name, 0, made(0.2, 0.2))
    assert compared().startswith("2 of these runs")
    change("b-0", "resnet20_gtx1080ti", "vgg16_cifar_gtx1080ti")
    assert compared().startswith("1 of these runs") and "tau" not in compared(), "one has no order"
    for name in ("a-0", "b-0"):
        change(name, "AMD EPYC", "another")
    assert compared() == ""
    assert [another_time.is_repeat(Path(name)) for name in ("x-again", "x", "-again")] == [True, False, False]


def test_a_repeated_list_has_no_part_in_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("prediction", "prediction-1", "prediction-1-again"):
        put(tmp_path / folder, "a", 0, made(0.2, 0.2))
    nothing = signed.Signed("c" * 40, "2026-11-26", "x", {})
    for folder in ("prediction-1", "prediction-1-again"):
        signed.save(tmp_path / folder, nothing)
    monkeypatch.setattr(report, "FOLDER", tmp_path / "prediction")
    assert report.committed() == [["--simulate"], [str(tmp_path / "prediction-1-again")]]
    parsed = argparse.Namespace(folders=[], simulate=False)
    assert [page.folder.name for page in report.pages(parsed)] == ["prediction", "prediction-1"]


def test_printing_names_a_single_run_and_no_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "mine", 0, made(0.2, 0.21))
    assert main([str(tmp_path / "mine-0"), "--print"]) == 0
    printed = capsys.readouterr().out
    assert list(table(printed + "\n")) == ["mine-0"] and "errors.svg" not in printed
    assert not list(tmp_path.rglob("table.md"))


def simulated_runs(folder: Path) -> None:
    """Nine runs that took what the simulator says of a machine with these numbers."""
    for number, (scheduler, workers) in enumerate(
        (name, count) for name in ("wfbp", "fused", "naive") for count in (2, 3, 4)
    ):
        draft = notes.NotedRun(folder, {"link": "1gbit"}, made(1.0, 1.0, scheduler, workers))
        seconds = Resimulated(draft, Rates()).seconds(MACHINE)
        put(folder, f"{scheduler}{workers}", number, made(seconds, seconds, scheduler, workers))


@pytest.mark.slow
def test_the_machines_constants_are_found_and_carry_to_other_runs(tmp_path: Path) -> None:
    simulated_runs(tmp_path)
    runs = [Resimulated(run, Rates()) for run in recorded.noted(tmp_path, {"hosts": int, "link": str})]
    found = fit(runs[::2])
    assert found.cores == MACHINE.cores, "those of the records"
    assert max(abs(run.error(found)) for run in runs) < 0.05
    assert max(abs(run.error(Processor(2.0))) for run in runs) > 0.3
    slow = next(run for run in runs if run.error(Processor(2.0)) < -0.2)
    assert slow.exchange(MACHINE).factor == pytest.approx(1.0, rel=0.01)
    assert (slow.exchange(Processor(2.0)).factor or 9.0) > 1.3
    assert main([str(tmp_path), "--simulate"]) == 0
    text = (tmp_path / "table.md").read_text()
    assert "Of the 4 others here 4 are within 10 %" in text and "the largest of all here is" in text
    cells = list(table(text).values())
    assert [row[-1] for row in cells] == ["yes", ""] * 4 + ["yes"]
    assert all(abs(float(row[-2].removesuffix(" %"))) < 5 for row in cells)
    errors = ranges.load(tmp_path / "outside.json")
    assert 0.3 < errors.low <= 1 <= errors.high < 3 and 1 <= errors.runs <= 4, "of the runs that were held out"
    assert_that_another_simulator_can_be_compared(tmp_path)


@pytest.mark.slow
def test_constants_are_fitted_once_to_the_same_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for them ends elsewhere on a processor that rounds otherwise, and tables are compared to the bit."""
    simulated_runs(tmp_path)
    fits: list[int] = []

    def counted(runs: list[Resimulated]) -> Processor:
        fits.append(len(runs))
        return MACHINE

    monkeypatch.setattr(outside, "fit", counted)
    texts = []
    for _ in range(2):
        assert main([str(tmp_path), "--simulate"]) == 0
        texts.append(((tmp_path / "table.md").read_bytes(), (tmp_path / "outside.json").read_bytes()))
    assert fits == [5] and texts[0] == texts[1]
    assert main([str(tmp_path)]) == 2 and (tmp_path / "table.md").read_bytes() == texts[0][0], "nothing is lost"
    assert main([str(tmp_path), "--print"]) == 0
    shutil.rmtree(tmp_path / "naive4-8")
    assert main([str(tmp_path), "--simulate"]) == 0 and fits == [5, 4]
    (tmp_path / "outside.json").write_text('{"runs": [7]}')
    assert main([str(tmp_path), "--simulate"]) == 0 and fits == [5, 4, 4]


@pytest.mark.slow
def test_the_committed_constants_are_as_good_as_those_of_a_fit_made_here() -> None:
    folders, rates = (
        (ranges.SHIPPED.parent, ranges.SHIPPED.parent.with_name("prediction-100")),
        rates_of(ranges.SHIPPED.parent),
    )
    known = {
        name if folder == folders[0] else f"{folder.name}/{name}": run
        for folder in folders
        for name, run in replayed(folder, "", rates).items()
    }
    fitted = {each["run"] for each in ranges.table()["runs"] if each["fitted"]}
    runs = [run for name, run in known.items() if name in fitted]
    committed, here = (
        statistics.fmean(abs(run.error(machine)) for run in runs) for machine in (ranges.machine().processor, fit(runs))
    )
    assert len(runs) == len(fitted) == 70 and committed < 1.1 * here


def assert_that_another_simulator_can_be_compared(folder: Path) -> None:
    """By the lines of the page that explains the files: here the other one is off by a tenth everywhere."""
    (page := folder / "page").mkdir()
    (page / "results").mkdir()
    (page / "results" / "prediction").symlink_to(folder)
    with (folder / "cells.csv").open() as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    assert [row["held_out"] for row in rows.values()] == ["no", "yes"] * 4 + ["no"]
    theirs = {name: 1.1e-3 * float(row["measured_median_ms"]) for name, row in rows.items()}
    (page / "theirs.json").write_text(json.dumps(theirs))
    lines = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    said = subprocess.run([sys.executable, "-c", *lines], cwd=page, capture_output=True, text=True, check=True).stdout
    assert "theirs: mean 10.0%, worst +10.0% (" in said and said.startswith("ours: mean ")


def test_a_step_that_hides_its_exchange_can_only_show_that_it_took_longer(tmp_path: Path) -> None:
    draft = made(1.0, 1.0)
    draft["config"]["network"]["dilation"] = 400.0
    draft["config"]["data"]["batch_size"] = 1024  # the trace's
    hidden = Resimulated(notes.NotedRun(tmp_path, {"link": "1gbit"}, draft), Rates())
    simulated = hidden.seconds(MACHINE)
    hidden.measured = 0.97 * simulated
    exposed, factor = hidden.exchange(MACHINE)
    assert 0 < exposed < ranges.LEAST_EXPOSED * simulated and factor is None
    hidden.measured = simulated + 2 * exposed
    assert (hidden.exchange(MACHINE).factor or 0) > 2


def test_a_cell_has_what_another_simulator_needs_and_the_page_explains_it(tmp_path: Path) -> None:
    put(tmp_path, "a", 0, made(0.2, 0.21))
    put(tmp_path / "deeper", "b", 0, made(0.2, 0.21))
    assert main([str(tmp_path)]) == 0
    assert [path.parent.name for path in tmp_path.rglob("cell.json")] == ["a-0"], "those of the folder itself"
    cell = json.loads((tmp_path / "a-0" / "cell.json").read_text())
    assert cell["composition"]["collective"] == {"name": "ring"}
    assert cell["model"]["trace"] == "configs/traces/resnet20_gtx1080ti.json" and cell["model"]["dilation"] == 4.0
    assert cell["cluster"] == {"hosts": 4, "ranks": 4, "link_bits_per_second": 1e9, "burst_bytes": 70312}
    assert cell["measured"]["step_seconds_median"] == 0.2 and cell["predicted"] == {
        "own_steps": {"seconds": 0.21, "error": pytest.approx(0.05)}
    }
    sections = (section for section in cell.values() if isinstance(section, dict))
    fields = {*cell, *(key for section in sections for key in section)} | {"outside", "before", "held_out", "low"}
    header = (tmp_path / "cells.csv").read_text().partition("\n")[0].split(",")
    assert not [name for name in {*fields, *header} if f"`{name}`" not in PAGE]


def test_how_well_a_step_repeats_itself_is_told_by_its_steps() -> None:
    """Of a hundred draws of two runs of 14 steps about five pairs of medians differ by more than that."""
    run = {"step_seconds": {"median": 1.0, "p10": 1 - 1.2816 * 0.02, "p90": 1 + 1.2816 * 0.02}}
    told = repeats_to({**run, "images_per_second": {"steps": 14}})
    rng = np.random.default_rng(0)
    medians = np.median(rng.normal(1, 0.02, (2, 10_000, 14)), axis=2)
    assert told is not None and np.mean(np.abs(medians[0] - medians[1]) > told) == pytest.approx(0.05, abs=0.015)
    assert repeats_to({**run, "images_per_second": {"steps": 4}}) is None
    unknown = {"median": 1.0, "p10": None, "p90": 1.1}
    assert repeats_to({"step_seconds": unknown, "images_per_second": {"steps": 14}}) is None


def test_how_long_compressors_work_is_what_was_measured_beside_the_runs(tmp_path: Path) -> None:
    """There fp16 takes three times as long as on our machine, whose rates hold where none were measured."""
    ours = rates_of(tmp_path)
    header, *lines = map(json.loads, SHIPPED.read_text().splitlines())
    cells = [line for line in lines if line["method"] == "fp16"]
    slower = [{**c, "seconds": {part: [3 * s for s in of] for part, of in c["seconds"].items()}} for c in cells]
    (tmp_path / "rates.jsonl").write_text("\n".join(map(json.dumps, [header, *slower])) + "\n")
    theirs = rates_of(tmp_path)
    seconds = [rates.on("fp16", 1e10)(10_000_000) for rates in (ours, theirs)]
    assert seconds[1] == pytest.approx(3 * seconds[0])
    run = made(1.0, 1.0)
    run["config"]["compressor"]["name"] = "topk"
    with pytest.raises(UserError, match="how long 'topk' compresses was not measured"):
        Resimulated(notes.NotedRun(tmp_path, {"link": "1gbit"}, run), theirs)


def test_too_few_runs_to_simulate_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "a", 0, made(0.2, 0.21))
    assert main([str(tmp_path), "--simulate"]) == 2
    error = capsys.readouterr().err
    assert error == f"{REPORT}: --simulate: {tmp_path}: needs 4 replayed runs of emulated clusters, has 1\n"
    assert fit_verb([str(CELLS), "--runs", str(tmp_path)]) == 2
    assert f"--runs: {tmp_path}: needs 4 replayed runs of emulated clusters, has 1" in capsys.readouterr().err


def test_a_folder_without_predictions_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"{REPORT}: {tmp_path}: has no run with a prediction")
