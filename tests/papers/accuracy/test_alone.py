"""Short runs that have the machine for themselves: which they are, and how they stand for what whole runs compute."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from papers.accuracy.alone import STEPS, SUFFIX, alone, timed
from papers.accuracy.modern import HALF, OTHER_DENSE
from papers.accuracy.modern import STEPS as WHOLE
from papers.accuracy.report import methods_of
from papers.accuracy.run import planned
from papers.accuracy.task import Task
from papers.accuracy.tasks import MODERN, TASKS
from papers.accuracy.times import mean_pace, yardstick
from papers.series import options_of
from tests.papers import verb
from tests.papers.accuracy.test_modern import put, put_alone, record
from wirebench.compose.resolve import resolve
from wirebench.errors import UserError

pytestmark = pytest.mark.sampled(1)

report = verb.report("accuracy")


@pytest.mark.parametrize("task", MODERN, ids=lambda task: task.name)
def test_every_method_runs_once_and_shortly_unless_its_steps_change(task: Task) -> None:
    part = TASKS[f"{task.name}{SUFFIX}"]
    chosen = alone(part, None)
    assert [each.label for each in chosen] == [label for label in task.settings if label not in OTHER_DENSE]
    for each in chosen:
        config = resolve(part.composed(each))
        changes = config.compressor.name == "zero_one_adam"
        usual = 0 if task.name == "gpt" else WHOLE[task.name]
        assert config.train.max_steps == (usual if changes else STEPS), each.label
        assert not config.compressor.warmup and config.train.warmup_steps == 5
    with pytest.raises(UserError, match=f"--methods: {HALF} computes as dense does; name that"):
        alone(part, [HALF])
    options = options_of("accuracy", ["--methods", "dense", HALF, "topk"])
    assert [each.folder for each in planned(options, part)] == ["dense-0", "topk-0"]


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
    put_alone(tmp_path, "dense", 0, computing(0.2, 0.0, 0.1))
    put_alone(tmp_path, "topk", 0, computing(0.3, 0.15, 0.1))
    put_alone(tmp_path, "bf16", 0, computing(0.3, 0.15, 0.5))
    methods = {each.label: each for each in methods_of(tmp_path / "today/gpt")}
    by = yardstick(list(methods.values()), timed(tmp_path / "today/gpt", list(methods.values())))
    paces = {label: mean_pace(method, 100.0, by) for label, method in methods.items()}
    seconds = {label: None if each is None else each.computing for label, each in paces.items()}
    assert by.passes == 0.25 and by.words.startswith("the median of 2 runs, 200 to 300, beside which at most 0.10 of 2")
    # A method's update and compressor beside passes of its own, as far as these differ from the median.
    assert seconds == {"bf16": None, **{label: pytest.approx(0.2525) for label in ("dense", HALF)},
                       "topk": pytest.approx(0.25 + 0.153 * 0.25 / 0.3)}  # fmt: skip
    assert report(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "today/gpt" / "table.md").read_text()
    assert "Refused are the times of bf16-0, which break the rule of load." in text
    beside = (tmp_path / "today/gpt_times" / "table.md").read_text()
    assert "| topk | 300.0 | 3.00 | 150.00 | 0.10 of 2 |" in beside and "; load: bf16;" in beside


def test_another_setting_or_machine_is_refused(tmp_path: Path) -> None:
    usual = ["train.epochs=1", "output.health_every=0", "compressor.name=topk", "compressor.density=0.01"]
    whole = ["train.seed=1", "train.max_steps=3120", "compressor.warmup=[0.25]"]
    put(tmp_path, "topk", 1, computing(0.4, 0.0, 1.0), launch=launch(*usual, *whole))
    short = [*usual, "train.seed=0", "train.max_steps=35", "compressor.warmup=[]"]

    def beside(settings: list[str], **more: Any) -> None:
        shutil.rmtree(tmp_path / "today/gpt_times", ignore_errors=True)
        made = computing(0.3, 0.1, 0.1)
        made["environment"] |= more
        put_alone(tmp_path, "topk", 0, made, launch=launch(*settings))

    methods = methods_of(tmp_path / "today/gpt")
    beside(short)
    assert timed(tmp_path / "today/gpt", methods).keys() == {"topk"}
    beside([*short, "compressor.values=fp16"])
    with pytest.raises(UserError, match=r"topk-0 has other settings than topk-1: compressor.values=fp16"):
        timed(tmp_path / "today/gpt", methods)
    beside(short, cpu={"model": "Another", "cores": 2})
    with pytest.raises(UserError, match=r"topk-0 is of Another with 2 cores, and topk-1 of "):
        timed(tmp_path / "today/gpt", methods)


def launch(*words: str) -> str:
    return shlex.join(["python", "train.py", "a.toml", *words])
