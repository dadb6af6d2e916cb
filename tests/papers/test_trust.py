"""The rules that committed records keep: planted faults are found, each with its rule and its file."""

import copy
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from papers import cli as study
from papers import published, repository
from papers.committed import breaches
from papers.repository import Repository, history
from papers.runner import RESULTS, ROOT
from papers.site import committed as drifting
from papers.study import Study
from tests.papers.records import KNOWN, Doctor, doctor, put, sound
from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.lines import named
from wirebench.record.rules import broken


def test_a_sound_record_breaks_no_rule(results: Path) -> None:
    assert broken(sound(), KNOWN.knows) == []
    assert breaches(results, KNOWN) == []


@pytest.mark.parametrize(
    ("rule", "how", "change"),
    [
        ("commit", "none", lambda r: r["environment"].update(git=None)),
        ("commit", "cccccccccc with changes", lambda r: r["environment"]["git"].update(dirty=True)),
        ("commit", "dddddddddd is not in", lambda r: r["environment"]["git"].update(commit="d" * 40)),
        ("machines unknown", "only rank 0", lambda r: r["environment"].pop("hosts")),
        ("machines", "described are those of ranks [0, 1], of 4", lambda r: r["environment"]["hosts"].pop()),
        ("seeds", "the run does not say its seed", lambda r: r["config"]["train"].pop("seed")),
        ("load unknown", "the record does not say", lambda r: r.pop("load")),
        ("load", "0.90 of a's 2 cores were busy", lambda r: r["load"][0].update(others_cores=0.9)),
        ("load", "the hypervisor took 5.0 %", lambda r: r["load"][0].update(steal=0.05)),
        ("numbers", "step_seconds.median", lambda r: r["step_seconds"].update(median=0.1)),
        ("numbers", "images_per_second.median x step_seconds", lambda r: r["step_seconds"].update(median=0.2)),
        ("numbers", "final.top1, 0.5", lambda r: r["final"].update(top1=0.5)),
        ("numbers", "compression_ratio.wire is 60", lambda r: r["compression_ratio"].update(wire=60.0)),
        ("steps", "compression_ratio.with_indices is 90", lambda r: r["compression_ratio"].update(with_indices=90.0)),
        ("numbers", "prediction.error is 0.5", lambda r: r["prediction"].update(error=0.5)),
        ("schema", "final.top1", lambda r: r["final"].pop("top1")),
        ("schema", "environment.utc", lambda r: r["environment"].pop("utc")),
        ("schema", "environment.utc", lambda r: r["environment"].update(utc="yesterday")),
        ("schema", "load[0].hostname: is missing", lambda r: r.update(load=[{}])),
        ("schema", "is no record of a run", lambda r: r["environment"].update(git={})),
        ("schema", "is no record of a run", lambda r: r["bytes_per_step"].update(wire_mean="x")),
    ],
)
def test_a_doctored_record_is_named_with_its_rule(rule: str, how: str, change: Doctor, results: Path) -> None:
    path = results / "gs-sgd/vgg16/gtopk-3/record.json"
    doctor(path, change)
    assert any(
        breach.rule == rule and "gs-sgd/vgg16/gtopk-3" in breach.words(results) and how in breach.how
        for breach in breaches(results, KNOWN)
    )


def test_turns_that_are_too_few_missing_or_copies_are_named(results: Path) -> None:
    runs = results / "gs-sgd/vgg16"
    (runs / "gtopk-4/record.json").write_bytes((runs / "gtopk-1/record.json").read_bytes())
    for change in (lambda _: None, lambda r: r["environment"].update(utc="2026-01-01T00:00:00Z")):
        doctor(runs / "gtopk-4/record.json", change)
        [copied] = breaches(results, KNOWN)
        assert copied.words(results) == (f"gs-sgd/vgg16/gtopk-4: turns: is a copy of {runs}/gtopk-1")
    (runs / "gtopk-4/record.json").unlink()
    (runs / "gtopk-1/record.json").unlink()
    assert [breach.words(results) for breach in breaches(results, KNOWN)] == [
        "gs-sgd/vgg16/gtopk: turns: are numbered 0, 2, 3",
        "gs-sgd/vgg16/gtopk: turns: 3, and a claim about speed needs 5",
    ]


def test_seeds_that_are_too_few_or_used_twice_are_named(results: Path) -> None:
    doctor(results / "convergence/quick/dense-2/record.json", lambda r: r["config"]["train"].update(seed=1))
    assert [breach.words(results) for breach in breaches(results, KNOWN)] == [
        "convergence/quick/dense: seeds: 1 used twice",
        "convergence/quick/dense: seeds: 2, and a claim about accuracy needs 3",
    ]


