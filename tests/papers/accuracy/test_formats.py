"""Losses by wire format: which runs there are, in which order, and what the table says of them."""

from pathlib import Path

import pytest

from papers.accuracy import formats, sizes
from papers.accuracy.modern import DENSE
from papers.accuracy.run import planned
from papers.accuracy.tasks import BY_FORMAT, TASKS
from papers.series import options_of
from tests.papers import verb
from tests.papers.accuracy.test_modern import put, record
from wirebench.compose.resolve import collective_of, compressor_of, resolve
from wirebench.compressors.bits.narrow import FORMATS, PLAIN

report = verb.report("accuracy")
PART = "resnet_formats_4"


def test_every_format_is_trained_in_four_ways_on_few_and_on_many_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the same samples in a step on any number of workers, and the most telling rows first."""
    assert set(formats.FORMS) == {*FORMATS, *PLAIN} - {"fp32"}
    assert {task.name for task in BY_FORMAT} == {f"{of}_formats_{n}" for of in ("gpt_0.1m", "resnet") for n in (4, 32)}
    known = sizes.Searched(0.004, (0.001, 0.002, 0.004, 0.008, 0.016))
    monkeypatch.setattr(sizes, "found", lambda size: {DENSE: known} if size == "0.1m" else {})
    for task in BY_FORMAT:
        configs = {each.label: resolve(task.composed(each)) for each in task.known(["int8 feedback", "ring int8"], 0)}
        workers = int(task.name.rpartition("_")[2])
        assert {config.engine.workers for config in configs.values()} == {workers}
        assert {config.optimizer.lr for config in configs.values()} == {0.004 if "gpt" in task.name else 0.3}
        assert {config.data.batch_size * workers for config in configs.values()} == {32 if "gpt" in task.name else 128}
        method = compressor_of(configs["int8 feedback"])
        assert method.keeps == "rounded" and method.bounded_by == "form"
        assert getattr(collective_of(configs["ring int8"]), "unit", 0) == 256
    options = options_of("accuracy", ["--task", PART, "--data", str(tmp_path)])
    (first, *_) = runs = planned(options, TASKS[PART])
    assert first.folder == "dense-0" and runs[1].folder == "int8-0"
    assert len(runs) == 3 * (1 + 4 * len(formats.FORMS) + len(formats.RINGS))
    assert {"nvfp4-feedback-stochastic-2", "ring-bf16-1"} <= {each.folder for each in runs}


@pytest.mark.parametrize(
    ("ratios", "said", "interval"),
    [
        ((1.001, 1.002, 1.0), "as good", "+0.10 % [-0.15 to +0.35]"),
        ((1.02, 1.03, 1.025), "worse", "+2.50 % [+1.26 to +3.74]"),
        ((0.97, 1.03, 1.0), "not told apart", "+0.00 % [-7.45 to +7.45]"),
    ],
)
def test_a_loss_is_as_good_where_half_a_percent_is_excluded_seed_by_seed(
    ratios: tuple[float, ...], said: str, interval: str, tmp_path: Path
) -> None:
    """Seeds lie ten times as far apart as the margin."""
    for seed, ratio in enumerate(ratios):
        put(tmp_path, "dense", seed, record(2.0 + 0.1 * seed, 100.0), PART)
        put(tmp_path, "int8", seed, record((2.0 + 0.1 * seed) * ratio, 25.0), PART)
    assert report(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "today" / PART / "table.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| int8 |")]
    assert f"| {interval} | {said}" in row and "| 25 MB | 4x |" in row
