"""Other learning rates of the methods of today: which are tried, and the table of their losses."""

import math
from pathlib import Path

import pytest

from papers.accuracy import verdicts
from papers.accuracy.modern import DENSE, OTHER_DENSE
from papers.accuracy.rates import FINER, SEARCHED, SUFFIX, at_other_rates, best_rate, tried
from papers.accuracy.report import methods_of
from papers.accuracy.task import Composition, Task, listed
from papers.accuracy.tasks import GPT, MODERN, TASKS
from tests.papers import verb
from tests.papers.accuracy.test_modern import put, put_rate, record
from wirebench.compose.resolve import resolve
from wirebench.config.sections import OptimizerConfig
from wirebench.errors import UserError

pytestmark = pytest.mark.sampled(4)

report = verb.report("accuracy")


def _optimizer(task: Task, method: Composition) -> OptimizerConfig:
    """As a run of the method has it."""
    return resolve(task.composed(method)).optimizer


@pytest.mark.parametrize("task", MODERN, ids=lambda task: task.name)
def test_a_third_and_three_times_the_methods_own_rate(task: Task) -> None:
    part = TASKS[f"{task.name}{SUFFIX}"]
    chosen = at_other_rates(part, None)
    searched = SEARCHED[task.name]
    finer = FINER.get(task.name, {})
    assert len(chosen) == 2 * len(searched) + sum(map(len, finer.values()))
    decay = _optimizer(task, listed(task, [DENSE])[0])
    for label in searched:
        low, high, *more = (_optimizer(task, each) for each in chosen if each.label.startswith(f"{label} lr="))
        own = _optimizer(task, listed(task, [label])[0])
        assert high.lr / low.lr == pytest.approx(9, rel=0.02), label
        assert [each.lr / own.lr for each in more] == pytest.approx(finer.get(label, ()), rel=0.02), label
        for each in (low, high, own, *more):
            assert each.lr * each.weight_decay == pytest.approx(decay.lr * decay.weight_decay, rel=1e-3), label
    set_own = {
        label for label, words in task.settings.items() if any(word.startswith("optimizer.lr=") for word in words)
    }
    claims = [each.about for each in verdicts.claims_of(task) if each.about["measure"] == "loss"]
    claims = [about for about in claims if {*about["methods"]} <= task.settings.keys()]  # of others none has run
    named = {label for about in claims for key in ("methods", "rivals") for label in about[key]}
    assert set_own | named <= set(searched), "without it, a claim on it would never be decided"
    assert {*searched} - set_own - named <= {DENSE, *OTHER_DENSE}
    assert {each.label.partition(" ")[0] for each in at_other_rates(part, ["demo"])} == {"demo"}
    with pytest.raises(UserError, match="--methods: no other rates of 'topk'; there are of: dense, demo, dion, "):
        at_other_rates(part, ["topk"])


def test_losses_stand_by_rate_with_the_studys_own_in_between(tmp_path: Path) -> None:
    put(tmp_path, "demo", 0, record(2.4, 10.0, optimizer={"lr": 1e-3}))
    put_rate(tmp_path, "demo lr=0.003", 0, record(9.0, 10.0, optimizer={"lr": 3e-3}) | {"status": "diverged"})
    for label, rate, loss in (("demo", 3.3e-4, 2.2), ("dion", 3.3e-3, 2.5), ("dion", 3e-2, 2.6)):
        put_rate(tmp_path, f"{label} lr={rate:g}", 0, record(loss, 10.0, optimizer={"lr": rate}))
    assert report(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "today/gpt_rates" / "table.md").read_text()
    assert "| demo | 0.00033: 2.2000 * | 0.001: 2.4000 | 0.003: diverged | - |" in text
    assert "| dion | 0.0033: 2.5000 * | - | 0.03: 2.6000 | - |" in text


