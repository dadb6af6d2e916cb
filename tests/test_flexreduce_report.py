"""scripts/flexreduce_report.py and what it computes, on cells and records made up so that the answers are known."""

import copy
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from scripts.flexreduce_report import load, main
from tests.test_show import RECORD
from wirebench import cells
from wirebench import paper_flexreduce as paper
from wirebench.cells import Cell
from wirebench.errors import UserError
from wirebench.paper_flexreduce import LAYOUTS, Training
from wirebench.paper_flexreduce_claims import Claim, claims
from wirebench.topology import Topology

ENVIRONMENT: dict[str, Any] = {
    "cpu": {"model": "AMD EPYC", "cores": 2},
    "git": {"commit": "0123456789abcdef", "dirty": False},
    "versions": {"torch": "2.15.0"},
    "command": "python scripts/bench_collectives.py",
}
RATE = 100e6
SMALL, LARGE = 120_000, 6_000_000
FIGURES = [f"fig4{letter}.png" for letter in "abcdef"]


def cell(layout="2+3", collective="ring", items=LARGE, seconds=(2.0, 2.0, 2.0), **changes):
    made = Cell(
        collective=collective,
        plan=collective,
        items=items,
        item_bytes=4,
        ranks=Topology.parse(layout).size,
        layout=layout,
        engine="torch",
        backend="gloo",
        segments=1,
        rounds=4,
        seconds=tuple(seconds),
        max_error=1e-7,
        identical=True,
        predicted_seconds=None,
        machines=None,
    )
    return dataclasses.replace(made, **changes)


def layout_cells(layout, items=LARGE, quality=1.0):
    """A ring that fills its links, FlexReduce that reaches `quality` of the ideal saving, and repeats that vary."""
    topology = Topology.parse(layout)
    crossing = 2 * (topology.size - 1) / topology.size * items * 4
    ring = crossing * 8 / RATE / 0.95
    saved = ring * (1 - quality * paper.ideal_saving(layout))
    times = {"ring": ring, "native": 0.9 * ring, "flexreduce": saved}
    times["blueconnect"] = saved * 1.01 if paper.is_even(layout) else ring
    waves = (1.0, 1.02, 0.99, 1.3, 1.01)
    machines = tuple((crossing, crossing, crossing, crossing) for _ in topology.machines)
    return [
        cell(layout, name, items, [second * wave for wave in waves], machines=machines if name == "ring" else None)
        for name, second in times.items()
    ]


def run_record(layout="2+3", seconds=1.0, status="finished"):
    record = copy.deepcopy(RECORD)
    record["config"]["data"]["batch_size"] = 4
    size = Topology.parse(layout).size
    steps = {"median": seconds, "p10": seconds, "p90": seconds}
    environment = {**ENVIRONMENT, "backend": "gloo"}
    return {**record, "status": status, "step_seconds": steps, "world_size": size, "environment": environment}


def put_cells(folder, layout, found, **header):
    about = {"engine": "torch", "backend": "gloo", "environment": ENVIRONMENT, **header}
    cells.save(folder / "cells" / f"{layout}.jsonl", about, found)


def put_run(folder, layout, name, turn, **changes):
    path = folder / "end_to_end" / layout / f"{name}-{turn}"
    path.mkdir(parents=True)
    (path / "record.json").write_text(json.dumps(run_record(layout, **changes)))


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """Every layout, three sizes, and two turns of training on 2+3."""
    for layout in LAYOUTS:
        found = [c for items in (60_000, SMALL, LARGE) for c in layout_cells(layout, items)]
        put_cells(tmp_path, layout, found, link="100mbit", launch=f"python scripts/cluster.py run --layout {layout}")
    for turn in (0, 1):
        for name, seconds in {"ring": 10.0, "native": 9.0, "blueconnect": 10.0, "flexreduce": 8.0}.items():
            put_run(tmp_path, "2+3", name, turn, seconds=seconds + turn)
    note = {"link": "100mbit", "launch": "python scripts/cluster.py run -- python train.py"}
    (tmp_path / "end_to_end" / "2+3" / "cluster.json").write_text(json.dumps(note))
    return tmp_path


def verdicts(found: list[Claim]) -> dict[str, str]:
    return {claim.text: claim.verdict for claim in found}


def one(found: list[Claim], start: str) -> Claim:
    [claim] = [claim for claim in found if claim.text.startswith(start)]
    return claim


@pytest.mark.parametrize(
    ("layout", "percent", "even"),
    [("2+2", 33.3, True), ("2+3", 37.5, False), ("4+4", 42.9, True), ("3+3+4", 25.9, False), ("4+4+4", 27.3, True)],
)
def test_the_ideal_savings_are_those_of_the_paper(layout: str, percent: float, even: bool) -> None:
    assert round(100 * paper.ideal_saving(layout), 1) == percent
    assert paper.is_even(layout) is even


