"""GPTs of several sizes at several tokens a parameter: their lengths, the search of rates, and the tables of gaps."""

import json
from pathlib import Path
from typing import Any

import pytest

from papers.accuracy import sizes
from papers.accuracy.modern import DENSE
from papers.accuracy.sizes import AT, PER_STEP, SEARCHES, SIZED, SIZES
from papers.accuracy.task import Task
from papers.accuracy.tasks import TASKS
from tests.papers import verb
from tests.papers.accuracy.test_modern import put, record
from wirebench import data, models
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.data.sequences import ByteSequences
from wirebench.errors import UserError

report = verb.report("accuracy")
SEARCH = "gpt_0.1m_search"


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that runs are put into, and rates are read from."""
    monkeypatch.setattr(sizes, "RESULTS", tmp_path)
    return tmp_path


def _put(folder: Path, task: str, label: str, seed: int, loss: float, rate: float) -> None:
    made = record(loss, 10.0, optimizer={"lr": rate})
    part = TASKS[task]
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
    steps, rest = divmod(config.data.options["train_bytes"], PER_STEP)
    assert steps % sizes.ROUND == 0 and rest == sizes.LENGTH
    ratio = AT if task in SEARCHES else float(task.name.rpartition("_")[2])
    assert steps * PER_STEP / task.parameters == pytest.approx(ratio, rel=0.03 if ratio > 2 else 0.35)
    assert config.data.options.get("tested") == ("validation" if task in SEARCHES else None)


def test_every_method_is_searched_with_the_same_number_of_rates() -> None:
    for part in SEARCHES:
        every = part.methods(part, None, 0.0)
        by_label = {label: [each for each in every if each.label.startswith(f"{label} lr=")] for label in part.settings}
        assert {len(those) for those in by_label.values()} == {len(sizes.FACTORS)}
        for each in every:
            optimizer = resolve(part.composed(each)).optimizer
            assert optimizer.lr * optimizer.weight_decay == pytest.approx(sizes.DECAY, rel=1e-3), each.label


def test_a_best_rate_at_an_end_is_searched_beyond_and_one_within_is_what_runs_have(results: Path) -> None:
    part, sized = TASKS[SEARCH], TASKS["gpt_0.1m_20"]
    assert not sized.methods(sized, None, 0.0)
    with pytest.raises(UserError, match=f"dense: has no rate; first .* --task {SEARCH}"):
        sized.methods(sized, [DENSE], 0.0)
    _search(results, {0.001: 2.5, 0.002: 2.4, 0.004: 2.3, 0.008: 2.2, 0.016: 2.1})
    assert "| dense | 0.016 | 5 | yes |" in (results / "sizes" / SEARCH / "table.md").read_text()
    assert [each.label for each in part.methods(part, [DENSE], 0.0)][-1] == "dense lr=0.032"
    _search(results, {0.032: 2.2})
    assert len(part.methods(part, [DENSE], 0.0)) == 6
    known = json.loads((results / "sizes" / SEARCH / sizes.CHOSEN).read_text())
    assert known == {DENSE: {"rate": 0.016, "tried": [0.001, 0.002, 0.004, 0.008, 0.016, 0.032]}}
    [chosen] = sized.methods(sized, None, 0.0)
    assert sized.composed(chosen).optimizer.lr == 0.016
    assert not TASKS["gpt_1m_20"].methods(TASKS["gpt_1m_20"], None, 0.0), "it has the rates of 0.3m"


def test_gaps_stand_by_size_and_tokens(results: Path) -> None:
    for size in ("0.1m", "0.3m"):
        rates = {label: {"rate": 0.004, "tried": [0.002, 0.004, 0.008]} for label in (DENSE, "topk")}
        (results / "sizes" / f"gpt_{size}_search").mkdir(parents=True)
        (results / "sizes" / f"gpt_{size}_search" / sizes.CHOSEN).write_text(json.dumps(rates))
        for seed, wobble in enumerate((-0.01, 0.0, 0.01)):
            _put(results, f"gpt_{size}_20", DENSE, seed, 2.0 + wobble, 0.004)
            _put(results, f"gpt_{size}_20", "topk", seed, (2.2 if size == "0.1m" else 2.1) + wobble, 0.004)
    assert report(["--out", str(results)]) == 0
    of_size = (results / "sizes/gpt_0.1m_20/table.md").read_text()
    assert f"at {480 * PER_STEP / SIZES['0.1m'].parameters:.1f} tokens a parameter" in of_size
    assert "| topk | 3 | 2.2000 +- 0.0100 | +10.00 % [" in of_size and "worse (p " in of_size
    table = (results / "sizes/table.md").read_text()
    assert "| method | 0.1m, 20 | 0.3m, 20 |" in table and "+5.00 % [" in table
    assert (results / "sizes/gaps.svg").exists()


def test_validation_text_is_in_no_other_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every file of a small standard library and of its packages says its own name."""
    for number in range(200):
        folder = tmp_path / "lib" / ("site-packages/pack" if number % 2 else "own")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"m{number}.py").write_text(f"[{number:03d}]" * 100)
    paths = {"stdlib": str(tmp_path / "lib"), "purelib": str(tmp_path / "lib/site-packages")}
    monkeypatch.setattr("sysconfig.get_paths", lambda: paths)

    def names(train: bool, **options: Any) -> set[bytes]:
        sources = data.build("python_sources", length=5, **options)
        assert isinstance(sources, ByteSequences)
        return set(bytes(sources._texts[train].tolist()).split(b"]")) - {b""}

    splits = [names(True, packages=True), names(False, packages=True), names(False, packages=True, tested="validation")]
    assert all(splits) and len(set.union(*splits)) == sum(map(len, splits)) == 200
    assert len(names(True) | names(False)) == 100, "without packages: the standard library alone"
    assert names(False) <= splits[1], "its test files stay test files"
    with pytest.raises(UserError, match=r"data.tested: 'validation' needs data.packages=true"):
        data.build("python_sources", tested="validation")
    with pytest.raises(UserError, match=r"data.tested: is one of test, validation, got 'x'"):
        data.build("python_sources", tested="x")
    with pytest.raises(UserError, match=r"data.test_bytes: the test split has \d+, got 1000000"):
        data.build("python_sources", length=5, test_bytes=10**6)