@pytest.mark.parametrize(
    ("demo", "losses", "dense", "state", "why"),
    [
        (2.2, (2.25, 2.3), 2.1, "not reproduced", "1.10x, not 1.00x"),
        (2.2, (2.25, 2.3), 1.9, "not reproduced", "1.10x, not 1.00x"),
        (2.2, (2.3, 1.97), 2.1, "not decidable", "demo has 1.9700 at 0.003 with the first seed, and 2.1990 at 0.001"),
        (2.03, (2.3, 2.02), 2.1, "not decidable", "demo has 2.0200 at 0.003 with the first seed, and 2.0290 at 0.001"),
        (2.2, (2.3,), 2.1, "not decidable", "other rates of demo were not tried"),
        (2.2, (2.3, math.inf), 2.1, "not decidable", "demo diverged at the next rate to 0.001 that was tried"),
        (1.9, (2.3,), 2.1, "reproduced", ""),
        (2.015, (2.3, 2.3), 2.0, "not decidable", "of dense with the first seed has its least, 1.9867, at 0.0034"),
        (2.015, (2.3, 2.3), 2.1, "reproduced", ""),
        (1.9, (2.3, 2.3), 1.8, "not decidable", "dense has 1.8000 at 0.006 with the first seed, and 1.9990 at 0.002"),
        (1.9, (2.3, 2.3), 0.0, "not decidable", "other rates of dense were not tried"),
    ],
)
def test_a_loss_that_another_rate_could_turn_decides_nothing(
    tmp_path: Path, demo: float, losses: list[float], dense: float, state: str, why: str
) -> None:
    """Dense training is at 2.0; at three times its rate at `dense`, 0: not tried."""
    for seed, wobble in enumerate((-0.001, 0.0, 0.001)):
        put(tmp_path, "dense", seed, record(2.0 + wobble, 10.0, optimizer={"lr": 0.002}))
        put(tmp_path, "demo", seed, record(demo + wobble, 10.0, optimizer={"lr": 0.001}))
    for rate, loss in (("0.00067", 2.1), ("0.006", dense)):
        if loss:
            put_rate(tmp_path, f"dense lr={rate}", 0, record(loss, 10.0, optimizer={"lr": float(rate)}))
    for rate, loss in zip(("0.00033", "0.003"), losses, strict=False):
        made = record(9.0 if loss == math.inf else loss, 10.0, optimizer={"lr": float(rate)})
        made["status"] = "diverged" if loss == math.inf else made["status"]
        put_rate(tmp_path, f"demo lr={rate}", 0, made)
    methods, others = methods_of(tmp_path / "today/gpt"), tried(tmp_path / "today/gpt_rates", TASKS["gpt_rates"])
    [found] = [each for each in verdicts.findings(GPT, methods, others) if each.claim.id == "demo_loss"]
    assert found.verdict.state == state and why in found.verdict.words


def test_rates_without_the_first_seed_were_not_tried(tmp_path: Path) -> None:
    put(tmp_path, "demo", 0, record(2.2, 10.0))
    for rate, seed, loss in (("0.00033", 1, 1.0), ("0.003", 0, 1.9)):
        put_rate(tmp_path, f"demo lr={rate}", seed, record(loss, 10.0, optimizer={"lr": float(rate)}))
    [demo], others = methods_of(tmp_path / "today/gpt"), tried(tmp_path / "today/gpt_rates", TASKS["gpt_rates"])
    assert best_rate(demo, others) is None
    assert report(["--out", str(tmp_path)]) == 0
    assert "| demo | - | - | 0.003: 1.9000 * | - |" in (tmp_path / "today/gpt_rates" / "table.md").read_text()


def test_a_parabola_goes_through_the_nearest_rates(tmp_path: Path) -> None:
    """Of losses 2 + (ln(rate / 0.0016))^2 / 10 it finds that least from any three of them that lie around it."""
    label = "diloco momentum=0.5"
    losses = {rate: 2 + math.log(rate / 0.0016) ** 2 / 10 for rate in (0.00067, 0.002, 0.006)}
    put(tmp_path, label, 0, record(losses.pop(0.002), 10.0, optimizer={"lr": 0.002}))
    for rate, loss in (*losses.items(), (0.0015, 2.01)):
        put_rate(tmp_path, f"{label} lr={rate:g}", 0, record(loss, 10.0, optimizer={"lr": rate}))
    [diloco], others = methods_of(tmp_path / "today/gpt"), tried(tmp_path / "today/gpt_rates", TASKS["gpt_rates"])
    best = best_rate(diloco, [each for each in others if "lr=0.0015" not in each.label])
    assert best is not None and "has its least, 2.0000, at 0.0016, and 2.0050 at 0.002" in best.words
    assert best_rate(diloco, [each for each in others if "lr=0.006" not in each.label]) is None, "one side, twice"
    worse = best_rate(diloco, others)
    assert worse is not None and "has its least, 2.0043, at 0.0019" in worse.words, "of 0.0015, 0.002 and 0.006"
    assert report(["--out", str(tmp_path)]) == 0
    assert "| 0.006: 2.1747 | 0.0015: 2.0100 |" in (tmp_path / "today/gpt_rates" / "table.md").read_text()


def test_short_runs_are_not_held_against_whole_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "demo", 0, record(2.2, 10.0))
    put_rate(tmp_path, "demo lr=0.003", 0, record(2.2, 10.0, train={"epochs": 4}))
    assert report(["--out", str(tmp_path)]) == 2
    assert "mixes settings: epochs is 4 in demo lr=0.003-0 and 1 in demo-0" in capsys.readouterr().err