def test_calls_are_those_of_the_paper() -> None:
    counts = {layout: paper.count_calls(layout) for layout in LAYOUTS}
    assert [round(count.mean, 2) for count in counts.values()] == [1, 1.3, 1, 1.36, 1, 1, 1.2, 1.23, 1]
    assert [round(counts[layout].top, 2) for layout in ("2+3", "3+4", "3+3+4", "3+4+4")] == [1.6, 1.71, 1.4, 1.45]
    assert {count.bound for layout, count in counts.items() if layout.count("+") == 1} == {3}
    assert {count.bound for layout, count in counts.items() if layout.count("+") == 2} == {4}
    assert all(count.most <= count.bound for count in counts.values())


def test_ratios_are_taken_turn_by_turn() -> None:
    # The machine slows down threefold: the ratio of every turn is 1/2 all the same.
    slower = (2.0, 4.0, 6.0)
    [row] = paper.rows([cell(seconds=slower), cell(collective="flexreduce", seconds=[s / 2 for s in slower])])
    assert row.ratio("flexreduce", "ring") == (0.5, 0.5, 0.5)
    assert row.saving("flexreduce", "ring") == (0.5, 0.5, 0.5)
    assert row.seconds("ring") == 4.0
    assert row.reached == pytest.approx(0.5 / 0.375)
    assert row.of_ideal_speed == pytest.approx(0.625 / 0.5)


def test_a_saving_has_the_spread_of_its_ratios() -> None:
    ring, flex = [1.0] * 11, [0.5 + 0.01 * turn for turn in range(11)]
    [row] = paper.rows([cell(seconds=ring), cell(collective="flexreduce", seconds=flex)])
    saving = row.saving("flexreduce", "ring")
    assert saving == pytest.approx((0.45, 0.41, 0.49))


def test_what_was_not_measured_is_none() -> None:
    [row] = paper.rows([cell()])
    assert row.saving("flexreduce", "ring") is None
    assert [row.reached, row.of_ideal_speed, row.seconds("native")] == [None, None, None]
    assert row.verdict == "not measured"


def test_repeats_that_cannot_be_paired_are_an_error() -> None:
    [row] = paper.rows([cell(), cell(collective="flexreduce", seconds=[1.0])])
    with pytest.raises(UserError, match=r"2\+3.*flexreduce has 1 repeats and ring 3"):
        row.ratio("flexreduce", "ring")


@pytest.mark.parametrize(("quality", "verdict"), [(0.951, "reproduced"), (0.949, "not reproduced")])
def test_a_layout_is_reproduced_from_95_percent_of_the_ideal_saving_on(quality: float, verdict: str) -> None:
    [row] = paper.rows(layout_cells("3+4", quality=quality))
    assert row.verdict == verdict
    assert row.reached == pytest.approx(quality)


def test_link_use_is_of_the_busiest_direction() -> None:
    machines = ((9e9, 9e9, 10e6, 20e6), (9e9, 9e9, 5e6, 25e6))
    [row] = paper.rows([cell(seconds=[4.0], machines=machines), cell(collective="native")])
    assert row.link_use("ring", 100e6) == pytest.approx(25e6 * 8 / (100e6 * 4))
    assert row.link_use("native", 100e6) is row.link_use("flexreduce", 100e6) is None


def test_rows_come_in_the_order_of_the_paper_and_other_layouts_are_refused() -> None:
    found = paper.rows([cell("4+4+4", items=9), cell("2+2", items=9), cell("2+2", items=3)])
    assert [(row.layout, row.items) for row in found] == [("2+2", 3), ("2+2", 9), ("4+4+4", 9)]
    with pytest.raises(UserError, match=r"layout 5\+5: the paper has 2\+2"):
        paper.rows([cell("5+5")])


def test_the_main_size_is_the_one_that_most_layouts_have() -> None:
    found = [cell("2+2", items=6), cell("2+3", items=6), cell("2+2", items=3), cell("2+3", items=3)]
    assert paper.main_items(paper.rows([*found, cell("2+3", items=100)])) == 6
    assert paper.main_items([]) == 0


def test_an_epoch_is_64_thousand_images() -> None:
    runs = [Training("2+3", "ring", turn, seconds, 5, 4) for turn, seconds in enumerate((1.0, 2.0, 6.0))]
    assert [run.epoch_seconds for run in runs] == [3200, 6400, 19_200]
    assert paper.epoch_seconds(runs, "2+3", "ring") == 6400
    assert paper.epoch_seconds(runs, "2+2", "ring") is None


