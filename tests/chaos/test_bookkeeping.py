"""Trials of faults: which comes when, what counts as named, lost and recovered, what is kept, and goodput."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from filelock import FileLock

from wirebench.chaos import calls, campaign, figures, rank, report, trial
from wirebench.chaos.campaign import Campaign
from wirebench.chaos.faults import FAULTS, NEIGHBOURS
from wirebench.chaos.job import FOLDER, JobLine, JobSetting, JobStep
from wirebench.cli.main import main
from wirebench.errors import UserError
from wirebench.training.elastic import changes

TEN = Campaign(JobSetting(), tuple(FAULTS), 60.0, 1)


def steps(*points: tuple[float, int, int]) -> list[JobStep]:
    return [JobStep(*point) for point in points]


def line(kind: str, images: int, seconds: float, **more: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"number": 0, "host": "h1", "hang": False, "started_anew": False, "due_to_name": 0}
    usual |= {"named_by": 0, "name_seconds": None, "pause_seconds": 1.0, "wait_seconds": 4.0, "images_redone": 0}
    usual |= {"whole_seconds": 1.0, "lost_residual": 0.0, "calm_images_per_second": 300.0, "load": []}
    return {**usual, "kind": kind, "images": images, "seconds": seconds, **more}


def test_every_turn_has_each_kind_once_and_waits_are_as_long_as_asked_for() -> None:
    planned = [TEN.trial(number) for number in range(40 * len(FAULTS))]
    for start in range(0, len(planned), len(FAULTS)):
        assert sorted(each.kind for each in planned[start : start + len(FAULTS)]) == sorted(FAULTS)
    assert [each.kind for each in planned[: len(FAULTS)]] != [
        each.kind for each in planned[len(FAULTS) :][: len(FAULTS)]
    ]
    assert {each.host for each in planned} == {"h0", "h1", "h2", "h3"}
    assert sum(each.wait_seconds for each in planned) / len(planned) == pytest.approx(60, rel=0.15)
    assert planned[7] == TEN.trial(7) != TEN._replace(seed=2).trial(7)


def test_a_cause_is_named_only_by_those_who_have_to_and_only_if_it_is_the_right_one() -> None:
    said = [
        JobLine(10.0, "h1", "error: rank 1: lost rank 2 (pid 7 on h2) at step 9 (Connection closed)"),
        JobLine(11.0, "h2", "error: rank 2: lost rank 2 (pid 7 on h2)"),
        JobLine(12.0, "h0", "error: rank 0: lost rank 3 (pid 8 on h3) at step 9 (Connection closed)"),
        JobLine(12.5, "h0", "error: rank 0: lost rank 0 (pid 5 on h0), rank 2 (pid 7 on h2) at step 9 (silent)"),
        JobLine(13.0, "h3", "error: rank 3: lost rank 2 (pid 7 on h2), which a signal has stopped at step 9 (silent)"),
    ]
    killed = trial.Trial(0, "sigkill", "h2", 1.0)
    job: Any = SimpleNamespace(setting=JobSetting(hosts=4))
    assert trial._naming(job, killed, said, 9.0) == {"due_to_name": 3, "named_by": 2, "name_seconds": None}
    said.append(JobLine(14.0, "h0", "error: rank 0: lost rank 2 (pid 7 on h2) at step 9 (Connection closed)"))
    assert trial._naming(job, killed, said, 9.0)["name_seconds"] == 5.0
    assert trial._naming(job, killed._replace(kind="slow_rank"), said, 9.0)["due_to_name"] == 0


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ("layer linear.bias", True),
        ("layers linear.bias to conv.weight (4)", True),
        ("layer conv.bias", False),
        ("layer linear.bias2", False),
    ],
)
def test_a_gradient_that_is_not_finite_is_named_by_the_layer_that_was_spoiled(layers: str, named: bool) -> None:
    told = f"error: rank 0: step 40: the gradient of {layers} is not finite"
    assert FAULTS["nan"].names(told, "h1") == named
    assert not FAULTS["nan"].names("error: rank 0: step 40: the loss is nan", "h1")


def test_a_pause_ends_with_a_step_that_was_not_done_before() -> None:
    before = steps((1.0, 32, 4), (1.1, 64, 4), (1.2, 96, 4))
    after = steps(
        (1.3, 128, 4), (7.0, 80, 3), (7.1, 104, 3), (7.2, 128, 3), (7.3, 152, 3), (9.5, 176, 4), (9.6, 208, 4)
    )
    assert max(trial._pauses(before, after)) == pytest.approx(6.0)
    assert trial._redone(before, after) == 48
    assert trial._whole_again(after, 1.25, 4) == pytest.approx(8.25)
    assert trial._pauses(before, []) == [0.0]


def test_the_whole_world_has_to_make_some_steps_in_a_row() -> None:
    job: Any = SimpleNamespace(setting=JobSetting(hosts=2), steps=steps((1, 8, 2), (2, 16, 1), (3, 24, 2), (4, 32, 2)))
    assert trial.whole(job, 2.5, 2) and not trial.whole(job, 2.5, 3) and not trial.whole(job, 3.5, 2)


@pytest.mark.parametrize(("share", "seen"), [(0.246, 0.246), (None, 1.0)])
def test_lost_residuals_are_read_from_what_rank_0_says(share: float | None, seen: float) -> None:
    change = {"step": 20, "workers_before": 4, "workers": 3, "lost_ranks": [2], "lost_residual": share}
    assert trial._lost(changes.in_words(change)) == pytest.approx(seen)
    assert trial._lost(changes.in_words(change | {"lost_ranks": []})) == 0
    anew = changes.from_nothing(0, 4, [{}, {"at": 1.0, "step": 7.0, "size": 4.0}], restored=False)
    assert (anew["steps_lost"], anew["lost_ranks"]) == (7, [0, 1, 2, 3])
    assert trial._lost(changes.in_words(anew, restored=False)) == 1.0


@pytest.mark.parametrize(("again", "anew"), [(15, False), (16, True), (40, True)])
def test_a_job_that_starts_anew_has_lost_all(again: int, anew: bool) -> None:
    """Four workers of eight images; 41 steps before the fault, of which some are done again."""
    before = steps(*((float(n), 32 * n, 4) for n in range(1, 42)))
    job: Any = SimpleNamespace(setting=JobSetting(hosts=4), steps=[*before, JobStep(50.0, 32 * (41 - again), 4)])
    found = trial._measured(job, before, [], 45.0, recovered=True)
    assert (found["started_anew"], found["lost_residual"]) == (anew, float(anew))


class Absent:
    """A job of which nothing is there any more; `gone`: it ends just before a signal comes."""

    def __init__(self, gone: bool) -> None:
        self.steps, self.lines, self.setting = steps((1.0, 32, 4)), list[JobLine](), JobSetting()
        self.process = SimpleNamespace(send_signal=self.gone, cpu_affinity=self.gone) if gone else None
        self.disk = Path("/no/such/folder")

    def gone(self, *words: object) -> None:
        raise psutil.NoSuchProcess(7)

    def lose(self, host: str) -> bool:
        return False

    def rank_of(self, host: str) -> Any:
        return self.process

    launcher_of = rank_of

    def look(self) -> None:
        return None


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("kind", ["sigkill", "gil", "nan", "slow_rank", "launcher", "host", "disk_full"])
def test_a_fault_without_a_process_to_hit_is_not_delivered(kind: str, gone: bool) -> None:
    job: Any = Absent(gone)
    assert FAULTS[kind].deliver(job, "h1") is None
    assert trial.run(job, trial.Trial(0, kind, "h1", 0.0), 0.0) is None


def test_a_launcher_that_is_not_replaced_is_a_hang() -> None:
    """All ranks make steps, the victim's, which is the same as before, too."""
    job: Any = Absent(gone=False)
    job.process = SimpleNamespace(send_signal=lambda number: None)
    made = iter(range(2, 10_000))
    job.look = lambda: job.steps.append(JobStep(time.monotonic(), 32 * next(made), 4))
    found = trial.run(job, trial.Trial(0, "launcher", "h1", 0.0), 0.2) or {}
    assert found["hang"]
    assert found["calm_images_per_second"] > 10, "of the steps of the wait alone: the one before it is from second 1"