def test_a_study_that_claims_an_accuracy_says_which_records_have_its_seeds(tmp_path: Path) -> None:
    text = (Study("accuracy").folder / "published.toml").read_text()
    (tmp_path / "published.toml").write_text(text.replace('"seeds"', '"turns"'))
    with pytest.raises(UserError, match=r"claims\[gs_sgd_learns\]: is about an accuracy, and no folder of records has"):
        published.load(tmp_path)


def test_bytes_are_counted_once_and_like_accuracies_whatever_else_the_machine_does(results: Path) -> None:
    busy = put(results, "iwp/alexnet/fixed_0.1-0")
    for path in (busy, results / "convergence/quick/dense-2/record.json"):
        doctor(path, lambda r: r["load"][0].update(others_cores=1.9))
    assert breaches(results, KNOWN) == []
    doctor(busy, lambda r: r["environment"]["git"].update(dirty=True))
    assert [breach.rule for breach in breaches(results, KNOWN)] == ["commit"]


def test_an_exception_has_a_reason_and_is_needed(results: Path) -> None:
    doctor(results / "gs-sgd/vgg16/gtopk-2/record.json", lambda r: r.pop("load"))
    excuse = '[[exceptions]]\nfiles = ["gs-sgd/*"]\nrules = ["load unknown"]\nwhy = "old"\n'
    (results / "exceptions.toml").write_text(excuse)
    assert breaches(results, KNOWN) == []
    for wide, in_vain in (("gs-sgd/*", "methods/*"), ("load unknown", "turns")):
        (results / "exceptions.toml").write_text(excuse.replace(f'"{wide}"', f'"{wide}", "{in_vain}"'))
        [unused] = breaches(results, KNOWN)
        assert unused.rule == "exceptions" and in_vain in unused.how and unused.how.endswith("excuses nothing")
    (results / "exceptions.toml").write_text(excuse.replace("why", "reason"))
    with pytest.raises(UserError, match=r"exceptions\[0\].why: needs a string"):
        breaches(results, KNOWN)


def test_an_exception_of_the_load_says_how_far(results: Path) -> None:
    busy = results / "gs-sgd/vgg16/gtopk-2/record.json"
    doctor(busy, lambda r: r["load"][0].update(others_cores=1.2))
    excuse = '[[exceptions]]\nfiles = ["gs-sgd/*"]\nrules = ["load"]\nwhy = "two at a time"\n'
    (results / "exceptions.toml").write_text(excuse)
    assert [breach.rule for breach in breaches(results, KNOWN)] == ["load", "exceptions"]
    (results / "exceptions.toml").write_text(f"{excuse}share = 0.7\n")
    assert breaches(results, KNOWN) == []
    doctor(busy, lambda r: r["load"][0].update(others_cores=1.5))
    assert [breach.how for breach in breaches(results, KNOWN)][:1] == [
        "1.50 of a's 2 cores were busy with something else"
    ]


def test_a_shallow_checkout_knows_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    known = history(ROOT)
    if known.commits is not None:
        assert all(len(commit) == 40 for commit in known.commits)
    monkeypatch.setattr(repository, "_git", lambda root, *words: "true" if "--is-shallow-repository" in words else "x")
    assert history(ROOT).commits is None
    answers = {"--is-shallow-repository": "false", "HEAD": "c" * 40}
    monkeypatch.setattr(repository, "_git", lambda root, *words: answers[words[-1]])
    assert history(ROOT).commits is None, "a copy without its history"
    assert broken(sound() | {}, Repository(None).knows) == []


