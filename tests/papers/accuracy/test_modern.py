"""The methods of today: what is trained with what, the curve in a run's note, times, and the front."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from papers.accuracy.curve import WINDOW, Pace, curve_of, pace
from papers.accuracy.figures import MOST_POINTS, windows
from papers.accuracy.modern import DENSE, EIGHTH, HALF, LARGER, QUARTER, QUICK, STEPS
from papers.accuracy.report import methods_of
from papers.accuracy.run import chosen, planned
from papers.accuracy.task import Task, listed
from papers.accuracy.tasks import GPT, MODERN, RESNET, TASKS
from papers.accuracy.times import beside_dense, equal_time, front, fronts, mean_pace, sides, yardstick
from papers.series import options_of
from tests.flexreduce import run_record
from tests.papers import verb
from tests.papers.records import write
from wirebench import compressors
from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.notes import NotedRun

pytestmark = pytest.mark.sampled(7)

run, report = verb.run("accuracy"), verb.report("accuracy")


def record(loss: float, megabytes: float, **sections: dict[str, Any]) -> dict[str, Any]:
    """A run with this final loss, in which a worker sent so much."""
    made = run_record("2+2")
    made["config"].pop("compressor", None)
    made["config"] |= {"data": {"name": "python_sources", "batch_size": 8}, "train": {"epochs": 1}}
    made["config"] |= {"optimizer": {"lr": 0.3}, "model": {"name": "gpt"}, **sections}
    made["load"] = [{"hostname": "a", "cores": 2, "others_cores": 0.1, "steal": 0.0}]
    made["history"] = [
        {"epoch": 0, "seconds": 1.0, "loss": loss, "top1": 0.5, "top5": 0.6, "test_loss": loss,
         "seconds_total": 1.0, "wire_bytes_total": 1e6 * megabytes}
    ]  # fmt: skip
    made["final"] = {"loss": loss, "top1": 0.5, "top5": 0.6}
    made["warnings"] = []
    made["requests"] = [{"kind": "Sum", "plan": "native", "rounds": 6, "bytes": 40, "payload_bytes": 40}]
    return made


def put(
    folder: Path, label: str, seed: int, made: dict[str, Any], part: str = "gpt", series: str = "today", **more: object
) -> Path:
    made["config"]["train"] = {**made["config"]["train"], "seed": seed}
    sent = made["history"][-1]["wire_bytes_total"]
    curve = [[30, 5.0, sent / 2], [60, made["final"]["loss"], sent]]
    usual: dict[str, object] = {"seed": seed, "curve": curve, "last_bytes": sent / 60, "rounds": 60}
    return write(folder / series / part / f"{label}-{seed}", made, **{**usual, **more})


put_rate, put_alone = (functools.partial(put, part=part) for part in ("gpt_rates", "gpt_times"))


@pytest.mark.parametrize("task", MODERN, ids=lambda task: task.name)
def test_the_methods_of_today_and_the_classics_are_trained(task: Task) -> None:
    methods = listed(task, None)
    trained = {task.composed(each).compressor.name for each in methods}
    updates = {name for name in compressors.available() if compressors.class_of(name).makes_update}
    wanted = updates | {"none", "bf16", "topk", "powersgd", "gs_sgd", "chunk_topk", "quantised_sum"}
    assert trained >= wanted | ({"dgc"} if task is RESNET else set())
    assert all(task.composed(each).output.health_every == 0 for each in methods)
    assert set(QUICK) <= GPT.settings.keys()


@pytest.mark.parametrize(("label", "share"), [(DENSE, 1), (HALF, 2), (QUARTER, 4), (EIGHTH, 8)])
def test_shorter_training_has_a_share_of_the_tokens_and_cools_down(label: str, share: int) -> None:
    for task in MODERN:
        config = task.composed(listed(task, [label])[0])
        steps = config.train.max_steps
        if task is GPT:
            steps = (config.data.options["train_bytes"] // config.data.options["length"] - 1) // (8 * 4)
            assert steps * config.optimizer.warmup_epochs == pytest.approx(21, rel=1e-5)
        else:
            assert config.train.epochs * share == task.epochs, "its schedule ends there"
        assert steps == STEPS[task.name] // share


@pytest.mark.parametrize("label", LARGER)
def test_larger_batches_have_all_tokens_in_fewer_steps(label: str) -> None:
    config = GPT.composed(listed(GPT, [label])[0])
    times = config.train.accumulation
    assert label.endswith(f"={times}") and config.data.batch_size == 8 * times
    assert config.data.options["train_bytes"] // config.data.options["length"] // (8 * 4) == STEPS["gpt"]
    assert STEPS["gpt"] / times * config.optimizer.warmup_epochs == pytest.approx(21)


def test_a_step_of_several_backward_passes_takes_as_many_and_hides_what_one_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes of 2 s, of which the backward one takes 1.5 s; 0.1 s of an update; an exchange of 5 s."""
    monkeypatch.setattr("papers.accuracy.curve.exchange_seconds", lambda run, gbit: 5.0)
    note = {"curve": [[20, 2.0, 2e5]], "last_bytes": 1e4, "rounds": 20}
    for times in (1, 3):
        made = record(2.0, 1.0, train={"epochs": 1, "accumulation": times}, scheduler={"name": "sync_easgd"})
        spent = {"forward": 0.5 * times, "backward": 1.5 * times, "update": 0.1, "compress": 0.0}
        made["phases"] |= {name: made["world_size"] * seconds for name, seconds in spent.items()}
        made["engine"] = "local"
        found = pace(NotedRun(tmp_path, note, made), 1.0, 2.0)
        assert found == pytest.approx((2.0 * times + 0.1, 5.0, 0.0, 3.5))


