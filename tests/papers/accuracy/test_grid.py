"""The measured map: which cells there are, when a loss is reached, and what stands beside it."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from papers.accuracy import grid, sizes
from papers.accuracy.curve import sizes_of
from papers.accuracy.grid import CELLS, FIRST, LINKS, LONGER, PARTS, STEPS
from papers.accuracy.modern import DENSE
from papers.accuracy.priced import PAYLOAD, priced
from papers.accuracy.sizes import Searched
from papers.accuracy.task import methods_in
from papers.accuracy.tasks import TASKS
from papers.published import load
from tests.papers import verb
from tests.papers.accuracy.test_modern import put, record
from wirebench import collectives
from wirebench.compose.resolve import resolve
from wirebench.costmodel.played_exchange import RequestSize
from wirebench.costmodel.request_cost import Pricer
from wirebench.errors import UserError
from wirebench.gradient.requests import Sum
from wirebench.planner.resimulated import emulated
from wirebench.record.rules import ENOUGH, UNTIMED
from wirebench.topology.processor import IDLE, Processor

report, run = verb.report("accuracy"), verb.run("accuracy")
TRIED = (0.001, 0.002, 0.004, 0.008, 0.016)
SLOW, FAST = (TASKS[f"gpt_0.1m_{link}"] for link in ("50mbit", "1gbit"))


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the runs, with rates of all methods."""
    monkeypatch.setattr(sizes, "RESULTS", tmp_path)
    monkeypatch.setattr(sizes, "found", lambda size: dict.fromkeys(sizes.METHODS, Searched(0.004, TRIED)))
    return tmp_path


def _put(
    folder: Path,
    task: Any,
    label: str,
    seed: int,
    step: float,
    losses: list[float],
    phases: dict[str, float] | None = None,
    **more: object,
) -> None:
    """A run whose epochs take 128 steps each, and another 5 s for an evaluation."""
    made = record(losses[-1], 10.0, optimizer={"lr": 0.004})
    made["config"]["train"] = {"epochs": PARTS}
    made["config"]["data"] |= {"length": sizes.LENGTH, "batch_size": 4}
    made |= {"steps_done": STEPS, "parameters": task.parameters, "world_size": 4}
    made["bytes_per_step"]["nic"] = 1e5
    made["phases"] |= {"forward": 0.01, "backward": 0.02, "compress": 0.0, "update": 0.001, **(phases or {})}
    made["requests"][0]["payload_bytes"] = more.pop("payload", 40)
    made["history"] = [
        {**made["history"][0], "epoch": epoch, "seconds": 128 * step + 5, "eval_seconds": 5.0, "test_loss": loss,
         "wire_bytes_total": 1e6 * (epoch + 1)}
        for epoch, loss in enumerate(losses)
    ]  # fmt: skip
    [method] = task.methods(task, [label], 0.0)
    launch = f"wirebench cluster run -- python train.py {task.config} {' '.join(task.words(method, seed))}"
    put(folder, label, seed, made, task.name, "grid", launch=launch, **more)


