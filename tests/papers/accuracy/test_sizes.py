"""GPTs of several sizes at several tokens a parameter: their lengths, the search of rates, and the tables of gaps."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from papers.accuracy import cells, sizes
from papers.accuracy.modern import DENSE, EIGHTH, HALF, OTHER_DENSE, QUARTER
from papers.accuracy.sizes import AT, SEARCHES, SIZED, SIZES, Searched
from papers.accuracy.task import Task, methods_in
from papers.accuracy.tasks import TASKS
from papers.rows import flat
from tests.papers import verb
from tests.papers.accuracy.test_modern import put, record
from wirebench import models
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError

report, run = verb.report("accuracy"), verb.run("accuracy")
SEARCH = "gpt_0.1m_search"
TRIED = (0.001, 0.002, 0.004, 0.008, 0.016)


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that runs are put into, and rates are read from."""
    monkeypatch.setattr(sizes, "RESULTS", tmp_path)
    return tmp_path


def _put(folder: Path, task: str, label: str, seed: int, loss: float, rate: float) -> None:
    made, part = record(min(loss, 9.0), 10.0, optimizer={"lr": rate}), TASKS[task]
    made |= {"steps_done": 960 if "0.1m" in task else 3072, "parameters": part.parameters, "world_size": 4}
    made["config"]["data"] |= {"length": sizes.LENGTH, "batch_size": SIZES[task.split("_")[1]].batch}
    if loss == math.inf:
        made |= {"status": "diverged", "final": {"loss": None, "top1": None, "top5": None}}
    words = {each.label: part.words(each, seed) for each in part.methods(part, None, 0.0)}[label]
    put(folder, label, seed, made, task, "sizes", launch=f"python train.py {part.config} {' '.join(words)}")


def _search(folder: Path, losses: dict[float, float], label: str = DENSE) -> None:
    for rate, loss in losses.items():
        _put(folder, SEARCH, f"{label} lr={rate:g}", 0, loss, rate)
    assert report(["--out", str(folder)]) == 0


@pytest.mark.parametrize("task", (*SEARCHES, *SIZED), ids=lambda task: task.name)
def test_a_run_has_its_models_size_and_whole_rounds_of_its_tokens(task: Task) -> None:
    config = loader.load(task.config, list(task.shared))
    model = models.build(config.model.name, 256, (), **config.model.options)
    assert sum(each.numel() for each in model.parameters()) == task.parameters
    per_step = SIZES[task.name.split("_")[1]].per_step
    assert per_step == config.engine.workers * config.data.batch_size * sizes.LENGTH
    steps, rest = divmod(config.data.options["train_bytes"], per_step)
    assert steps % sizes.ROUND == 0 and rest == sizes.LENGTH
    ratio = AT if task in SEARCHES else float(task.name.rpartition("_")[2])
    assert steps * per_step / task.parameters == pytest.approx(ratio, rel=0.03 if ratio > 2 else 0.35)
    assert config.data.options.get("tested") == ("validation" if task in SEARCHES else None)


def test_every_method_is_searched_with_the_same_number_of_rates() -> None:
    for part in SEARCHES:
        every = part.methods(part, None, 0.0)
        by_label = {label: [each for each in every if each.label.startswith(f"{label} lr=")] for label in part.settings}
        assert {len(those) for those in by_label.values()} == {len(sizes.FACTORS)}
        for each in every:
            optimizer = resolve(part.composed(each)).optimizer
            assert optimizer.lr * optimizer.weight_decay == pytest.approx(sizes.DECAY, rel=1e-3), each.label


