"""The MG-WFBP paper's Fig. 5 to 9: what they show is what was simulated, measured or printed."""

import json
from pathlib import Path

import pytest

from papers.mg_wfbp import cluster, cluster_figures, figures, paper, simulated
from papers.mg_wfbp.figures import MeasuredBars, Times
from papers.mg_wfbp.paper import GOOGLENET, LABELS, RESNET, STAR, PaperStep
from tests import charts
from tests.papers import verb
from tests.papers.iwp.test_iwp_figures import points
from tests.papers.test_mg_wfbp import put
from wirebench.record.notes import NotedRun
from wirebench.simulation import trace


def test_the_sizes_of_layers_are_those_of_the_traces() -> None:
    drawn = figures.layer_sizes([GOOGLENET, RESNET])
    charts.check(drawn)
    lines = charts.lines(drawn)
    for model, count in ((GOOGLENET, 64), (RESNET, 107)):
        places, sizes = lines[model.label]
        assert (len(places), places[0]) == (count, 1)
        assert sum(sizes) == sum(layer.numel for layer in trace.load(trace.find(model.trace)).layers)
    assert lines["5,000,000, the paper's"][1] == [5e6, 5e6]


def test_times_of_all_reduces_are_the_rings_and_what_the_paper_prints() -> None:
    known = {8: {1000: Times(0.002, (0.001, 0.004)), 1_000_000: Times(0.02, (0.02, 0.03))}}
    drawn = figures.all_reduces(simulated.all_reduce, "somewhere", [MeasuredBars("there", "a note", known)])
    charts.check(drawn)
    lines = charts.lines(drawn)
    for nodes, printed in ((2, 0.09052), (4, 0.27156), (8, 0.63364)):
        sizes, milliseconds = lines[f"{nodes} nodes, predicted"]
        assert [sizes[0], sizes[-1]] == pytest.approx([400, 2e7])
        assert milliseconds[-1] == pytest.approx(1e3 * simulated.all_reduce(nodes).seconds(2e7))
        [start_up] = [line for name, line in lines.items() if name.startswith(f"{nodes} nodes, start-up")]
        assert points(start_up) == pytest.approx({400: printed})
    assert points(lines["8 nodes, the paper's (section I)"]) == {204_800: 1.5, 409_600: 1.8}
    assert points(lines["8 nodes, measured"]) == {1000: 2, 1_000_000: 20}
    [fit] = [line for name, line in lines.items() if "fitted" in name]
    assert [fit[1][0], fit[1][-1]] == pytest.approx([2, 20]), "two points lie on their line"
    assert len(charts.titles(drawn)) == 2
    assert len(charts.titles(figures.all_reduces(simulated.all_reduce, "somewhere", []))) == 1


def test_a_line_is_fitted_by_relative_errors() -> None:
    exact = figures.fitted({size: 0.001 + 2e-9 * size for size in (10**3, 10**4, 10**6, 10**7)})
    assert exact._asdict() == pytest.approx({"a": 0.001, "b": 2e-9})
    through_nothing = figures.fitted({1000: 1e-6, 2000: 3e-6})
    assert through_nothing.a == 0 and 1e-9 < through_nothing.b < 1.5e-9, "no start-up below 0"
    flat = figures.fitted({1000: 3e-3, 1_000_000: 2e-3})
    assert flat.b == 0 and 2e-3 < flat.a < 3e-3


def test_times_are_those_of_rings_alone() -> None:
    def run(*requests: tuple[str, str, int, float | None]) -> NotedRun:
        keys = ("kind", "plan", "payload_bytes", "seconds")
        return NotedRun(Path(), {}, {"requests": [dict(zip(keys, each, strict=True)) for each in requests]})

    first = run(("Sum", "ring", 10, 0.1), ("Sum", "ring", 20, 0.5), ("Gather", "ring", 10, 9.0))
    second = run(("Sum", "ring", 10, 0.3), ("Sum", "tree", 10, 9.0), ("Sum", "ring", 10, 0.2))
    nothing = [run(("Sum", "ring", 10, None)), NotedRun(Path(), {}, {})]
    assert figures.times({4: [first, second], 2: nothing}) == {
        4: {10: Times(0.2, (0.1, 0.3)), 20: Times(0.5, (0.5, 0.5))}
    }