def test_a_run_that_went_or_changed_since_a_commit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    results = tmp_path / "results"
    results.mkdir()
    shapes = results / recorded.SHARED
    shapes.touch()
    for name in ("dense-0", "dense-1"):
        path = put(tmp_path / "made", name)
        recorded.append(results / "quick", name, {}, path.parent)
    lines = results / "quick/runs.jsonl"
    (results / "quick/table.md").write_text("a\n")
    git("add", ".")
    git("commit", "-qm", "runs")
    put(tmp_path / "made", "dense-2")
    recorded.append(results / "quick", "dense-2", {}, tmp_path / "made/dense-2")
    (results / "quick/table.md").write_text("b\n")
    git("add", ".")
    git("commit", "-qm", "a run more")
    assert repository.lost_runs(tmp_path, "HEAD~1", results) == []
    plain: list[dict[str, Any]] = [
        {"run": run.folder.name, "note": {}, "record": run.record} for run in recorded.below(results)
    ]
    before = shapes.read_text()
    shapes.write_text(before.replace('"finished"', '"interrupted"'))
    git("commit", "-qam", "a shape that all runs below have")
    assert repository.lost_runs(tmp_path, "HEAD~1", results) == [Path("results/quick/runs.jsonl")]
    shapes.write_text(before)
    lines.write_text("".join(f"{json.dumps(each)}\n" for each in plain))
    git("commit", "-qam", "another form")
    assert repository.lost_runs(tmp_path, "HEAD~2", results) == []
    plain[1]["record"]["seconds_total"] += 1
    for changed in ("".join(f"{json.dumps(each)}\n" for each in plain), ""):
        lines.write_text(changed)
        git("commit", "-qam", "an edit, or all of it")
        assert repository.lost_runs(tmp_path, "HEAD~1", results) == [Path("results/quick/runs.jsonl")]
    for name, value in (("ROOT", tmp_path), ("RESULTS", results), ("history", lambda *_: KNOWN)):
        monkeypatch.setattr(study, name, value)
    monkeypatch.setattr(drifting, "drifts", lambda *_: [])
    assert study.main(["check", "--since", "HEAD~1"]) == 1
    assert "results/quick/runs.jsonl: lost or changed a run since HEAD~1" in capsys.readouterr().out
    with pytest.raises(UserError, match="nothing: is no commit"):
        repository.lost_runs(tmp_path, "nothing", results)


def test_forecasts_are_older_than_their_runs(results: Path) -> None:
    folder = results / "prediction-2"
    run = put(folder, "one-0")
    began = json.loads(run.read_text())["environment"]["utc"]
    row = {"name": "2x1gbit-wfbp-none-ring", "seconds": 1.0}
    told = {"kind": "list", "rows": [row], "constants": "x", "commit": "c" * 40, "utc": "1970-01-01T00:00:00+00:00"}
    path = folder / "forecast.json"
    path.write_text(json.dumps(told))
    assert breaches(results, KNOWN) == []
    for wrong in ({"commit": "d" * 40}, {"changed": True}):
        path.write_text(json.dumps(told | wrong))
        assert [breach.rule for breach in breaches(results, KNOWN)] == ["commit"]
    path.write_text(json.dumps(told | {"utc": "2199-01-01T00:00:00+00:00"}))
    [late] = breaches(results, KNOWN)
    assert late.rule == "predicted" and began[:10] in late.how
    for damaged in ("{", "[]", json.dumps(told | {"utc": 1}), json.dumps(told | {"rows": []})):
        path.write_text(damaged)
        assert {breach.file for breach in breaches(results, KNOWN)} == {path}


def test_compressors_are_timed_before_what_rests_on_that(results: Path) -> None:
    folder = results / "order"
    put(folder, "one-0")
    header, *cells = (RESULTS / "today" / "order_1gbit" / "rates.jsonl").read_text().splitlines()
    timed = json.loads(header)
    timed["environment"]["git"] = {"commit": "c" * 40, "dirty": False}
    (folder / "rates.jsonl").write_text("\n".join([json.dumps(timed), *cells]))
    told = {"kind": "order", "rows": [{"name": "dense", "seconds": 1.0}], "constants": "x", "commit": "c" * 40,
            "given": {"rates": "rates.jsonl"}, "utc": "1970-01-01T00:00:00+00:00"}  # fmt: skip
    (folder / "forecast.json").write_text(json.dumps(told))
    assert [breach.rule for breach in breaches(results, KNOWN)] == ["predicted"]
    for utc, rules in (("1969-12-31T00:00:00+00:00", []), ("1970-01-02T00:00:00+00:00", ["predicted"])):
        given = {"rates": "elsewhere/rates.jsonl", "rates_utc": utc}
        (folder / "forecast.json").write_text(json.dumps(told | {"given": given}))
        assert [breach.rule for breach in breaches(results, KNOWN)] == rules


def test_what_somebody_tries_is_nobodys_evidence(results: Path) -> None:
    """make run leaves a run in results/runs, which git ignores."""
    shutil.copytree(results / "gs-sgd/vgg16/gtopk-4", results / "runs/smoke")
    (results / "runs/smoke/steps.jsonl").write_text('{"step": 1}\n')
    assert breaches(results, KNOWN) == []


