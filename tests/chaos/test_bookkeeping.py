"""Trials of faults: which comes when, what counts as named, lost and recovered, what is kept, and goodput."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

from suite.chaos import campaign, rank, report, trial
from suite.chaos.campaign import Campaign
from suite.chaos.faults import FAULTS
from suite.chaos.job import FOLDER, Line, Setting, Step
from suite.cli.main import main
from wirebench.errors import UserError

TEN = Campaign(Setting(), tuple(FAULTS), 60.0, 1)


def steps(*points: tuple[float, int, int]) -> list[Step]:
    return [Step(*point) for point in points]


def line(kind: str, images: int, seconds: float, **more: Any) -> dict[str, Any]:
    usual = {"hang": False, "due_to_name": 0, "named_by": 0, "name_seconds": None, "pause_seconds": 1.0}
    usual |= {"whole_seconds": 1.0, "lost_residual": 0.0, "calm_images_per_second": 300.0}
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
        Line(10.0, "h1", "error: rank 1: lost rank 2 (pid 7 on h2) at step 9 (Connection closed)"),
        Line(11.0, "h2", "error: rank 2: lost rank 2 (pid 7 on h2)"),
        Line(12.0, "h0", "error: rank 0: lost rank 3 (pid 8 on h3) at step 9 (Connection closed)"),
        Line(13.0, "h3", "error: rank 3: lost rank 0 (pid 5 on h0), rank 2 (pid 7 on h2) at step 9 (silent)"),
    ]
    killed = trial.Trial(0, "sigkill", "h2", 1.0)
    job: Any = SimpleNamespace(setting=Setting(hosts=4))
    assert trial._naming(job, killed, said, 9.0) == {"due_to_name": 3, "named_by": 2, "name_seconds": None}
    said.append(Line(14.0, "h0", "error: rank 0: lost rank 2 (pid 7 on h2) at step 9 (Connection closed)"))
    assert trial._naming(job, killed, said, 9.0)["name_seconds"] == 5.0
    assert trial._naming(job, killed._replace(kind="slow_rank"), said, 9.0)["due_to_name"] == 0


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
    job: Any = SimpleNamespace(setting=Setting(hosts=2), steps=steps((1, 8, 2), (2, 16, 1), (3, 24, 2), (4, 32, 2)))
    assert trial.whole(job, 2.5, 2) and not trial.whole(job, 2.5, 3) and not trial.whole(job, 3.5, 2)


def test_lost_residuals_are_read_from_what_rank_0_says() -> None:
    told = "going on from memory after 20 steps, 4 workers before, 3 now; lost with rank 2: 24.6% of all residuals"
    assert trial._lost(told) == pytest.approx(0.246)
    assert trial._lost("going on from memory after 20 steps, 4 workers before, 4 now; nothing is lost") == 0


def test_goodput_and_percentiles() -> None:
    assert [report.percentile([4.0, 1.0, 3.0, 2.0], share) for share in (0.5, 0.95, 0.25)] == [2.0, 4.0, 1.0]
    lines = [line("none", 3000, 10.0), line("sigkill", 6000, 25.0), line("nan", 0, 5.0, hang=True)]
    assert report.calm_rate(lines) == 300.0 and report.calm_rate(lines[1:]) == 300.0
    assert report.goodput(lines[1:], 300.0) == pytest.approx(20 / 30)
    assert [report.cost(each, 300.0) for each in lines] == [0.0, 5.0, 5.0]
    shown = report.lines_of(lines, 4)
    assert shown[-1] == "A fault costs 5.0 s on average: at one a minute, a goodput of 92%."
    assert [row.split(" | ")[:3] for row in shown[2:6]] == [
        ["| sigkill", "1", "0"], ["| nan", "1", "1"], ["| all", "2", "1"], ["| none", "1", "0"],
    ]  # fmt: skip


def test_a_campaign_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    made: list[int] = []

    class Running:
        def __init__(self, folder: Path, setting: Setting) -> None:
            self.steps = steps(*((float(n), n, 4) for n in range(1, 40)))
            self.setting, self.folder = setting, folder
            self.lines: list[Line] = []

        def __enter__(self) -> "Running":
            return self

        def __exit__(self, *error: object) -> None:
            return None

        def look(self) -> None:
            return None

    def one(job: Running, planned: trial.Trial, limit: float) -> dict[str, Any]:
        made.append(planned.number)
        return line(planned.kind, 300, 1.0, number=planned.number, host=planned.host, hang=planned.number == 1)

    monkeypatch.setattr(campaign, "running", Running)
    monkeypatch.setattr(campaign.trials, "run", one)
    words = ["chaos", "--mtbf", "0.001", "--out", str(tmp_path)]
    assert main([*words, "--trials", "3"]) == 1  # the second one hangs, and the third has a job of its own
    assert main([*words, "--trials", "5"]) == 1 and made == [0, 1, 2, 3, 4]
    kept = [json.loads(each) for each in (tmp_path / "elastic.jsonl").read_text().splitlines()]
    assert kept[0]["kind"] == "chaos" and [each["number"] for each in kept[1:]] == made
    with FileLock(tmp_path / "elastic.lock"):
        assert main([*words, "--trials", "6"]) == 2
    assert "another `wirebench chaos` makes these trials now" in capsys.readouterr().err
    assert main([*words, "--trials", "6", "--seed", "3"]) == 2
    assert "has trials with seed 0, not 3" in capsys.readouterr().err
    assert main(["chaos", "--report", "--out", str(tmp_path)]) == 0 and "| all | " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kinds", "sigkil"], "--kinds: no 'sigkil'"),
        (["--mtbf", "0"], "--mtbf: must be above 0"),
        (["--hosts", "1"], "--hosts: must be 2 to 250"),
        (["--report"], "cannot be read"),
    ],
)
def test_mistakes_are_one_line(words: Sequence[str], message: str, tmp_path: Path, capsys) -> None:
    assert main(["chaos", "--out", str(tmp_path / "no"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_rank_with_an_injector_is_started_by_chaos_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(UserError, match="started by `wirebench chaos` alone"):
        rank.main(["configs/smoke.toml"])