def test_images_are_those_of_whole_epochs_and_of_this_one() -> None:
    shard = SimpleNamespace(
        worker_steps=lambda epoch, steps: 4 * steps, batch_size=8, dataset=SimpleNamespace(train_size=1000)
    )
    run: Any = SimpleNamespace(workers=[SimpleNamespace(shard=shard)], step=65, steps_per_epoch=31)
    assert rank.images(run, 2) == 2 * 1000 + 3 * 32


def test_a_fault_is_undone_where_its_trial_is_stopped() -> None:
    """The rank is this very process, which gets its cores back; its neighbours are gone."""
    me, job = psutil.Process(), cast(Any, Absent(gone=False))
    before, cores, job.process = me.children(), me.cpu_affinity(), me

    def stop() -> None:
        if len(me.children()) == len(before) + NEIGHBOURS:
            raise KeyboardInterrupt

    job.look = stop
    with pytest.raises(KeyboardInterrupt):
        trial.run(job, trial.Trial(0, "slow_rank", "h1", 0.0), 1.0)
    assert me.children() == before and me.cpu_affinity() == cores


def test_goodput_and_percentiles() -> None:
    assert [figures.percentile([4.0, 1.0, 3.0, 2.0], share) for share in (0.5, 0.95, 0.25)] == [2.0, 4.0, 1.0]
    lines = [line("none", 3000, 10.0), line("sigkill", 6000, 25.0), line("nan", 0, 5.0, hang=True)]
    assert figures.calm_rate(lines) == 300.0 and figures.calm_rate(lines[1:]) == 300.0
    assert figures.goodput(lines[1:], 300.0) == pytest.approx(20 / 30)
    assert [figures.cost(each, 300.0) for each in lines] == [0.0, 5.0, 5.0]
    shown = report.report_of([*lines, line("slow_link", 300, 1.0)], TEN.header()).lines
    assert "A fault costs 3.3 s on average: extrapolated to one a minute, a goodput of 94%." in shown
    assert "No host must name slow_link: no rank is lost; the job continues." in shown
    assert [row.split(" | ")[:4] for row in shown[2:7]] == [
        ["| sigkill", "1", "0", "0"], ["| slow_link", "1", "0", "0"], ["| nan", "1", "1", "0"],
        ["| all", "3", "1", "0"], ["| none", "1", "0", "0"],
    ]  # fmt: skip


