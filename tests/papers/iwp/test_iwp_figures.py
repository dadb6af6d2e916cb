"""The IWP paper's figures: what they show is what the records and their steps.jsonl have."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from papers.accuracy.rows import MethodRuns
from papers.iwp import steps
from papers.iwp.papers_figures import of_imagenet, of_trainings
from papers.rows import Row
from tests import charts
from tests.flexreduce import run_record
from tests.papers import verb
from wirebench.compressors.sparse.importance import LOWS
from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.notes import NotedRun

NAMES = ("fig2_3", "fig4", "fig5", "fig6", "fig7_8")
LAYERS = ("conv1.weight", "bn1.weight")


def run(folder: Path, compressor: str, top1: Sequence[float | None], lines: Sequence[dict[str, Any]] = ()) -> NotedRun:
    """A training with such accuracies after its epochs, each with half the training loss of the one before."""
    made = run_record("2+2")
    made["config"] |= {
        "model": {"name": "resnet50"}, "data": {"name": "imagefolder", "batch_size": 32},
        "compressor": {"name": compressor, "mode": "layerwise", "voters": 2},
    }  # fmt: skip
    made["history"] = [
        {"epoch": epoch, "top1": each, "loss": 4 / 2**epoch, "seconds": 1.0, "seconds_total": epoch + 1.0}
        for epoch, each in enumerate(top1)
    ]
    made["final"]["top1"] = top1[-1]
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(made))
    if lines:
        (folder / steps.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = recorded.at(folder)
    assert found is not None
    return found


def step(number: int, epoch: int, seconds: float, sent: int, **readings: float) -> dict[str, Any]:
    return {"step": number, "epoch": epoch, "seconds": seconds, "wire_bytes": sent, **readings}


def reading(peak: int, ratio: float) -> dict[str, float]:
    """Nine tenths of both layers' coordinates in one bin, the rest in the next; and a mean and a variance."""
    shares = [0.9 if place == peak else 0.1 if place == peak + 1 else 0.0 for place in range(len(LOWS))]
    named = {
        f"{steps.SHARE}{layer}/{low:.3g}": share for layer in LAYERS for low, share in zip(LOWS, shares, strict=True)
    }
    return {**named, steps.MEAN: 2.0, steps.VARIANCE: 2.0 * ratio}


def points(line: tuple[list[Any], list[float]]) -> dict[Any, float]:
    """y by x."""
    return dict(zip(*line, strict=True))


def test_imagenets_figures_have_the_numbers_of_records_and_steps(tmp_path: Path) -> None:
    told = [
        step(0, 0, 60.0, 600_000_000, **reading(10, 3.0)), step(1, 0, 60.0, 60_000_000, **reading(10, 5.0)),
        step(2, 1, 60.0, 60_000_000, **reading(14, 9.0)), step(3, 2, 60.0, 60_000_000),
    ]  # fmt: skip
    ours = [run(tmp_path / f"iwp{seed}", "iwp", (0.3, 0.5 + seed / 10), told) for seed in (0, 1)]
    dense = run(tmp_path / "dense", "none", (0.4, None, 0.7), [step(n, n, 30.0, 3_000_000_000) for n in range(3)])
    drawn = of_imagenet({("resnet50", "layer-wise"): ours, ("resnet50", "baseline"): [dense]}, "")
    assert list(drawn.captions) == [f"{name}.svg" for name in NAMES] and not drawn.missing
    figures = {name: figure for name in NAMES if (figure := drawn.figures[f"{name}.svg"]) is not None}
    for figure in figures.values():
        charts.check(figure)
    lines = {name: charts.lines(figure) for name, figure in figures.items()}
    assert charts.titles(figures["fig2_3"]) == list(LAYERS)
    first = [row for row in charts.of(figures["fig2_3"], "line") if row["name"] == "epoch 1" and row["y"]]
    assert [(row["x"], row["y"]) for row in first] == [(LOWS[10], 90), (LOWS[11], pytest.approx(10))] * 2
    assert set(lines["fig2_3"]) == {"epoch 1", "epoch 2"}, "an epoch without a reading has no distribution"
    assert points(lines["fig4"]["layer-wise"]) == {1: 4.0, 2: 9.0}
    assert lines["fig4"]["the paper's drastic change: epoch 20"][0] == [20, 20]
    assert points(lines["fig5"]["layer-wise"]) == pytest.approx({1: 30, 2: 55})
    assert points(lines["fig5"]["baseline"]) == pytest.approx({1: 40, 3: 70})
    assert lines["fig5"]["the paper's layer-wise, 76.31 %"][1] == pytest.approx([76.31, 76.31])
    assert points(lines["fig6"]["layer-wise"]) == {1: 4, 2: 2}
    # KB/s, in the middle of each minute or half of one; a gigabit is 125 MB.
    assert points(lines["fig7_8"]["layer-wise"]) == pytest.approx({0.5: 10_000, 1.5: 1000, 2.5: 1000, 3.5: 1000})
    assert points(lines["fig7_8"]["baseline"]) == pytest.approx({0.25: 100_000, 0.75: 100_000, 1.25: 100_000})
    assert lines["fig7_8"]["the paper's link, 1 Gbit/s"][1] == [125_000, 125_000]