def test_one_thing_is_changed_of_a_method_that_keeps_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {label: Searched(TRIED[1 + number % 3], TRIED) for number, label in enumerate(sizes.METHODS)}
    monkeypatch.setattr(sizes, "found", lambda size: known)
    part = TASKS["gpt_0.1m_20"]
    by_label = {each.label: resolve(part.composed(each)) for each in part.methods(part, None, 0.0)}
    assert list(by_label) == [*sizes.METHODS, *sizes.CAUSES, *OTHER_DENSE]
    own = [f"{label}{sizes.OWN_RATE}" for label in sizes.SEARCHED]
    assert list(part.settings) == [*by_label, *own] and not set(own) & TASKS["gpt_0.3m_20"].settings.keys()
    for label, (method, *words) in sizes.CAUSES.items():
        mine, theirs = (dict(flat(loader.to_dict(by_label[each]))) for each in (label, method))
        changed = {key for key in mine if mine[key] != theirs.get(key)}
        assert changed and changed & theirs.keys() <= {word.partition("=")[0] for word in words}
    assert not {*sizes.CAUSES, *OTHER_DENSE} & TASKS["gpt_0.1m_2"].settings.keys()
    counts = {label: by_label[label].data.options["train_bytes"] // 2048 for label in (DENSE, *OTHER_DENSE)}
    assert list(counts.values()) == [960, 480, 240, 120, 960, 960]
    for label, count in counts.items():
        form, several = by_label[label], by_label[label].train.accumulation
        assert form.optimizer.lr == by_label[DENSE].optimizer.lr and form.data.batch_size == 4 * several
        assert count / several * form.optimizer.warmup_epochs == pytest.approx(48), "as many as in the whole run"


def test_a_best_rate_at_an_end_is_searched_beyond_and_one_within_is_what_runs_have(results: Path) -> None:
    part, sized = TASKS[SEARCH], TASKS["gpt_0.1m_20"]
    assert not sized.methods(sized, None, 0.0)
    with pytest.raises(UserError, match=f"dense: has no rate; first .* --task {SEARCH}"):
        sized.methods(sized, [DENSE], 0.0)
    _search(results, {0.001: 2.5, 0.002: 2.3, 0.004: 2.4})
    assert not sized.methods(sized, None, 0.0), "a search that was stopped has no best rate"
    _search(results, {0.008: 2.2, 0.016: 2.1})
    text = (results / "sizes" / SEARCH / "table.md").read_text()
    assert "| dense | 0.016 | 5 | no |" in text and "20.0 tokens a parameter" in text
    assert "Searches that are not over: dense, muon, bf16, " in text and "seeds (1)" not in text
    assert [each.label for each in part.methods(part, [DENSE], 0.0)][-1] == "dense lr=0.032"
    assert not sized.methods(sized, None, 0.0) and sizes.without_rate(sized) == list(sized.settings)
    _search(results, {0.032: 2.2})
    assert len(part.methods(part, [DENSE], 0.0)) == 6
    assert sizes.found("0.1m") == {DENSE: Searched(0.016, (*TRIED, 0.032))}
    chosen = sized.methods(sized, None, 0.0)
    assert [each.label for each in chosen] == [DENSE, *OTHER_DENSE], "all forms of it have its rate"
    assert {sized.composed(each).optimizer.lr for each in chosen} == {0.016}
    assert DENSE not in sizes.without_rate(sized)
    assert not TASKS["gpt_1m_20"].methods(TASKS["gpt_1m_20"], None, 0.0), "it has the rates of 0.3m"


def test_where_all_rates_diverge_a_lower_one_is_tried(results: Path) -> None:
    part = TASKS[SEARCH]
    _search(results, dict.fromkeys((0.001, 0.002, 0.004, 0.008, 0.016), math.inf))
    assert next(each.label for each in part.methods(part, [DENSE], 0.0)) == "dense lr=0.0005"
    assert "0.001: diverged" in (results / "sizes" / SEARCH / "table.md").read_text()
    for rate in (0.0005, 0.00025, 0.000125, 0.0000625):
        _search(results, {rate: math.inf})
    assert len(part.methods(part, [DENSE], 0.0)) == sizes.MOST, "and none after that"
    text = (results / "sizes" / SEARCH / "table.md").read_text()
    assert "dense: no rate after 9 rates" in text and "dense, muon" not in text


def test_one_call_searches_until_it_is_over_and_then_trains(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A method whose loss falls with the rate up to 0.03."""

    def made(told: Mapping[str, str]) -> dict[str, Any]:
        rate = float(told["optimizer.lr"])
        content = record(2.0 + abs(math.log(rate / 0.03)), 10.0, optimizer={"lr": rate})
        content["config"]["train"] |= {"seed": int(told["train.seed"])}
        content["config"]["optimizer"] |= {"weight_decay": float(told["optimizer.weight_decay"])}
        return content | {"seconds_total": 60.0 + len(launch.started)}

    launch = verb.Trains(made)
    words = ["--methods", DENSE, "--out", str(results), "--task"]
    assert run([*words, "gpt_0.1m_20"], verb.nothing) == 2
    assert "--task: gpt_0.1m_20: no method has a rate; --task also names its search" in capsys.readouterr().err
    assert run([*words, SEARCH, "gpt_0.1m_20"], launch) == 0
    rates = ["0.001", "0.002", "0.004", "0.008", "0.016", "0.032", "0.064"]
    assert launch.started[:7] == [f"{SEARCH}/dense-lr={rate}-0" for rate in rates]
    assert launch.started[7:] == [f"gpt_0.1m_20/dense-{seed}" for seed in range(3)]
    assert f"{SEARCH}: 0 of 5 cells are there; no cell tells" in (said := capsys.readouterr().err)
    assert "gpt_0.1m_20: 0 of 3 cells are there; 1 min each (by gpt_0.1m_search), 3 min left; no rate yet: muon" in said
    assert run([*words, SEARCH, "gpt_0.1m_20", "gpt_0.1m_10mbit", "--dry-run"], verb.nothing) == 0
    said = capsys.readouterr().err
    assert f"{SEARCH}: 7 of 7 cells are there; 1 min each, 0 min left" in said
    assert re.search(r"gpt_0.1m_10mbit: 0 of 3 cells are there; \d+ min each at most \(by gpt_0.1m_", said)
    assert "alone on the machine" in said
    assert run([*words, SEARCH, "--out", str(results / "other")], verb.nothing) == 2
    assert "--out: rates are read below" in capsys.readouterr().err


def test_gaps_stand_by_size_and_tokens(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "found", lambda size: dict.fromkeys((DENSE, "topk"), Searched(0.004, TRIED)))
    for size in ("0.1m", "0.3m"):
        _put(results, f"gpt_{size}_20", "topk density=0.1", 0, 2.02, 0.004)
        for seed, wobble in enumerate((-0.01, 0.0, 0.01)):
            _put(results, f"gpt_{size}_20", DENSE, seed, 2.0 + wobble, 0.004)
            _put(results, f"gpt_{size}_20", "topk", seed, (2.2 if size == "0.1m" else 2.1) + wobble, 0.004)
    assert report(["--out", str(results)]) == 0
    of_size = (results / "sizes/gpt_0.1m_20/table.md").read_text()
    assert "at 20.0 tokens a parameter" in of_size and "with 20 tokens a parameter and 98,336 parameters" in of_size
    assert "| topk | 3 | 20.0 | 2.2000 +- 0.0100 | +10.00 % [" in of_size and "worse (p " in of_size
    assert "Not measured yet, without a run: muon, bf16, " in of_size
    assert "| topk | density=0.1 | +10.00 % [" in of_size and "unfinished: topk density=0.1 (1 of 3 seeds)." in of_size
    table = (results / "sizes/table.md").read_text()
    assert "| method | 0.1m, 20.0 | 0.3m, 19.9 |" in table and "+5.00 % [" in table and "density=0.1" not in table
    assert "Without a run: 1m, 20; 0.1m, 2; 0.3m, 2; 1m, 2; 0.1m, 60; 0.3m, 60; 1m, 60 tokens a parameter." in table
    assert (results / "sizes/gaps.svg").exists()


def test_a_gap_is_also_a_share_of_dense_trainings_tokens(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {DENSE: 2.0, HALF: 2.2, QUARTER: 2.6, EIGHTH: 3.4, "topk": 2.4, "bf16": 2.0, "muon": 1.9, "demo": 3.5}
    task = TASKS["gpt_0.1m_20"]
    monkeypatch.setattr(sizes, "found", lambda size: dict.fromkeys(sizes.METHODS, Searched(0.004, TRIED)))
    for label, loss in ends.items():
        _put(results, task.name, label, 0, loss, 0.004)
    found = {each.label: each for each in methods_in(results / task.folder, task)}
    every = list(found.values())
    share = {label: cells.dense_tokens(method, every) for label, method in found.items()}
    assert share[DENSE] == share["bf16"] == "100 %" and share[HALF] == "50 %"
    assert share["topk"] == f"{100 * 0.5 * 0.5**0.5:.0f} %", "half of the way from a half to a quarter"
    assert share["muon"] == "more than all" and share["demo"] == "less than 12 %"
    assert cells.dense_tokens(found["topk"], [found[DENSE], found["topk"]]) == "-", "nothing to lie between"