def test_a_calls_load_is_that_of_all_waits_and_beginnings_in_it() -> None:
    def load(seconds: float, others: float) -> list[dict[str, Any]]:
        return [{"seconds": seconds, "others_cores": others, "steal": 0.0, "load_average": [others, 3.0], "ranks": [0]}]

    loads = [load(10.0, 1.9), load(0.0, 1e9), load(10.0, 0.1), load(30.0, 0.5)]
    lines = [line("sigkill", 1, 1.0, number=number, load=load) for number, load in enumerate(loads)]
    first, second = calls.begun(0, 4), calls.begun(1, 4)
    assert calls.with_loads([first], [])[0]["load"] is None
    second["beginnings"].append(load(10.0, 0.5))
    [old, new] = calls.with_loads([first, second], lines)
    assert (old["load"][0]["others_cores"], new["load"][0]["seconds"]) == (1.9, 50)
    assert new["load"][0]["others_cores"] == pytest.approx(0.42) and new["load"][0]["load_average"] == [0.5, 3.0]
    assert new["environment"]["hosts"][0]["ranks"] == [0, 1, 2, 3]


GOOD = line("sigkill", 15000, 55.0, due_to_name=3, named_by=3, name_seconds=0.5)


@pytest.mark.parametrize(
    ("change", "header", "line_of_it"),
    [
        ({"hang": True}, {}, "NOT HELD: hangs 0: 1 in 3 trials"),
        ({"hang": True}, {"elastic": False}, "NOT HELD: hangs 0: 1 in 3 trials"),
        ({"named_by": 2, "name_seconds": None}, {}, "NOT HELD: every cause named within engine.timeout_seconds (4 s): "
         "1 of 2 (1 named by all)"),
        ({"name_seconds": 4.5}, {}, "NOT HELD: every cause named within engine.timeout_seconds (4 s): 1 of 2 (2 named"),
        ({"lost_residual": 1.0, "started_anew": True}, {}, "NOT HELD: lost residual mass 0 with mirroring: 1 of it"),
        ({"pause_seconds": 10.5}, {}, "NOT HELD: recovery (longest pause) p95 <= 10 s: 10.5 s"),
        ({"images": 9000}, {}, "NOT HELD: goodput >= 88% at 60 s between faults: 72.7%, measured"),
        ({"images": 12000}, {"mtbf_seconds": 20.0}, "NOT HELD: goodput >= 88% at 60 s between faults: 83.3%, extrapol"),
    ],
)  # fmt: skip
def test_a_bound_that_is_not_held_is_named(change: dict[str, Any], header: dict[str, Any], line_of_it: str) -> None:
    usual = TEN.header()
    assert report.report_of([line("none", 3000, 10.0), GOOD, GOOD], usual).held
    told = report.report_of([line("none", 3000, 10.0), GOOD, {**GOOD, **change}], {**usual, **header})
    assert any(line_of_it in each for each in told.lines), told.lines
    assert told.held == (not any(each.startswith("- NOT HELD") for each in told.lines))


