"""Other learning rates of the methods of today: which are tried, and the table of their losses."""

import argparse
from pathlib import Path

import pytest

from suite.compose.resolve import resolve
from suite.studies.convergence.tasks import Composition, Task
from suite.studies.runner import ROOT
from suite.studies.series import options_of
from suite.studies.today.rates import RATES, SEARCHED, at_other_rates
from suite.studies.today.run import Traced, completed, planned
from suite.studies.today.tasks import DENSE, GPT, compositions
from tests.studies import verb
from tests.studies.today.test_today import put, record
from wirebench.config import loader
from wirebench.config.sections import OptimizerConfig
from wirebench.errors import UserError

report = verb.report("today")


def _optimizer(task: Task, method: Composition) -> OptimizerConfig:
    """As a run of the method has it."""
    return resolve(loader.load(ROOT / task.config, list(Traced(task, method, 0, (), None).words))).optimizer


@pytest.mark.parametrize("part", RATES)
def test_a_third_and_three_times_the_methods_own_rate(part: str) -> None:
    task, chosen = RATES[part], at_other_rates(RATES[part], None)
    assert len(chosen) == 2 * len(SEARCHED)
    decay = _optimizer(task, compositions(task, [DENSE])[0])
    for label in SEARCHED:
        low, high = (_optimizer(task, each) for each in chosen if each.label.startswith(f"{label} lr="))
        assert high.lr / low.lr == pytest.approx(9, rel=0.02), label
        for each in (low, high, _optimizer(task, compositions(task, [label])[0])):
            assert each.lr * each.weight_decay == pytest.approx(decay.lr * decay.weight_decay, rel=1e-3), label
    with pytest.raises(UserError, match="--methods: no 'topk'; there is: dense, demo, dion, "):
        at_other_rates(task, ["topk"])


def test_other_rates_have_one_seed() -> None:
    options: argparse.Namespace = completed(options_of("today", ["--task", "gpt_rates"]))
    assert {each.seed for each in planned(options, "gpt_rates") if isinstance(each, Traced)} == {0}


def test_losses_stand_by_rate_with_the_studys_own_in_between(tmp_path: Path) -> None:
    def run(folder: Path, label: str, rate: float, loss: float, status: str = "finished") -> None:
        made = record(loss, 10.0, optimizer={"lr": rate}) | {"status": status}
        put(folder, label, 0, made)

    run(tmp_path, "demo", 1e-3, 2.4)
    (tmp_path / "rates").mkdir()
    run(tmp_path / "rates", "demo lr=0.003", 3e-3, 9.0, "diverged")
    run(tmp_path / "rates", "demo lr=0.0003", 3e-4, 2.2)
    run(tmp_path / "rates", "dion lr=0.003", 3e-3, 2.5)
    run(tmp_path / "rates", "dion lr=0.03", 3e-2, 2.6)
    (tmp_path / "rates" / GPT.name).rename(tmp_path / "gpt_rates")
    assert report(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "gpt_rates" / "table.md").read_text()
    assert "| demo | 0.0003: 2.2000 * | 0.001: 2.4000 | 0.003: diverged |" in text
    assert "| dion | 0.003: 2.5000 * | - | 0.03: 2.6000 |" in text
