"""wirebench study failures: trials, worlds and checkpoints that are there become claims' findings, tables, a figure."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from papers.claim import Verdict
from papers.committed import breaches
from papers.failures import faults, stragglers, worlds
from papers.failures import run as failures_run
from papers.failures.report import CLAIMS, MeasuredFailures, document
from papers.runner import Command
from tests.papers import records, verb
from tests.papers.records import KNOWN, put, sound
from wirebench.chaos import bounds
from wirebench.chaos.campaign import Campaign
from wirebench.chaos.faults import FAULTS, due_to_name
from wirebench.chaos.job import JobSetting
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.record.overhead_results import stalls, summary
from wirebench.utils.package import CONFIGS

pytestmark = pytest.mark.sampled(4)

CAMPAIGN = Campaign(JobSetting(), tuple(FAULTS), 10.0, 0)
Doctor = Callable[[dict[str, Any], list[dict[str, Any]]], None]


def idle() -> list[dict[str, Any]]:
    return [{**sound()["load"][0], "seconds": 5.0}]


def call(first: int = 0, **changes: object) -> dict[str, Any]:
    return {"first": first, "environment": sound()["environment"], "beginnings": [], "load": idle(), **changes}


def trial(number: int) -> dict[str, Any]:
    planned, none = CAMPAIGN.trial(number), CAMPAIGN.trial(number).kind == "none"
    due = due_to_name(FAULTS[planned.kind], 4)
    return {
        "number": number, "kind": planned.kind, "host": planned.host, "hang": False, "started_anew": False,
        "due_to_name": due, "named_by": due, "name_seconds": 0.5 if due else None, "seconds": 20.0 + number / 1e6,
        "pause_seconds": 0.2 if none else 4.0, "whole_seconds": 5.0, "lost_residual": 0.0,
        "images": 6000 if none else 4500, "calm_images_per_second": 300.0, "load": idle(),
        "wait_seconds": 10.0, "images_redone": 0 if none else 160,
    }  # fmt: skip


def trials(folder: Path, count: int, doctor: Doctor = lambda header, lines: None, name: str = faults.ELASTIC) -> Path:
    """A file of so many, each of which takes 5 s from an undisturbed job that makes 300 images/s."""
    header = CAMPAIGN._replace(setting=JobSetting(elastic=name == faults.ELASTIC)).header() | {"calls": [call()]}
    lines = [trial(number) for number in range(count)]
    doctor(header, lines)
    path = folder / "failures" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (header, *lines)))
    return path


def loads(header: dict[str, Any], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each["load"][0] for each in (*header["calls"], *lines)]


def verdicts(folder: Path) -> dict[str, Verdict]:
    return {each.claim.id: each.verdict for each in MeasuredFailures(folder / "failures").findings()}


def test_claims_are_the_bounds_of_the_verb() -> None:
    numbers = {name: CLAIMS[name].number[0] for name in ("hangs", "named", "residual", "recovery", "goodput")}
    whole = dict.fromkeys(("hangs", "named", "residual"), 1)
    assert numbers == {**whole, "recovery": bounds.RECOVERY_SECONDS, "goodput": bounds.GOODPUT}
    assert {each.id for each in bounds.bounds_of([trial(0), trial(1)], CAMPAIGN.header(), 300.0)} <= set(CLAIMS)


@pytest.mark.parametrize(
    ("count", "change", "claim", "state", "why"),
    [
        (360, {}, "hangs", "reproduced", ""),
        (360, {}, "goodput", "reproduced", ""),
        (360, {}, "recovery", "reproduced", ""),
        (120, {}, "recovery", "not decidable", "10 faults of each kind, not 30"),
        (120, {"hang": True}, "hangs", "not reproduced", "99.2 %, not 100.0 %"),
        (360, {"lost_residual": 0.25}, "residual", "not reproduced", "75.0 %, not 100.0 %"),
        (360, {"named_by": 2}, "named", "not reproduced", ""),
    ],
)
def test_a_bound_is_held_by_enough_faults(
    count: int, change: dict[str, Any], claim: str, state: str, why: str, tmp_path: Path
) -> None:
    def doctor(header: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        next(line for line in lines if line["kind"] == "sigkill").update(change)

    trials(tmp_path, count, doctor)
    found = verdicts(tmp_path)[claim]
    assert (found.state, found.why if why else "") == (state, why)


@pytest.mark.parametrize(
    "change", [{"hosts": 2}, {"timeout_seconds": 60.0}, {"elastic": False}, {"kinds": ["sigkill", "none"]}]
)
def test_another_setting_decides_nothing(change: dict[str, Any], tmp_path: Path) -> None:
    trials(tmp_path, 360, lambda header, lines: header.update(change))
    found = verdicts(tmp_path)["hangs"]
    [(name, value)] = change.items()
    assert found.state == "not decidable" and f"another setting: {name} {value}, not " in found.why


@pytest.mark.parametrize(
    ("count", "images", "changed", "state", "why"),
    [
        (30, 17_700, {}, "reproduced", ""),
        (30, 15_000, {}, "not reproduced", ""),
        (10, 17_700, {}, "not decidable", "10 kills, not 30"),
        (30, 17_700, {"hang": True}, "not reproduced", "1 trials hang"),
        (30, 17_700, {"images_redone": 17_600}, "reproduced", ""),
        (30, 17_700, {"images_redone": 17_900}, "not reproduced", "1 kills lost steps a second time"),
    ],
)
def test_a_goodput_at_a_kill_a_minute_is_measured(
    count: int, images: int, changed: dict[str, Any], state: str, why: str, tmp_path: Path
) -> None:
    """60 s a trial, of which an undisturbed job makes 18,000 images."""
    more = faults.MINUTELY["diloco"]
    planned = Campaign(JobSetting(more=more), ("sigkill",), 60.0, 0)
    lines = []
    for number in range(count):
        due = planned.trial(number)
        line = trial(0) | {"number": number, "kind": due.kind, "host": due.host, "seconds": 60.0 + number / 1e6}
        lines.append(line | {"images": images + number, "due_to_name": 3, "named_by": 3})
    lines[1] |= changed
    path = tmp_path / "failures" / faults.FOLDER / "diloco" / faults.ELASTIC
    path.parent.mkdir(parents=True)
    header = planned.header() | {"calls": [call()]}
    path.write_text("".join(f"{json.dumps(each)}\n" for each in (header, *lines)))
    assert tuple(header["more"]) == more and "more" not in CAMPAIGN.header()
    assert len(planned.done(path)[1]) == count
    with pytest.raises(UserError, match="has trials with more"):
        planned._replace(setting=JobSetting()).done(path)
    found = verdicts(tmp_path)["minutely"]
    assert found.state == state and why in found.why
    if not why:
        assert f"| diloco | {count} | 60 | 0 |" in document(MeasuredFailures(tmp_path / "failures"))


@pytest.mark.parametrize("method", faults.MINUTELY)
def test_a_minutely_job_is_one_that_can_be(method: str) -> None:
    words = JobSetting(more=faults.MINUTELY[method]).words()
    settings = resolve(loader.load(CONFIGS / "synthetic/toy.toml", [*words, "output.dir=here"]))
    assert settings.train.elastic and (settings.scheduler.name == "outer") == (method != "dense")
    assert not any("density" in word for word in words)


def test_a_mean_and_a_percentile_are_judged_with_their_spread(tmp_path: Path) -> None:
    """Costs of which half are nothing and half 14 s: their mean is 7 s, which is 88.3 %, and may be more than 7.2 s."""

    def doctor(header: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        for place, line in enumerate(each for each in lines if each["kind"] != "none"):
            line["images"] = 6000 - 4200 * (place % 2)
            line["pause_seconds"] = 9.0 + 2.0 * (place % 22 == 0)

    trials(tmp_path, 360, doctor)
    found = verdicts(tmp_path)
    assert found["goodput"].state == found["recovery"].state == "not decidable"
    assert found["goodput"].measured == pytest.approx(0.8833, abs=1e-3) and found["recovery"].measured == 9.0


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("", lambda header, lines: None),
        ("numbers", lambda header, lines: lines[3].update(host="h9")),
        ("numbers", lambda header, lines: lines[3].update(pause_seconds=30.0)),
        ("numbers", lambda header, lines: lines.pop(3)),
        ("numbers", lambda header, lines: header["calls"][0]["load"][0].update(others_cores=0.1)),
        ("numbers", lambda header, lines: lines[3].update(seconds=lines[4]["seconds"])),
        ("numbers", lambda header, lines: next(line for line in lines if line["due_to_name"]).update(due_to_name=0)),
        ("numbers", lambda header, lines: lines[3].update(started_anew=True)),
        ("numbers", lambda header, lines: header["calls"].append(call(12))),
        ("load", lambda header, lines: [load.update(others_cores=1.0) for load in loads(header, lines)]),
        ("schema", lambda header, lines: header["calls"][0]["environment"].pop("cpu")),
        ("commit", lambda header, lines: header["calls"][0]["environment"].update(git=None)),
        ("numbers", lambda header, lines: header["calls"].append(call(0))),
        ("schema", lambda header, lines: header.pop("calls")),
        ("schema", lambda header, lines: lines[2].pop("pause_seconds")),
    ],
)  # fmt: skip
def test_doctored_trials_are_named(rule: str, change: Doctor, results: Path) -> None:
    trials(results, 12, change)
    assert list(dict.fromkeys(each.rule for each in breaches(results, KNOWN))) == ([rule] if rule else [])


def world(folder: Path, engine: str, broken: bool, seed: int, top1: float) -> None:
    changes = [
        {"step": 1000 * after, "workers_before": before, "workers": after, "steps_lost": 7, "lost_residual": 0.0}
        for before, after in ((4, 3), (3, 4))
    ]
    name = f"failures/worlds/{worlds.label(engine, broken)}-{seed}"
    history = [sound()["history"][-1] | {"top1": top1}]
    put(folder, name, worlds=changes * broken, history=history, final=sound()["final"] | {"top1": top1})


@pytest.mark.parametrize(
    ("broken", "state"),
    [
        ((0.700, 0.702, 0.701), "reproduced"),
        ((0.600, 0.602, 0.601), "not reproduced"),
        ((0.690, 0.710, 0.698), "not decidable"),
        ((0.700, 0.702), "not decidable"),
    ],
)
def test_a_broken_run_ends_as_well_as_the_seeds_tell(broken: Sequence[float], state: str, tmp_path: Path) -> None:
    for seed, top1 in enumerate(broken):
        world(tmp_path, "torch", True, seed, top1)
    for seed, top1 in enumerate((0.701, 0.700, 0.702)):
        world(tmp_path, "torch", False, seed, top1)
    assert {name: each.state for name, each in verdicts(tmp_path).items()} == {"worlds_torch": state}
    told = "\n".join(worlds.lines([worlds.load(tmp_path / "failures/worlds", "torch")]))
    assert "4, then 3, then 4" in told and "7 at most" in told and "70.10" in told


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(worlds=record["worlds"][:1]),
        lambda record: record.update(engine="horovod"),
        lambda record: record["config"]["optimizer"].update(lr=9.0),
    ],
)
def test_a_run_of_another_kind_is_no_broken_one(change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    for broken in (False, True):
        world(tmp_path, "torch", broken, 0, 0.7)
    records.doctor(tmp_path / "failures/worlds/torch_broken-0/record.json", change)
    with pytest.raises(UserError, match=r"torch_broken-0: is a run on |mixes settings: optimizer\.lr"):
        MeasuredFailures(tmp_path / "failures")


def checkpoint(folder: Path, compressor: str, share: float, **changes: object) -> None:
    turns = {"saving": [2.02] * 5, "not saving": [2.0] * 5}
    seconds = [99 * share, 100 * share, 101 * share]
    result = {
        "kind": "wirebench checkpoint", **summary(turns), "turns": turns, "every": 50, "stalls": seconds,
        **stalls(seconds, 50, 2.0), "checkpoint_bytes": 10**8, "model": "vgg16", "processes": 4,
        "compressor": compressor, "environment": sound()["environment"], "load": sound()["load"], **changes,
    }  # fmt: skip
    path = folder / f"failures/checkpoint/vgg16-{compressor}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))


def test_a_checkpoints_cost_keeps_the_rules_and_is_of_the_claims_setting(results: Path) -> None:
    checkpoint(results, "none", 0.01)
    assert breaches(results, KNOWN) == []
    checkpoint(results, "none", 0.01, stall_share=0.001)
    assert [each.rule for each in breaches(results, KNOWN)] == ["numbers"]
    others: list[dict[str, Any]] = [
        {"model": "resnet20"}, {"every": 5000, **stalls([0.99, 1.0, 1.01], 5000, 2.0)}, {"kind": "wirebench overhead"},
    ]  # fmt: skip
    for change in others:
        checkpoint(results, "none", 0.01, **change)
        with pytest.raises(UserError, match=r"vgg16-none.json: has "):
            MeasuredFailures(results / "failures")
    checkpoint(results, "topk", 0.01)
    (results / "failures/checkpoint/vgg16-topk.json").rename(results / "failures/checkpoint/vgg16-none.json")
    with pytest.raises(UserError, match=r"vgg16-none.json: has compressor 'topk'"):
        MeasuredFailures(results / "failures")


def test_the_report_has_a_section_for_each_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "failures"
    with pytest.raises(UserError, match="has no trials and no runs; measure first"):
        MeasuredFailures(folder)
    trials(tmp_path, 36)
    trials(tmp_path, 24, name=faults.PLAIN)
    checkpoint(tmp_path, "none", 0.01)
    checkpoint(tmp_path, "topk", 0.03)
    assert verb.report("failures")([str(folder)]) == 0
    table = (folder / "table.md").read_text()
    titles = ["## An elastic job", "## A job with checkpoints in its place", "## Checkpoints"]
    assert [line for line in table.splitlines() if line.startswith("## ")] == titles
    assert "trials 0 to 35 on " in table and "commit cccccccccc" in table
    assert "| compressor topk | " not in table and "compressor topk |" in table and "3.00 % [" in table
    assert "| sigkill | 3 | 0 |" in table and "Broken" not in table
    assert (folder / "pauses.svg").exists()


def slowed(folder: Path, label: str, turn: int, step: float, straggler: float) -> None:
    """A run with steps of so many seconds in the mean, 0.08 s of them its passes."""
    made = sound()
    config = made["config"] | {"network": {"dilation": 10.0, "straggler": straggler}}
    images = made["world_size"] * config["data"]["batch_size"]
    rate = made["images_per_second"] | {"mean": images / step}
    name = f"failures/straggler/{label.replace(' ', '-')}-{turn}"
    phases = made["phases"] | {"forward": 0.03, "backward": 0.05}
    path = put(folder, name, config=config, images_per_second=rate, phases=phases)
    note = {"label": label, "hosts": 4, "link": "100mbit", "launch": "wirebench cluster run"}
    (path.parent / "note.json").write_text(json.dumps(note))


@pytest.mark.parametrize(
    ("slow", "turns", "state"),
    [(0.29, 5, "reproduced"), (0.45, 5, "not reproduced"), (0.29, 1, "not decidable")],
)
def test_a_slow_host_costs_what_the_claim_says(slow: float, turns: int, state: str, tmp_path: Path) -> None:
    for turn in range(turns):
        slowed(tmp_path, "diloco", turn, 0.2 + turn / 1e4, 1.0)
        slowed(tmp_path, "diloco straggler", turn, slow + turn / 1e4, 2.0)
        slowed(tmp_path, "dense", turn, 0.4 + turn / 1e4, 1.0)
    assert {name: each.state for name, each in verdicts(tmp_path).items()} == {"straggler": state}
    [row] = [
        line for line in document(MeasuredFailures(tmp_path / "failures")).splitlines() if line.startswith("| diloco |")
    ]
    assert row.startswith(f"| diloco | {turns} | {1 / (0.2 + (turns - 1) / 2e4):.2f} | ")
    assert row.endswith(" | 71.4 % |") or turns > 1, "0.2 s of 0.28 s"
    slowed(tmp_path, "sparseloco", 0, 0.2, 2.0)
    with pytest.raises(UserError, match=r"'sparseloco' has network\.straggler=2"):
        MeasuredFailures(tmp_path / "failures")


def test_a_turn_has_every_method_without_and_with_a_slow_host(tmp_path: Path) -> None:
    launched: list[Command] = []

    def launch(command: Command) -> int:
        launched.append(command)
        return 1

    words = ["--out", str(tmp_path / "failures"), "--parts", "straggler", "--turns", "1"]
    assert verb.run("failures")(words, launch) == 1
    assert len(launched) == 2 * len(faults.MINUTELY)
    for command in launched:
        begin = command.index("train.py") + 1
        config = resolve(loader.load(command[begin], command[begin + 1 :]))
        is_slow = any("straggler.part" in word or "straggler-0" in word for word in command[begin:])
        assert config.network.straggler == (stragglers.SLOWDOWN if is_slow else 1.0) and config.network.dilation == 10
        counted = config.train.max_steps - config.train.warmup_steps
        assert counted % 32 == config.train.warmup_steps % 32 == 0, "whole rounds"
        assert config.data.options["train_size"] == config.train.max_steps * config.data.batch_size * 4
    assert "network.straggler=2" in {word for command in launched for word in command}


def test_run_makes_what_is_missing_a_chunk_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    launched: list[Command] = []

    def launch(command: Command) -> int:
        launched.append(command)
        trials(tmp_path, int(command[command.index("--trials") + 1]))
        return 1  # a bound is not held

    run = verb.run("failures")
    words = ["--out", str(tmp_path / "failures"), "--parts", "elastic", "--trials", "80"]
    trials(tmp_path, 36)
    assert run(words, launch) == 0
    assert [command[command.index("--trials") + 1] for command in launched] == ["72", "80"]
    assert run(words, launch) == 0 and len(launched) == 2
    assert "cell 1 of 2: elastic, 72 trials" in capsys.readouterr().err
    assert run([*words, "--again"], launch) == 0 and len(launched) == 5
    assert (tmp_path / "failures/elastic.jsonl.old").exists()
    assert run([*words, "--mtbf", "60"], verb.nothing) == 2
    assert "has trials with mtbf_seconds 10.0, not 60.0" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    set_aside = ["--again", "--parts", "elastic", "worlds", "--data", str(tmp_path)]
    assert run(["--out", str(tmp_path / "failures"), *set_aside], verb.nothing) == 2
    assert (tmp_path / "failures/elastic.jsonl").exists(), "nothing is set aside where something would fail"
    assert "the part worlds needs root" in capsys.readouterr().err


def test_worlds_that_failed_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = failures_run.Worlds("torch", 0, tmp_path)
    monkeypatch.setattr(failures_run.Worlds, "is_there", lambda *_: True)
    assert not cell.make(tmp_path, lambda command: 1) and cell.make(tmp_path, lambda command: 0)