@pytest.mark.slow
def test_everything_that_is_committed_keeps_the_rules() -> None:
    assert breaches(RESULTS, history(ROOT)) == []


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Some of what is committed, with its exceptions."""
    for name in ("gs-sgd", "convergence"):
        (tmp_path / name).mkdir()
        shutil.copy(RESULTS / name / recorded.RUNS, tmp_path / name)
    for file in (recorded.SHARED, "exceptions.toml"):
        shutil.copy(RESULTS / file, tmp_path)
    return tmp_path


def rewrite(file: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """The lines of a file of runs as `change` returns them, without those of which it returns None."""
    lines = [change(named(json.loads(line))) for line in file.read_text().splitlines()]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines if line is not None))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("run", "rule", "change"),
    [
        ("gs-sgd/vgg16/gtopk-3", "commit", lambda r: r["environment"]["git"].update(commit="0" * 40)),
        ("convergence/resnet20/gs_sgd-2", "commit", lambda r: r["environment"]["git"].update(dirty=True)),
        ("convergence/resnet20/gs_sgd-2", "seeds", lambda r: r["config"]["train"].update(seed=1)),
        ("gs-sgd/vgg16/gs_sgd-1", "load", lambda r: r["load"][0].update(others_cores=0.5)),
        ("convergence/resnet20/iwp-1", "machines", lambda r: r["environment"]["hosts"][0]["ranks"].pop()),
        ("gs-sgd/vgg16/gs_sgd-1", "load unknown", lambda r: r.pop("load")),
        ("gs-sgd/vgg16/gs_sgd-1", "numbers", lambda r: r["images_per_second"].update(median=99.0)),
        ("convergence/resnet20/topk-0", "numbers", lambda r: r["final"].update(top1=0.99)),
        ("convergence/resnet20/topk-0", "steps", lambda r: r["compression_ratio"].update(with_indices=3.8)),
    ],
)
def test_a_fault_that_is_planted_into_what_is_committed_is_found(
    run: str, rule: str, change: Doctor, copied: Path
) -> None:
    """No exception is so wide that it hides it."""
    known = history(ROOT)
    if rule == "commit" and known.commits is None and "dirty" not in change.__code__.co_names:
        pytest.skip("needs the commits before this one: a shallow clone or a copy has none")
    before = set(breaches(copied, known))
    series, _, name = run.partition("/")

    def planted(line: dict[str, Any]) -> dict[str, Any]:
        if line["run"] != name:
            return line
        read = recorded.at(RESULTS / run)
        assert read is not None
        record = copy.deepcopy(read.record)
        change(record)
        return {"run": name, "note": dict(read.note), "record": record}

    rewrite(copied / series / recorded.RUNS, planted)
    found = set(breaches(copied, known)) - before
    assert {breach.rule for breach in found} == {rule}
    assert all(run.startswith(breach.file.relative_to(copied).as_posix()) for breach in found)


def test_a_turn_that_is_taken_away_or_doubled_is_found(copied: Path) -> None:
    before, file = set(breaches(copied, Repository(None))), copied / "gs-sgd" / recorded.RUNS
    rewrite(file, lambda line: None if line["run"] == "vgg16/gtopk-4" else line)
    assert {breach.rule for breach in set(breaches(copied, Repository(None))) - before} == {"turns"}
    [one] = [line for line in file.read_text().splitlines() if '"vgg16/gtopk-1"' in line]
    file.write_text(f"{file.read_text()}{one.replace('vgg16/gtopk-1', 'vgg16/gtopk-4')}\n")
    assert "is a copy of" in " ".join(breach.how for breach in breaches(copied, Repository(None)))


def test_the_verb_names_what_is_wrong(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "RESULTS", results)
    monkeypatch.setattr(study, "history", lambda *_: KNOWN)
    monkeypatch.setattr(drifting, "drifts", lambda *_: ["table.md:1: is another"])
    path = results / "gs-sgd/vgg16/gtopk-0/record.json"
    doctor(path, lambda r: r["environment"]["git"].update(dirty=True))
    assert study.main(["check"]) == 1
    named = "gs-sgd/vgg16/gtopk-0: commit: cccccccccc with changes\n"
    assert capsys.readouterr().out == named + "table.md:1: is another\n"
    monkeypatch.setattr(drifting, "drifts", lambda *_: [])
    assert study.main(["check"]) == 1
    assert capsys.readouterr().out == named + "all tables and the documents are those of their records\n"
    monkeypatch.setattr(study, "history", lambda *_: Repository(None))
    assert study.main(["check"]) == 1
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("commits are not checked: ")
    monkeypatch.setattr(study, "history", lambda *_: KNOWN)
    path.write_text("{")
    assert study.main(["check"]) == 1
    assert capsys.readouterr().out.startswith(f"schema: {path}: not valid JSON")