def test_every_cell_is_a_composition_and_the_urgent_ones_come_first() -> None:
    assert {task.place.link for task in CELLS if task.place} == set(LINKS) and len(LINKS) == 4
    for task in CELLS:
        cells = task.methods(task, None, 0.0)
        labels = [each.label for each in cells]
        assert labels[: len(FIRST)] == list(FIRST) and all("every=32" in each for each in labels[len(FIRST) :][:3])
        assert len(cells) == len(FIRST) + 12
        for each in cells:
            config = resolve(task.composed(each))
            assert config.engine.name == "auto" and config.data.options["parts"] == config.train.epochs == PARTS
            length, begin = divmod(config.data.options["train_bytes"], PARTS)
            times = LONGER if "tokens=" in each.label else 1
            assert begin == 0 and (length // 128 - 1) // 16 * PARTS == times * STEPS


def test_a_cell_without_a_rate_is_left_out_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    at_an_end = Searched(0.016, TRIED)
    known = {DENSE: Searched(0.004, TRIED), "topk": at_an_end, "bf16": Searched(0.004, (0.004,))}
    monkeypatch.setattr(sizes, "found", lambda size: known)
    assert [each.label for each in SLOW.methods(SLOW, None, 0.0)] == [DENSE]
    with pytest.raises(UserError, match="topk: has no rate; first"):
        SLOW.methods(SLOW, ["topk"], 0.0)


def test_cells_that_are_there_are_gone_on_with(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The launcher says how many ranks there are, the config does not."""
    _put(results, SLOW, DENSE, 0, 0.1, [2.0, 1.9], hosts=4, link="50mbit")
    assert run(["--task", SLOW.name, "--out", str(results), "--methods", DENSE, "--dry-run"], verb.nothing) == 0
    assert f"{SLOW.name}: 1 of 3 cells are there" in capsys.readouterr().err
    left = []
    for label in ("muloco momentum=0.5 every=32", "muloco momentum=0.5 every=32 tokens=4x"):
        words = ["--task", SLOW.name, "--out", str(results), "--methods", label, "--dry-run"]
        assert run(words, verb.nothing) == 0
        left.append(int(re.findall(r"(\d+) min left", capsys.readouterr().err)[0]))
    assert left[1] == pytest.approx(LONGER * left[0], abs=LONGER), "a cell of four times the tokens takes as long"


def test_the_time_to_a_loss_is_read_between_evaluations_and_without_them(results: Path) -> None:
    falls = [3.0, 2.8, 2.6, 2.4, 2.3, 2.2, 2.1, 2.0]
    for seed in range(3):
        _put(results, SLOW, DENSE, seed, 0.1, falls)
        _put(results, SLOW, "topk", seed, 0.05, falls)
        _put(results, SLOW, "demo", seed, 0.05, [3.0] * PARTS)
        _put(results, FAST, DENSE, seed, 0.04, falls)
        _put(results, FAST, "topk", seed, 0.05, falls)
    assert report(["--out", str(results)]) == 0
    text = (results / "grid/gpt_0.1m_50mbit/table.md").read_text()
    assert "test loss of 2.0200 nats" in text, "1 % above dense training's end"
    # 2.02 lies four fifths of the way from 2.1, after 7 parts, to 2.0, after 8.
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("|")}
    dense, topk, demo = (lines[label] for label in (DENSE, "topk", "demo"))
    assert f"| {(7 + 0.8) * 12.8:.1f} [" in dense and f"| {(7 + 0.8) * 6.4:.1f} [" in topk and "| 2.00x [" in topk
    assert "| 0 of 3 seeds | - |" in demo and " | 21.3 | " in demo
    assert "Not measured yet, without a run: muon, bf16, " in text
    assert topk.rstrip(" |").endswith("2.0000"), "after dense training's time it has ended"
    assert "GPT-2 of 124M" in text
    summary = (results / "grid/table.md").read_text()
    assert "| method | 50mbit | 1gbit |" in summary
    assert "| topk | 2.00x [" in summary and "0.80x [" in summary and "| demo | not reached | - |" in summary
    assert "Links without a run: 10mbit, 200mbit." in summary or "Links without a run: 200mbit, 10mbit." in summary
    assert re.search(r"\| topk \| \d+\.\d\dx \([+-]\d+ %\) \|", summary), "by simulated exchanges"
    assert re.search(r"^50mbit: A ring's dense exchange takes .* GPT-2 of 124M on A100s", summary, re.MULTILINE)
    assert (results / "grid/gains.svg").exists()


def test_a_link_without_dense_training_has_no_target_and_a_diverged_seed_no_time(results: Path) -> None:
    _put(results, SLOW, "topk", 0, 0.05, [3.0] * PARTS)
    assert report(["--out", str(results)]) == 0
    text = (results / "grid/gpt_0.1m_50mbit/table.md").read_text()
    assert "There is no target without a loss of dense training." in text and "inf" not in text
    [topk] = [line for line in text.splitlines() if line.startswith("| topk |")]
    assert topk.endswith("| 3.0000 | - | - | - |")
    assert "unfinished: topk (1 of 3 seeds)" in text and "seeds (1): all rows" in text


def test_a_busy_machine_breaks_the_rule_of_load_where_a_loss_is_timed() -> None:
    [kind] = {what for name, what in load(Path(grid.__file__).parent).records.items() if name.startswith("grid/")}
    assert kind == grid.REPEATS not in UNTIMED and kind in ENOUGH


def test_a_predictions_error_and_the_order_of_methods(results: Path) -> None:
    for label, step in ((DENSE, 0.1), ("topk", 0.05)):
        _put(results, SLOW, label, 0, step, [3.0] * PARTS)
    cells, target = grid.cells_of(results / "grid/gpt_0.1m_50mbit", SLOW, grid.machine_of(results / "grid"))
    assert target == pytest.approx(3.03)  # which both have from the first evaluation on
    for each in cells:
        assert each.predicted is not None and each.error == pytest.approx(each.predicted / each.step - 1)
        assert max(each.to_target) < math.inf and each.nbytes == 1e5


def test_headers_take_their_share_of_a_link(results: Path) -> None:
    _put(results, SLOW, DENSE, 0, 0.1, [3.0] * PARTS, payload=1e9)
    [dense] = methods_in(results / SLOW.folder, SLOW)
    found = priced(dense.runs[0], "8kbit")  # so slow that nothing but bytes counts
    assert found is not None
    sent = 1.5 * sum(request.num_bytes for _, request in sizes_of(found.run))  # a ring's of 4 ranks
    assert found.exchange(IDLE) == pytest.approx(sent / (1000 * 1448 / 1514), rel=1e-3)


def test_pairs_that_seeds_do_not_tell_apart_have_no_order(results: Path) -> None:
    _put(results, SLOW, DENSE, 0, 0.1, [3.0] * PARTS)
    [cell], _ = grid.cells_of(results / "grid/gpt_0.1m_50mbit", SLOW, grid.machine_of(results / "grid"))
    steps = {"slow": (0.40, 0.41, 0.42), "near": (0.39, 0.41, 0.43), "fast": (0.10, 0.11, 0.12)}
    slow, near, fast = (cell._replace(steps=each, predicted=0.4) for each in steps.values())
    [line, _] = grid.errors_of([slow, near._replace(predicted=0.5), fast._replace(predicted=0.1)])
    assert line.endswith("Seeds tell 2 of 3 pairs of methods apart (Welch, 5 %); of these 2 are predicted in their "
                         "order, a tau of 1.00.")  # fmt: skip
    [line, _] = grid.errors_of([slow, near._replace(predicted=0.2), fast._replace(predicted=0.3)])
    assert line.endswith("of these 1 are predicted in their order, a tau of 0.00.")
    [line, _] = grid.errors_of([each._replace(steps=each.steps[:1]) for each in (slow, near, fast)])
    assert "Seeds" not in line, "one seed tells nothing"


@pytest.mark.slow
def test_what_messages_cost_is_fitted_to_one_links_cells_and_carries_to_another(results: Path) -> None:
    """Steps as these constants make them; each rank waits for 4 % of its computing."""
    true = Processor(2.0, 1e-3, 6e-4, 2e-9, 1.2, 1.5e-3)
    computing, late = 0.02, 0.04
    cells = {DENSE: (4e5, 1), "bf16": (2e5, 1), "topk": (1e4, 1), "muon": (8e5, 1), "diloco every=32": (4e5, 32)}
    for task in (CELLS[0], SLOW):
        assert task.place is not None
        pricer = Pricer(collectives.build("native"), emulated(task.place.link, 4, true, PAYLOAD))
        for label, (payload, every) in cells.items():
            exposed = pricer.seconds(RequestSize(Sum, payload, payload)) / every + late * computing
            step, more = computing + exposed, {"payload": payload, "last_bytes": 1e6 * PARTS / 60 * every}
            for seed in range(3):
                _put(results, task, label, seed, step, [3.0] * PARTS, {"exchange_exposed": exposed}, **more)
    unknown = grid.machine_of(results / "elsewhere")
    machine = grid.machine_of(results / "grid")
    assert machine.fitted and machine.waiting == pytest.approx(late, abs=0.01) and not unknown.fitted
    for task in (CELLS[0], SLOW):
        for each in grid.cells_of(results / task.folder, task, machine)[0]:
            assert each.error == pytest.approx(0, abs=0.03), each.method.label
    [topk] = [c for c in grid.cells_of(results / SLOW.folder, SLOW, unknown)[0] if c.method.label == "topk"]
    assert topk.error is not None and topk.error < -0.1, "the shipped constants know nothing of these messages"
    assert report(["--out", str(results)]) == 0
    text = (results / SLOW.folder / "table.md").read_text()
    assert "as the cells of 200mbit links say" in text