STEPS = [
    PaperStep(nodes, name, measured, 0.5 + nodes / 100)
    for name, measured in (("wfbp", 0.6), ("sync_easgd", 0.7), ("mg_wfbp", 0.55))
    for nodes in (2, 4, 8)
]


def test_a_star_is_beside_the_schedules_and_named() -> None:
    name = f"{LABELS[STAR]}, predicted"
    assert name.startswith("WFBP on a parameter server (star), in place of TensorFlow's")
    drawn = figures.real_figure(GOOGLENET, STEPS, {2: 1.0, 4: 2.0, 8: 4.0}, "somewhere")
    lines, alone = charts.lines(drawn), GOOGLENET.alone
    assert points(lines[name]) == pytest.approx({1: 1, 2: 2 * alone, 4: 2 * alone, 8: 2 * alone})
    assert lines["WFBP"][1] == pytest.approx([1, 2 * alone / 0.6, 4 * alone / 0.6, 8 * alone / 0.6])
    assert lines["MG-WFBP, predicted"][1][-1] == pytest.approx(8 * alone / 0.58)


def test_a_star_costs_what_its_server_sends_and_adds() -> None:
    """On eight nodes, all bytes seven times each way and into sums; hardly any of it is hidden."""
    sent = 4 * sum(layer.numel for layer in trace.load(trace.find(GOOGLENET.trace)).layers)
    exchange = 7 * sent * (2 * 0.993e-9 + 2.5e-9)
    step = simulated.predictor(GOOGLENET)(8, STAR, 0.0)
    assert exchange < step < exchange + GOOGLENET.alone


def test_a_step_is_computation_and_what_is_not_hidden() -> None:
    stars = {model.label: {2: 0.8, 4: 0.9, 8: 9.0} for model in paper.MODELS}
    steps = {model.label: STEPS for model in paper.MODELS}
    drawn = figures.step_parts(paper.MODELS, steps, stars, "somewhere")
    charts.check(drawn)
    assert charts.titles(drawn) == ["GoogLeNet", "ResNet-50"]
    bars = [row for row in charts.of(drawn, "bar") if row["name"] == "8 nodes, MG-WFBP"]
    assert [(row["part"], row["length"]) for row in bars][:2] == [
        (figures.COMPUTATION, GOOGLENET.alone),
        (figures.EXPOSED, pytest.approx(0.58 - GOOGLENET.alone)),
    ]
    ticks = [(row["name"], row["x"]) for row in charts.of(drawn, "tick")]
    assert [x for name, x in ticks if name == "8 nodes, MG-WFBP"] == [0.55, 0.55], "as the authors measured it"
    assert len(ticks) == 2 * 9 and not any("star" in name for name, _ in ticks)


def test_the_papers_efficiencies_stand_beside_the_simulated_ones() -> None:
    nodewise = {4: dict.fromkeys(figures.SHOWN, 0.9), 64: dict.fromkeys(figures.SHOWN, 0.5)}
    resnet, googlenet = (figures.simulated_figure(model, nodewise, "somewhere") for model in (RESNET, GOOGLENET))
    lines = charts.lines(resnet)
    assert points(lines["the paper's WFBP and SyncEASGD: around 55 %"]) == pytest.approx({64: 35.2})
    assert lines[LABELS[STAR]] == ([4, 64], [3.6, 32])
    assert not any("the paper's" in name for name in charts.lines(googlenet))
    assert "MG-WFBP over WFBP 1.78x, here 1.00x" in charts.note(googlenet)
    assert "Fig. 9 (a)" in charts.titles(googlenet)[0] and "Fig. 9 (b)" in charts.titles(resnet)[0]


