"""The gs-SGD paper's figures: what they show is what the records have."""

from pathlib import Path

import pytest

from papers.accuracy.rows import MethodRuns
from papers.gs_sgd import figures
from papers.gs_sgd.variants import swept
from papers.rows import Row, load
from tests import charts
from tests.papers.gs_sgd.test_gs_sgd_report import TRACES, curve, runs, trained
from tests.papers.test_methods_run import record
from wirebench.record.notes import NotedRun


def course(folder: Path, label: str, epochs: int = 3, seeds: int = 2) -> MethodRuns:
    """Accuracies rise to 90 %, each seed's is one point higher than the last one's; the loss is 2 over the epoch."""
    made = [curve(epochs, epochs) for _ in range(seeds)]
    for seed, each in enumerate(made):
        for entry in each["history"]:
            entry |= {"top1": entry["top1"] + 0.01 * seed, "loss": 2 / (entry["epoch"] + 1)}
    return trained(folder, label, *made)


def test_trainings_are_drawn_by_epochs_and_others_are_left_out(tmp_path: Path) -> None:
    methods = [course(tmp_path, label) for label in ("dense", "gs_sgd", "gs_sgd literal", "gtopk", "powersgd")]
    drawn = figures.of({}, [methods])
    assert list(drawn.captions) == ["fig2.svg"] and set(drawn.missing) == {f"fig{n}.svg" for n in range(3, 8)}
    figure = drawn.figures["fig2.svg"]
    assert figure is not None
    charts.check(figure)
    assert charts.titles(figure) == ["Accuracy", "Loss"]
    rows = [row for row in charts.of(figure, "line") if row["name"] == "gs_sgd"]
    assert [(row["x"], row["y"]) for row in rows] == [
        *((epoch, pytest.approx(87.5 + epoch)) for epoch in (1, 2, 3)), (1, 2), (2, 1), (3, pytest.approx(2 / 3)),
    ]  # fmt: skip
    assert set(charts.lines(figure)) == {"dense", "gs_sgd", "gs_sgd literal", "gtopk"}
    assert "gs_sgd after 70 epochs, gtopk after 85 epochs of about 140. Our runs are shorter" in charts.note(figure)


def test_the_papers_epochs_stand_in_trainings_that_are_as_long(tmp_path: Path) -> None:
    figure = figures.convergence("ResNet-20", [[course(tmp_path, "gs_sgd", epochs=80)]])
    assert not isinstance(figure, str)
    lines = charts.lines(figure)
    assert lines["the paper's gs_sgd: 70 epochs"][0] == [70, 70] * 2
    assert "the paper's gtopk: 85 epochs" not in lines, "no run is as long"
    assert "Dotted: these epochs" in charts.note(figure)


def test_a_step_is_parted_as_in_the_paper_and_rates_stand_beside(tmp_path: Path) -> None:
    drawn = figures.of({"VGG-16": load(runs(tmp_path))}, [], "cluster_")
    assert list(drawn.captions) == ["cluster_fig5.svg"]
    figure = drawn.figures["cluster_fig5.svg"]
    assert figure is not None
    charts.check(figure)
    parts = {(row["name"], row["part"]): row["length"] for row in charts.of(figure, "bar")}
    # The median of five turns of 0.5 s, each a tenth longer than the one before, is 0.6 s.
    assert parts["gs_sgd literal", figures.COMPUTING] == pytest.approx(40)
    assert parts["gs_sgd literal", figures.SPARSIFYING] == pytest.approx(100)
    assert parts["gs_sgd literal", figures.COMMUNICATING] == pytest.approx(460)
    words = {row["name"]: row["words"] for row in charts.of(figure, "text") if "name" in row}
    assert words["gs_sgd literal"].endswith("images/s; the paper's 1,014")
    assert words["sketched_sgd literal"].endswith("; the paper's 827") and words["gs_sgd"].endswith("images/s")


def test_runs_without_phases_have_no_parts() -> None:
    made = record("native", 0.5)
    made["phases"]["compress"] = None
    assert isinstance(figures.breakdown("VGG-16", [Row("gtopk", (NotedRun(Path("a-0"), {}, made),))]), str)


def test_sweeps_are_drawn_of_k_and_of_columns(tmp_path: Path) -> None:
    few, many = (course(tmp_path, swept("k", value)) for value in (10_000, 50_000))
    narrow = [course(tmp_path, swept("columns", value)) for value in (10_000, 20_000)]
    assert isinstance(figures.sweeps("ResNet-20", [[few, narrow[0]]]), str), "one of either is no sweep"
    figure = figures.of({}, [[few, many, *narrow]]).figures["fig7.svg"]
    assert figure is not None
    charts.check(figure)
    lines = charts.lines(figure)
    assert set(lines) == {
        f"gs_sgd literal {each}" for each in ("k=10,000", "k=50,000", "columns=10,000", "columns=20,000")
    }
    assert lines["gs_sgd literal k=10,000"][1][:3] == pytest.approx([88.5, 89.5, 90.5])


def test_another_network_has_no_figure(tmp_path: Path) -> None:
    methods = [course(tmp_path, "gs_sgd")]
    for run in methods[0].runs:
        run.record["config"]["model"] = {"name": "resnet_cifar", "depth": 8}
    assert figures.of({}, [methods]).captions == {}
    assert set(TRACES) == set(figures.NETWORKS)
