"""Short runs that have the machine for themselves: which they are, and how they stand for what whole runs compute."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from papers.runner import ROOT
from papers.series import options_of
from papers.today.alone import STEPS, TIMES, alone, timed
from papers.today.report import methods_of
from papers.today.run import Traced, completed, planned
from papers.today.tasks import HALF, OTHER_DENSE, SETTINGS
from papers.today.tasks import STEPS as WHOLE
from papers.today.times import mean_pace, yardstick
from tests.papers import verb
from tests.papers.today.test_today import put, record
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError

pytestmark = pytest.mark.sampled(1)

report = verb.report("today")


@pytest.mark.parametrize("part", TIMES)
def test_every_method_runs_once_and_shortly_unless_its_steps_change(part: str) -> None:
    task = TIMES[part]
    chosen = alone(task, None)
    assert [each.label for each in chosen] == [label for label in SETTINGS[task.name] if label not in OTHER_DENSE]
    for each in chosen:
        config = resolve(loader.load(ROOT / task.config, list(Traced(task, each, 0, (), None).words)))
        changes = config.compressor.name == "zero_one_adam"
        usual = 0 if task.name == "gpt" else WHOLE[task.name]
        assert config.train.max_steps == (usual if changes else STEPS), each.label
        assert not config.compressor.warmup and config.train.warmup_steps == 5
    with pytest.raises(UserError, match=f"--methods: {HALF} computes as dense does; name that"):
        alone(task, [HALF])
    options = completed(options_of("today", ["--task", part, "--methods", "dense", HALF, "topk", "--data", "x"]))
    cells = [each for each in planned(options, part) if isinstance(each, Traced)]
    assert [(each.method.label, each.seed) for each in cells] == [("dense", 0), ("topk", 0)]


def computing(passes: float, compress: float, others: float, **more: Any) -> dict[str, Any]:
    made = record(2.0, 1.0) | more
    made["phases"] |= {"forward": passes, "backward": 0.0, "update": 0.01 * passes, "compress": compress}
    made["load"][0]["others_cores"] = others
    return made


def test_computing_is_that_of_the_run_that_was_alone(tmp_path: Path) -> None:
    put(tmp_path, "dense", 0, computing(0.4, 0.0, 1.0))
    put(tmp_path, HALF, 0, computing(0.4, 0.0, 1.0))
    put(tmp_path, "topk", 0, computing(0.4, 0.9, 1.0))
    put(tmp_path, "bf16", 0, computing(0.4, 0.9, 1.0))
    put(tmp_path / "short", "dense", 0, computing(0.2, 0.0, 0.1))
    put(tmp_path / "short", "topk", 0, computing(0.3, 0.15, 0.1))
    put(tmp_path / "short", "bf16", 0, computing(0.3, 0.15, 0.5))
    (tmp_path / "short" / "gpt").rename(tmp_path / "gpt_times")
    methods = {each.label: each for each in methods_of(tmp_path / "gpt")}
    by = yardstick(list(methods.values()), timed(tmp_path / "gpt", list(methods.values())))
    paces = {label: mean_pace(method, 100.0, by) for label, method in methods.items()}
    seconds = {label: None if each is None else each.computing for label, each in paces.items()}
    assert by.passes == 0.25 and by.words.startswith("the median of 2 runs, 200 to 300, beside which at most 0.10 of 2")
    # A method's update and compressor beside passes of its own, as far as these differ from the median.
    assert seconds == {"bf16": None, **{label: pytest.approx(0.2525) for label in ("dense", HALF)},
                       "topk": pytest.approx(0.25 + 0.153 * 0.25 / 0.3)}  # fmt: skip
    assert report(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "gpt" / "table.md").read_text()
    assert "Refused are the times of bf16-0, which break the rule of load." in text
    beside = (tmp_path / "gpt_times" / "table.md").read_text()
    assert "| topk | 300.0 | 3.00 | 150.00 | 0.10 of 2 |" in beside and "; load: bf16;" in beside


def test_another_setting_or_machine_is_refused(tmp_path: Path) -> None:
    usual = ["train.epochs=1", "output.health_every=0", "compressor.name=topk", "compressor.density=0.01"]
    words = [*usual, "train.seed=1", "train.max_steps=3120", "compressor.warmup=[0.25]"]
    put(tmp_path, "topk", 1, computing(0.4, 0.0, 1.0), settings=words)
    short = [*usual, "train.seed=0", "train.max_steps=35", "compressor.warmup=[]"]
    (tmp_path / "gpt_times").mkdir()

    def beside(settings: list[str], **more: Any) -> None:
        place = put(tmp_path / "short", "topk", 0, computing(0.3, 0.1, 0.1), settings=settings)
        made = json.loads((place / "record.json").read_text())
        made["environment"] |= more
        (place / "record.json").write_text(json.dumps(made))
        shutil.rmtree(tmp_path / "gpt_times")
        (tmp_path / "short" / "gpt").rename(tmp_path / "gpt_times")

    methods = methods_of(tmp_path / "gpt")
    beside(short)
    assert timed(tmp_path / "gpt", methods).keys() == {"topk"}
    beside([*short, "compressor.values=fp16"])
    with pytest.raises(UserError, match=r"topk-0 has other settings than topk-1: compressor.values=fp16"):
        timed(tmp_path / "gpt", methods)
    beside(short, cpu={"model": "Another", "cores": 2})
    with pytest.raises(UserError, match=r"topk-0 is of Another with 2 cores, and topk-1 of "):
        timed(tmp_path / "gpt", methods)