def test_trainings_are_compared_turn_by_turn() -> None:
    def run(name, turn, seconds):
        return Training("2+3", name, turn, seconds, 5, 4)

    runs = [run("ring", 0, 2.0), run("flexreduce", 0, 1.0), run("ring", 1, 8.0), run("flexreduce", 1, 4.0)]
    assert paper.faster(runs, "2+3", "flexreduce", "ring") == (0.5, 0.5, 0.5)
    # A turn that only one of them has does not count.
    assert paper.faster([*runs, run("ring", 2, 100.0)], "2+3", "flexreduce", "ring") == (0.5, 0.5, 0.5)
    assert paper.faster(runs, "2+3", "native", "ring") is None


@pytest.mark.parametrize("changes", [{"status": "diverged"}, {"seconds": None}, {"layout": "2+2"}])
def test_a_run_that_does_not_count_is_an_error(changes: dict) -> None:
    with pytest.raises(UserError, match=r"2\+3, ring, turn 0: the run "):
        paper.training("2+3", "ring", 0, run_record(**changes))


def test_ideal_measurements_reproduce_every_claim_about_latency(full: Path) -> None:
    results = load(full, None)
    found = verdicts(claims(results.rows, results.runs))
    slower = {text for text in found if "BlueConnect adds" in text}
    native = {text for text in found if "over the native" in text}
    assert {text for text, verdict in found.items() if verdict != "reproduced"} == slower | native
    assert len(found) == 11


def test_claims_name_where_they_fail() -> None:
    measured = [c for layout in LAYOUTS for c in layout_cells(layout, quality=0.5 if layout == "3+4" else 1)]
    found = claims(paper.rows(measured), [])
    assert one(found, "latency that FlexReduce saves over the ring, 2").verdict == "not reproduced (3+4)"
    assert one(found, "latency that FlexReduce saves over the ring, 3").verdict == "reproduced"
    assert one(found, "ideal latency").verdict == "not reproduced (3+4)"
    assert one(found, "ideal latency").measured.startswith("73.7 % to 100.0 %")
    assert one(found, "time per epoch that FlexReduce saves over the ring").verdict == "not measured"


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(0.9, "not reproduced (3+3)"), (0.98, "reproduced"), (2, "reproduced")]
)
def test_blueconnect_may_not_be_faster_on_even_layouts(seconds: float, verdict: str) -> None:
    found = [cell(lay, "flexreduce", seconds=[1.0]) for lay in ("2+2", "3+3")]
    found += [cell("2+2", "blueconnect", seconds=[1.0]), cell("3+3", "blueconnect", seconds=[seconds])]
    assert one(claims(paper.rows(found), []), "BlueConnect's latency over FlexReduce's").verdict == verdict


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(0.9, "not reproduced"), (1.04, "reproduced"), (1.1, "not reproduced")]
)
def test_blueconnect_is_the_ring_on_uneven_layouts(seconds: float, verdict: str) -> None:
    found = paper.rows([cell(seconds=[1.0]), cell(collective="blueconnect", seconds=[seconds])])
    assert one(claims(found, []), "BlueConnect's latency over the ring's").verdict == verdict


@pytest.mark.parametrize(("seconds", "verdict"), [(10.3, "reproduced"), (12.0, "not reproduced")])
def test_latency_is_linear_where_time_per_item_stays(seconds: float, verdict: str) -> None:
    found = [cell(collective="flexreduce", items=n, seconds=[s]) for n, s in ((1, 9.0), (10, 1.0), (100, seconds))]
    assert one(claims(paper.rows(found), []), "latency is linear").verdict == verdict


def test_averages_of_training_are_over_the_layouts_measured() -> None:
    savings = {"2+3": 0.10, "3+4": 0.20}
    runs = [Training(lay, "ring", 0, 1.0, 5, 4) for lay in savings]
    runs += [Training(lay, "flexreduce", 0, 1 - saving, 5, 4) for lay, saving in savings.items()]
    runs += [Training(lay, "blueconnect", 0, 1.07, 5, 4) for lay in savings]
    found = claims([], runs)
    assert one(found, "time per epoch that FlexReduce saves over the ring").measured == "15.0 % (2+3, 3+4)"
    assert one(found, "time per epoch that FlexReduce saves over the ring").verdict == "reproduced"
    assert one(found, "time per epoch that BlueConnect adds").measured == "7.0 % (2+3, 3+4)"
    assert one(found, "time per epoch that BlueConnect adds").verdict == "reproduced"