def test_many_steps_are_drawn_in_windows(tmp_path: Path) -> None:
    long = run(tmp_path / "long", "none", (0.1,), [step(n, 0, 1.0, 1000 * (n // 2)) for n in range(200)])
    found = steps.rates(long)
    assert len(found) == steps.WINDOWS
    assert [rate.bytes_a_second for rate in found] == pytest.approx([1000.0 * n for n in range(100)])
    assert found[-1].minutes == pytest.approx(199 / 60)


def test_what_runs_have_no_data_for_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "runs/dense", "none", (0.4, 0.7))
    put = tmp_path / "own/cifar/dense-0"
    put.mkdir(parents=True)
    (put / "record.json").write_text(json.dumps(run_record("2+2")))
    (put / "note.json").write_text(json.dumps({"label": "cifar, dense", "launch": "python train.py"}))
    folders = {"--runs": "own", "--cluster": "runs", "--trainings": "none"}
    words = [word for flag, name in folders.items() for word in (flag, str(tmp_path / name))]
    assert verb.report("iwp")(words) == 0
    text = (tmp_path / "own/table.md").read_text()
    shown = [line for line in text.splitlines() if line.startswith("![")]
    assert shown == [
        "![IWP's accuracy by epochs](imagenet_fig5.svg)", "![IWP's training loss by epochs](imagenet_fig6.svg)",
    ]  # fmt: skip
    missing = [line for line in text.splitlines() if line.startswith("- Not drawn: ")]
    assert sum("`wirebench study iwp report --cluster FOLDER` draws it" in line for line in missing) == 3
    assert "- Not drawn: Fig. 7 and 8, network I/O over time: no run kept its steps.jsonl." in missing
    assert any("no steps.jsonl has compressor/importance_share" in line for line in missing)
    assert any(f"has compressor/importance_var/{steps.LAYER}" in line for line in missing)
    assert {path.name for path in (tmp_path / "own").glob("*.svg")} == {"imagenet_fig5.svg", "imagenet_fig6.svg"}


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    damaged = run(tmp_path / "damaged", "none", (0.1,), [{"wire_bytes": 1, "seconds": "long", "epoch": 0}])
    with pytest.raises(UserError, match=r"steps\.jsonl: is not what a run writes"):
        steps.rates(damaged)


def test_other_trainings_stand_in_for_imagenet(tmp_path: Path) -> None:
    """Methods that are not IWP's are left out, and tasks without IWP; the interface of emulated hosts has its rate."""
    labels = ("dense", "iwp", "iwp masking=true", "topk")
    methods = [
        MethodRuns(label, (run(tmp_path / label, "iwp", (0.1 * (place + 1), 0.9)),))
        for place, label in enumerate(labels)
    ]
    slow = run(tmp_path / "slow", "none", (0.1,), [step(0, 0, 6.0, 6_000_000)])
    row = Row("network, dense", (slow._replace(note={"link": "10mbit"}),))
    drawn = of_trainings({"quick": methods, "other": [methods[0], methods[3]]}, [row])
    assert list(drawn.captions) == ["fig5.svg", "fig6.svg", "fig7_8.svg"]
    accuracy, io = drawn.figures["fig5.svg"], drawn.figures["fig7_8.svg"]
    assert accuracy is not None and io is not None
    assert charts.titles(accuracy) == ["quick"]
    lines = charts.lines(accuracy)
    assert set(lines) == {"dense", "iwp", "iwp masking=true"}
    assert points(lines["iwp"]) == pytest.approx({1: 20, 2: 90})
    assert "baseline 76.09 %, fixed 76.26 %, layer-wise 76.31 %" in charts.note(accuracy)
    assert points(charts.lines(io)["dense"]) == pytest.approx({0.05: 1000})
    assert charts.lines(io)["the link, 0.01 Gbit/s"][1] == [1250, 1250]
    nothing = of_trainings({"other": methods[3:]})
    assert nothing.missing["fig5.svg"] == "IWP's accuracy by epochs: no training with iwp"
    assert set(nothing.figures.values()) == {None}