def on_a_cluster(folder: Path, steps: list[tuple[str, int, float]]) -> None:
    """Two turns of each schedule; the rings of a step are of two sizes."""
    for turn in range(2):
        for schedule, nodes, seconds in steps:
            name, plan = f"{schedule.replace(' ', '-')}-{nodes}-{turn}", "star" if "star" in schedule else "ring"
            made = put(folder, name, schedule.partition(" ")[0], nodes, seconds, collective={"name": plan})
            made["phases"]["exchange_exposed"] = seconds / 4
            made["requests"] = [
                {"kind": "Sum", "plan": plan, "rounds": 2, "bytes": size, "payload_bytes": size, "seconds": each}
                for size, each in ((1000, seconds / 10), (100_000, seconds))
            ]
            (folder / name / "record.json").write_text(json.dumps(made))


def test_a_clusters_runs_are_drawn_beside_the_authors(tmp_path: Path) -> None:
    on_a_cluster(tmp_path, [("wfbp", 1, 0.4), ("wfbp", 8, 0.8), ("mg_wfbp", 8, 0.5), (STAR, 8, 1.6)])
    made = cluster_figures.draw(cluster.load(tmp_path), {})
    reason = "ResNet-50 needs runs of the network on one machine and on several"
    assert made.missing == {"cluster_fig7.svg": f"cluster_fig7.svg: {reason}"}
    drawn = {name: figure for name, figure in made.figures.items() if figure is not None}
    assert list(drawn) == ["cluster_fig5b.svg", "cluster_fig6.svg", "cluster_fig8.svg"]
    for each in drawn.values():
        charts.check(each)
    lines = charts.lines(drawn["cluster_fig6.svg"])
    assert points(lines["WFBP"]) == pytest.approx({1: 1, 8: 4})
    assert points(lines["MG-WFBP"]) == pytest.approx({1: 1, 8: 6.4})
    assert points(lines[LABELS[STAR]]) == pytest.approx({1: 1, 8: 2}), "a star is no ring"
    assert lines["MG-WFBP, the authors'"][1][-1] == pytest.approx(8 * 75.68 / 81.68)
    bars = {(row["name"], row["part"]): row["length"] for row in charts.of(drawn["cluster_fig8.svg"], "bar")}
    assert bars["8 nodes, WFBP", figures.COMPUTATION] == pytest.approx(0.6)
    assert bars["8 nodes, WFBP", figures.EXPOSED] == pytest.approx(0.2)
    assert bars["8 nodes, WFBP on star", figures.EXPOSED] == pytest.approx(0.4)
    assert {row["name"]: row["x"] for row in charts.of(drawn["cluster_fig8.svg"], "tick")} == {
        "8 nodes, WFBP": GOOGLENET.seconds(8, "wfbp"),
        "8 nodes, MG-WFBP": GOOGLENET.seconds(8, "mg_wfbp"),
    }
    timed = charts.lines(drawn["cluster_fig5b.svg"])["8 nodes, measured"]
    assert points(timed) == pytest.approx({1000: 65, 100_000: 650}), "medians over both schedules' rings"


def test_the_report_says_what_a_cluster_lacks_for_a_figure(tmp_path: Path) -> None:
    on_a_cluster(tmp_path / "runs", [("wfbp", 1, 0.4)])
    assert verb.report("mg_wfbp")(["--cluster", str(tmp_path / "runs"), "--dir", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("- Not drawn: ")] == [
        "- Not drawn: cluster_fig5b.svg: no run on several machines has times of rings (`collective.name=ring`).",
        "- Not drawn: cluster_fig6.svg: GoogLeNet needs runs of the network on one machine and on several.",
        "- Not drawn: cluster_fig7.svg: ResNet-50 needs runs of the network on one machine and on several.",
        "- Not drawn: cluster_fig8.svg: no run on several machines has phases of its steps.",
    ]
    made = {path.name for path in (tmp_path / "out").glob("*.svg")}
    assert made == {f"fig{name}.svg" for name in ("5a", "5b", "6", "7", "8", "9a", "9b")}