class Running:
    """A job that is whole at once, and of which nothing is started."""

    def __init__(self, folder: Path, setting: JobSetting) -> None:
        self.steps = steps(*((float(n), n, 4) for n in range(1, 40)))
        self.setting, self.folder = setting, folder
        self.lines: list[JobLine] = []

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def look(self) -> None:
        return None


def test_a_campaign_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    made: list[int] = []

    def one(job: Running, planned: trial.Trial, limit: float) -> dict[str, Any] | None:
        made.append(planned.number)
        if made.count(2) == 1 and planned.number == 2:
            return None  # not delivered
        return line(planned.kind, 300, 1.0, number=planned.number, host=planned.host, hang=planned.number == 1)

    monkeypatch.setattr(campaign, "running", Running)
    monkeypatch.setattr(campaign, "CALM_SECONDS", 0.1)
    monkeypatch.setattr(campaign.trials, "run", one)
    words = ["chaos", "--mtbf", "0.001", "--out", str(tmp_path)]
    assert main([*words, "--trials", "3"]) == 1  # the second one hangs, and the third has a job of its own
    assert main([*words, "--trials", "5"]) == 1 and made == [0, 1, 2, 2, 3, 4]  # one was not delivered at first
    kept = [json.loads(each) for each in (tmp_path / "elastic.jsonl").read_text().splitlines()]
    assert kept[0]["kind"] == "chaos" and [each["number"] for each in kept[1:]] == [0, 1, 2, 3, 4]
    assert [call["first"] for call in kept[0]["calls"]] == [0, 3]
    assert all({"git", "cpu", "hosts"} <= set(call["environment"]) for call in kept[0]["calls"])
    with FileLock(tmp_path / "elastic.lock"):
        assert main([*words, "--trials", "6"]) == 2
    assert "another `wirebench chaos` makes these trials now" in capsys.readouterr().err
    assert main([*words, "--trials", "6", "--seed", "3"]) == 2
    assert "has trials with seed 0, not 3" in capsys.readouterr().err
    assert main(["chaos", "--report", "--out", str(tmp_path)]) == 1
    assert "| all | " in (told := capsys.readouterr().out) and "- NOT HELD: hangs 0: 1 in 5 trials" in told
    monkeypatch.setattr(campaign.trials, "run", lambda job, planned, limit: None)
    assert main([*words, "--trials", "6"]) == 2
    assert "cannot be delivered to h" in capsys.readouterr().err.splitlines()[-1]


def test_a_rank_with_an_injector_is_started_by_chaos_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(UserError, match="started by `wirebench chaos` alone"):
        rank.main(["configs/smoke.toml"])