def test_the_report_has_every_figure_and_every_number(full: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["--dir", str(full)]) == 0
    text = (full / "table.md").read_text()
    assert capsys.readouterr().out == f"{full / 'table.md'}\n"
    assert text.isascii()
    assert all((full / name).read_bytes().startswith(b"\x89PNG") for name in FIGURES)
    assert "Left out" not in text
    assert "## All-reduce of 6,000,000 floats" in text
    [row] = [line for line in text.splitlines() if line.startswith("| 2+3 | 5 | 6,000,000 | 100mbit |")]
    for number in ("| 3266.0 |", "| 37.5 % [37.5 - 37.5] | 37.5 % | 32 % - 42 % | 100.0 % | 100.0 % |", "| 94.1 % |"):
        assert number in row
    [epochs] = [line for line in text.splitlines() if line.startswith("| 2+3 | 4 | ")]
    assert epochs.split(" | ")[2:7] == ["100mbit", "33600", "30400", "33600", "27200"]
    assert "All ranks ended with the same bits every time; largest error 1e-07" in text
    assert "AMD EPYC, 2 cores; torch (gloo); torch 2.15.0; commit 0123456789" in text
    assert "`python scripts/cluster.py run --layout 3+4+4`" in text
    heads = [line for line in text.splitlines() if line.startswith("| layout")]
    assert len(heads) == 4
    # The claims are about the largest size, so the others have no verdict.
    assert [head.endswith("| verdict |") for head in heads] == [True, False, False, False]
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("| ")]
        assert len({line.count("|") for line in lines}) <= 1


def test_the_same_measurements_give_the_same_files(full: Path) -> None:
    assert main(["--dir", str(full)]) == 0
    before = {path.name: path.read_bytes() for path in full.iterdir() if path.is_file()}
    assert main(["--dir", str(full)]) == 0
    assert {path.name: path.read_bytes() for path in full.iterdir() if path.is_file()} == before
    assert set(before) == {*FIGURES, "table.md"}


def test_what_is_missing_is_left_out_and_named(tmp_path: Path) -> None:
    put_cells(tmp_path, "2+3", [cell(items=SMALL), cell(collective="flexreduce", items=SMALL, identical=False)])
    (tmp_path / "fig4d.png").write_bytes(b"of an earlier report")
    assert main(["--dir", str(tmp_path)]) == 0
    text = (tmp_path / "table.md").read_text()
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["fig4a.png", "fig4c.png"]
    for line in (
        "Left out: fig4b.png: no all-reduce of more than 120,000 floats was measured.",
        "Left out: fig4d.png: no all-reduce on 3+3+4 was measured.",
        "Left out: fig4f.png: no training was measured.",
        "RANKS DIFFER: flexreduce on 2+3, 120,000 floats",
    ):
        assert line in text
    [row] = [line for line in text.splitlines() if line.startswith("| 2+3 | 5 | 120,000 | - |")]
    assert row.split(" | ")[5:7] == ["-", "-"]


def test_trainings_alone_make_a_report(tmp_path: Path) -> None:
    put_run(tmp_path, "3+3", "ring", 0)
    put_run(tmp_path, "3+3", "flexreduce", 0, seconds=0.6)
    assert main(["--dir", str(tmp_path)]) == 0
    text = (tmp_path / "table.md").read_text()
    assert "| 40.0 % [40.0 - 40.0] |" in text
    assert (tmp_path / "fig4f.png").exists()


def test_a_link_may_be_given_for_cells_that_do_not_say_it(tmp_path: Path) -> None:
    put_cells(tmp_path, "2+3", layout_cells("2+3"))
    assert main(["--dir", str(tmp_path), "--link", "200mbit"]) == 0
    assert "| 200mbit |" in (tmp_path / "table.md").read_text()
    assert math.isclose(load(tmp_path, "200mbit").rows[0].link_use("ring", 200e6) or 0, 0.95 / 2 / 1.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--link", "100mbit"], "--link: every file of cells says already"),
        (["--link", "fast"], "cannot read the rate 'fast'"),
        (["--colour"], "unrecognized arguments: --colour"),
        (["--dir", "nowhere"], "nowhere: has neither cells/LAYOUT.jsonl nor end_to_end/LAYOUT"),
    ],
)
def test_bad_input_is_one_line(full: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["--dir", str(full), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_damaged_files_are_named(full: Path, capsys: pytest.CaptureFixture) -> None:
    def message() -> str:
        assert main(["--dir", str(full)]) == 2
        [line] = capsys.readouterr().err.splitlines()
        return line

    (full / "end_to_end" / "2+3" / "cluster.json").write_text("[]")
    assert "cluster.json: needs a table" in message()
    (full / "end_to_end" / "2+3" / "blueconnect-0" / "record.json").write_text("{}")
    assert "blueconnect-0/record.json: not a run's record" in message()
    put_run(full, "2+3", "another", 0)
    assert "another-0: no folder of bench_flexreduce.py" in message()
    put_cells(full, "3+3", [cell("2+3")])
    assert "3+3.jsonl: has cells of another layout" in message()
    (full / "cells" / "2+2.jsonl").write_text("nothing")
    assert "2+2.jsonl: cannot be read as measured cells" in message()