def test_images_and_parts_without_the_methods_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert [task.name for task in chosen(options_of("accuracy", []))] == ["gpt", "gpt_rates", "gpt_times"]
    said = "left out without --data: resnet, resnet_rates, resnet_times, quick, resnet20\n"
    assert capsys.readouterr().err == said
    some = ["--task", "gpt", "gpt_rates", "gpt_times", "digits", "--methods", "demo", "topk of steps"]
    assert [task.name for task in chosen(options_of("accuracy", some))] == ["gpt", "gpt_rates", "gpt_times"]
    assert capsys.readouterr().err == "left out without one of the methods: digits\n"
    at_others = planned(options_of("accuracy", some), TASKS["gpt_rates"])
    assert [each.folder for each in at_others] == ["demo-lr=0.00033-0", "demo-lr=0.003-0"]
    with pytest.raises(UserError, match="--methods: no 'demo'; there is: dense, topk, gs_sgd, "):
        chosen(options_of("accuracy", ["--task", "digits", "--methods", "demo"]))


def test_runs_keep_their_curve_and_are_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def made(told: Mapping[str, str]) -> dict[str, Any]:
        lines = [{"step": n, "loss": 1.0, "wire_bytes": 10.0} for n in range(WINDOW + 1)]
        (Path(told["output.dir"]) / "steps.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
        return record(2.0, 0.00062)

    launch = verb.Trains(made)
    words = ["--task", "gpt", "--methods", "dense", "demo", "--seeds", "0", "--out", str(tmp_path), "--steps", "31"]
    assert run(words, launch) == 0 and launch.started == ["gpt/dense-0", "gpt/demo-0"]
    there = recorded.at(tmp_path / "today/gpt/demo-0")
    assert there is not None and not there.files
    note = there.note
    # The first worker sent 310 bytes, the mean worker twice as many.
    assert [cell for point in note["curve"] for cell in point] == pytest.approx([30, 1.0, 600.0, 31, 1.0, 620.0])
    assert note["last_bytes"] == pytest.approx(20.0) and note["rounds"] == 0
    assert (tmp_path / "today/gpt" / "table.md").exists() and (tmp_path / "today/gpt" / "bytes.svg").exists()
    assert run(words, launch) == 0 and len(launch.started) == 2
    assert run([*words[:-1], "32"], launch) == 2 and len(launch.started) == 2
    assert "dense-0: launch is 'train.max_steps=31', and 'train.max_steps=32' is asked for" in capsys.readouterr().err
    assert run([*words[:-1], "32", "--again"], launch) == 0 and len(launch.started) == 4


@pytest.mark.parametrize(("content", "said"), [("{", ""), ('{"step": 1}\n', "'wire_bytes'")])
def test_the_curve_of_a_file_that_is_damaged_is_one_line(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text(content)
    with pytest.raises(UserError, match=rf"steps\.jsonl: cannot be read: .*{said}"):
        curve_of(tmp_path / "steps.jsonl", None)


def test_a_step_costs_what_the_mean_step_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange of 30 bytes takes 6 s, a mean step sends 1. Delayed by a step of 2 s, a third of it is hidden."""

    def noted(delay: int, last: float, scheduler: str = "outer", **more: int) -> NotedRun:
        made = record(2.0, 1.0, scheduler={"name": scheduler, "delay": delay})
        return NotedRun(Path(), {"curve": [[40, 2.0, 40.0]], "last_bytes": last, **more}, made)

    monkeypatch.setattr("papers.accuracy.curve.exchange_seconds", lambda run, gbit: 6.0)
    monkeypatch.setattr("papers.accuracy.curve.computing_seconds", lambda run, passes: 2.0)
    plain = pace(noted(0, 30.0), 1.0, 0.0)
    assert plain is not None and plain == pytest.approx((2.0, 0.2, 0.0, 0.2)) and plain.seconds == pytest.approx(2.2)
    assert pace(noted(1, 30.0), 1.0, 0.0) == pytest.approx((2.0, 0.2 * 2 / 3, 0.2 / 3, 0.2 * 2 / 3))
    assert pace(noted(9, 30.0), 1.0, 0.0) == pytest.approx((2.0, 0.0, 0.2, 0.0))
    # Of passes of 5 s the backward one takes 3: half of the exchange could lie beside it.
    assert pace(noted(0, 30.0, "sync_easgd"), 1.0, 5.0) == pytest.approx((2.0, 0.2, 0.0, 0.1))
    assert pace(noted(0, 0.0), 1.0, 0.0) is None, "it ended before an exchange whose cost its record would have"
    assert pace(noted(0, 4.0, rounds=20), 1.0, 0.0) is None, "four bytes with which ranks agree are no round"


def test_a_part_of_a_run_takes_as_much_of_its_exchanges_as_it_sends() -> None:
    """60 steps of 2 s with 30 s of exchanges, two thirds of which belong to the 20 dense steps at the begin."""
    last, mean = [60, 2.0, 30.0], Pace(2.0, 0.5, 0.0, 0.5)
    assert mean.until([20, 3.0, 20.0], last) == pytest.approx(40 + 20)
    assert mean.until(last, last) == pytest.approx(60 * mean.seconds)
    assert Pace(2.0, 0.0, 0.0, 0.0).until([20, 3.0, 0.0], [60, 2.0, 0.0]) == 40


def test_nobody_on_the_front_is_beaten_in_both() -> None:
    points = {"a": (1.0, 5.0), "b": (2.0, 4.0), "c": (3.0, 4.5), "d": (2.0, 4.5), "e": (9.0, 1.0)}
    assert front(points) == ["a", "b", "e"]
    near = {"a": (0.99, 5.0), "b": (1.0, 4.0), "c": (1.05, 3.0), "d": (1.07, 2.0)}
    assert front(near) == ["a", "b", "c", "d"] and front(near, 0.02) == ["b", "d"]


def test_a_front_is_of_whole_runs(tmp_path: Path) -> None:
    """A step of dense training on half of the tokens takes as long as one on all, and its run half as long."""
    for seed, wobble in enumerate((-0.001, 0.0, 0.001)):
        put(tmp_path, DENSE, seed, record(2.0 + wobble, 1.0))
        put(tmp_path, HALF, seed, record(2.3 + wobble, 0.5), curve=[[30, 2.3, 5e5]], last_bytes=5e5 / 30)
        put(tmp_path, "topk", seed, record(2.4 + wobble, 0.1))
    methods = methods_of(tmp_path / "today/gpt")
    text = "\n".join(fronts(methods, yardstick(methods)))
    assert "| time at 100 Gbit/s | 3 of 3 | dense half, dense | - |" in text
    assert "| bytes | 3 of 3 | topk, dense half, dense | - |" in text


def test_nothing_stands_in_for_a_dense_run_without_a_time(tmp_path: Path) -> None:
    """What topk's loss is to be held against at its end nobody knows, for want of a quiet dense run."""
    for seed, wobble in enumerate((-0.001, 0.0, 0.001)):
        busy = record(2.0 + wobble, 1.0)
        busy["load"][0]["others_cores"] = 1.5
        put(tmp_path, DENSE, seed, busy)
        put(tmp_path, HALF, seed, record(2.3 + wobble, 0.5), curve=[[30, 2.3, 5e5]], last_bytes=5e5 / 30)
        put(tmp_path, "topk", seed, record(2.4 + wobble, 1.0))
    methods = methods_of(tmp_path / "today/gpt")
    assert equal_time(methods, yardstick(methods))[0].startswith("Nothing is compared with dense training")


@pytest.mark.parametrize(
    ("took", "seeds", "name", "ratio"),
    [
        (8.0, 3, LARGER[0], 2.2 / 2.05),
        (8.0, 2, "between dense half and dense", 2.2 / 2.0880),
        (6.0, 3, "between dense half and dense", 2.2 / 2.2125),
        (6.9, 3, LARGER[0], 2.2 / 2.05),
        (9.9, 3, DENSE, 1.1),
        (12.0, 3, DENSE, 1.1),
    ],
)
def test_dense_training_in_larger_batches_counts_once_it_is_over_and_better(
    took: float, seeds: int, name: str, ratio: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dense training takes 10 s, a half of it 5 s, and in larger batches 7 s; with too few seeds that says nothing.

    What takes 2 % longer takes no longer.
    """
    seconds = {DENSE: 10.0, HALF: 5.0, LARGER[0]: 7.0, "topk": took}
    monkeypatch.setattr("papers.accuracy.times.run_seconds", lambda method, *_: seconds[method.label])
    for seed, wobble in enumerate((-0.001, 0.0, 0.001)):
        for label, loss in ((DENSE, 2.0), (HALF, 2.3), ("topk", 2.2), (LARGER[0], 2.05)):
            if label != LARGER[0] or seed < seeds:
                put(tmp_path, label, seed, record(loss + wobble, 1.0))
    methods = methods_of(tmp_path / "today/gpt")
    dense, [topk] = sides(methods)
    found = beside_dense(topk, dense, 1.0, yardstick(methods), False)
    assert found is not None and found.name == name
    assert found.ratio == pytest.approx(ratio, rel=1e-4)


def test_a_method_that_clips_before_it_sends_has_no_exchange_beside_its_backward_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("papers.accuracy.curve.exchange_seconds", lambda run, gbit: 0.002)
    note = {"curve": [[60, 2.0, 6e6]], "last_bytes": 1e5, "rounds": 60}
    for name, clip, hides in (("dion", 1.0, False), ("dion", 0.0, True), ("topk", 1.0, True)):
        made = record(2.0, 6.0, compressor={"name": name}, optimizer={"lr": 0.1, "clip": clip})
        found = pace(NotedRun(tmp_path, note, made), 1.0, 0.01)
        assert found is not None and (found.least < found.exposed) == hides, name


def test_times_of_a_run_beside_other_work_are_refused(tmp_path: Path) -> None:
    for seed, passes in enumerate((0.3, 0.2, 0.1)):
        made = record(2.0, 1.0)
        made["phases"] |= {"forward": passes, "backward": 0.0, "update": 0.0, "compress": 0.0}
        made["load"][0]["others_cores"] = 1.5 if seed == 2 else 0.2
        put(tmp_path, "dense", seed, made)
    methods = methods_of(tmp_path / "today/gpt")
    by = yardstick(methods)
    assert by.passes == 0.25 and by.words == (
        "the median of 2 runs, 200 to 300, beside which at most 0.20 of 2 cores were busy with something else"
    )
    found = mean_pace(methods[0], 1.0, by)
    assert found is not None and found.computing == pytest.approx(0.25)
    assert report(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "today/gpt" / "table.md").read_text()
    assert "Refused are the times of dense-2, which break the rule of load." in text
    assert "Broken rules" in text and "load" not in text.partition("Broken rules")[2].partition("\n")[0]


def test_a_long_curve_is_drawn_with_means_of_several_windows() -> None:
    long = [[30 * (place + 1), float(place), 1e3 * (place + 1)] for place in range(MOST_POINTS + 2)]
    found = windows(long)
    assert len(found) == MOST_POINTS // 2 + 1 and found[0] == (long[1], 0.5) and found[-1][0] == long[-1]
    assert len(windows(long[:2])) == 2
