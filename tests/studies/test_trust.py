"""The rules that committed records keep: planted faults are found, each with its rule and its file."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.cli import study
from suite.studies import committed, trust
from suite.studies.committed import breaches, history
from suite.studies.runner import RESULTS, ROOT
from suite.studies.trust import Repository
from wirebench.errors import UserError

KNOWN = Repository(frozenset({"c" * 40}))
Doctor = Callable[[dict[str, Any]], None]


def sound() -> dict[str, Any]:
    """A committed run's record, as it would be made today, by a known commit on a machine with nothing else to do."""
    record = json.loads((RESULTS / "gs-sgd/vgg16/gtopk-0/record.json").read_text())
    record["environment"]["git"] = {"commit": "c" * 40, "dirty": False}
    record["environment"]["hosts"] = [{"ranks": [0, 1]}, {"ranks": [2, 3]}]
    machine = {"hostname": "a", "ranks": [0, 1, 2, 3], "cores": 2, "load_average": [0.5, 4.0]}
    record["load"] = [{**machine, "others_cores": 0.2, "steal": 0.0}]
    return record


def put(root: Path, name: str, **changes: object) -> Path:
    """A sound record with other times, so that no two are copies."""
    record = sound()
    record["environment"]["utc"] = name
    record["config"]["train"]["seed"] = int(name.rpartition("-")[2])
    record.update(changes)
    path = root / name / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record))
    return path


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Five turns of a method, and three seeds of another."""
    for turn in range(5):
        put(tmp_path, f"gs-sgd/vgg16/gtopk-{turn}")
    for seed in range(3):
        put(tmp_path, f"convergence/quick/dense-{seed}")
    return tmp_path


def doctor(path: Path, change: Doctor) -> None:
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def test_a_sound_record_breaks_no_rule(results: Path) -> None:
    assert trust.broken(sound(), KNOWN) == []
    assert breaches(results, KNOWN) == []


@pytest.mark.parametrize(
    ("rule", "how", "change"),
    [
        ("commit", "none", lambda r: r["environment"].update(git=None)),
        ("commit", "cccccccccc with changes", lambda r: r["environment"]["git"].update(dirty=True)),
        ("commit", "dddddddddd is not in", lambda r: r["environment"]["git"].update(commit="d" * 40)),
        ("machines unknown", "only rank 0", lambda r: r["environment"].pop("hosts")),
        ("machines", "described are those of ranks [0, 1], of 4", lambda r: r["environment"]["hosts"].pop()),
        ("load unknown", "the record does not say", lambda r: r.pop("load")),
        ("load", "0.90 of a's 2 cores were busy", lambda r: r["load"][0].update(others_cores=0.9)),
        ("load", "the hypervisor took 5.0 %", lambda r: r["load"][0].update(steal=0.05)),
        ("numbers", "step_seconds.median", lambda r: r["step_seconds"].update(median=0.1)),
        ("numbers", "images_per_second.median x step_seconds", lambda r: r["step_seconds"].update(median=0.2)),
        ("numbers", "final.top1, 0.5", lambda r: r["final"].update(top1=0.5)),
        ("numbers", "compression_ratio.wire is 60", lambda r: r["compression_ratio"].update(wire=60.0)),
        ("schema", "final.top1", lambda r: r["final"].pop("top1")),
    ],
)
def test_a_doctored_record_is_named_with_its_rule(rule: str, how: str, change: Doctor, results: Path) -> None:
    path = results / "gs-sgd/vgg16/gtopk-3/record.json"
    doctor(path, change)
    assert any(
        breach.words(results).startswith(f"gs-sgd/vgg16/gtopk-3/record.json: {rule}: {how}")
        for breach in breaches(results, KNOWN)
    )


def test_turns_that_are_too_few_missing_or_copies_are_named(results: Path) -> None:
    runs = results / "gs-sgd/vgg16"
    (runs / "gtopk-4/record.json").write_bytes((runs / "gtopk-1/record.json").read_bytes())
    [copied] = breaches(results, KNOWN)
    assert copied.words(results) == f"gs-sgd/vgg16/gtopk-4/record.json: turns: is a copy of {runs}/gtopk-1/record.json"
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


def test_a_benchmarks_file_tells_its_commit_and_load(results: Path) -> None:
    header = {"kind": "wirebench collectives", "environment": sound()["environment"], "load": sound()["load"]}
    cells = results / "flexreduce/cells/2+2.jsonl"
    cells.parent.mkdir(parents=True)
    cells.write_text(json.dumps(header) + "\n{}\n")
    assert breaches(results, KNOWN) == []
    header["environment"] = {**header["environment"], "git": {"commit": "d" * 40, "dirty": False}}
    cells.write_text(json.dumps({key: header[key] for key in ("kind", "environment")}) + "\n")
    assert [breach.rule for breach in breaches(results, KNOWN)] == ["commit", "load unknown"]
    cells.write_text("[]\n")
    assert [breach.rule for breach in breaches(results, KNOWN)] == ["schema"]
    cells.rename(results / "overhead.json").write_text(json.dumps({"ratio": {"median": 1.0}, **header}))
    assert [breach.rule for breach in breaches(results, KNOWN)] == ["commit"]


def test_an_exception_has_a_reason_and_is_needed(results: Path) -> None:
    doctor(results / "convergence/quick/dense-2/record.json", lambda r: r.pop("load"))
    excuse = '[[exceptions]]\nfiles = ["convergence/*"]\nrules = ["load unknown"]\nwhy = "old"\n'
    (results / "exceptions.toml").write_text(excuse)
    assert breaches(results, KNOWN) == []
    (results / "exceptions.toml").write_text(excuse + excuse.replace("convergence", "methods"))
    [unused] = breaches(results, KNOWN)
    assert unused.words(results) == "exceptions.toml: exceptions: methods/* excuses nothing"
    (results / "exceptions.toml").write_text(excuse.replace("why", "reason"))
    with pytest.raises(UserError, match=r"exceptions\[0\].why: needs a string"):
        breaches(results, KNOWN)


def test_an_exception_of_the_load_says_how_far(results: Path) -> None:
    busy = results / "convergence/quick/dense-2/record.json"
    doctor(busy, lambda r: r["load"][0].update(others_cores=1.2))
    excuse = '[[exceptions]]\nfiles = ["convergence/*"]\nrules = ["load"]\nwhy = "two at a time"\n'
    (results / "exceptions.toml").write_text(excuse)
    assert [breach.rule for breach in breaches(results, KNOWN)] == ["load", "exceptions"]
    (results / "exceptions.toml").write_text(f"{excuse}share = 0.7\n")
    assert breaches(results, KNOWN) == []
    doctor(busy, lambda r: r["load"][0].update(others_cores=1.5))
    assert [breach.how for breach in breaches(results, KNOWN)][:1] == [
        "1.50 of a's 2 cores were busy with something else"
    ]


def test_what_is_no_json_is_named_and_nothing_else_is_said_of_rows(results: Path) -> None:
    (results / "gs-sgd/vgg16/gtopk-4/record.json").write_text("{")
    [damaged] = breaches(results, KNOWN)
    assert damaged.words(results).startswith("gs-sgd/vgg16/gtopk-4/record.json: schema: not valid JSON")


def test_a_shallow_checkout_knows_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    known = history(ROOT)
    if known.commits is not None:
        assert all(len(commit) == 40 for commit in known.commits)
    monkeypatch.setattr(committed, "_git", lambda root, *words: "true" if "--is-shallow-repository" in words else "x")
    assert history(ROOT).commits is None
    answers = {"--is-shallow-repository": "false", "HEAD": "c" * 40}
    monkeypatch.setattr(committed, "_git", lambda root, *words: answers[words[-1]])
    assert history(ROOT).commits is None, "a copy without its history"
    assert trust.broken(sound() | {}, Repository(None)) == []


def test_what_somebody_tries_is_nobodys_evidence(results: Path) -> None:
    """make run leaves a run in results/runs, which git ignores."""
    shutil.copytree(results / "gs-sgd/vgg16/gtopk-4", results / "runs/smoke")
    (results / "runs/smoke/steps.jsonl").write_text('{"step": 1}\n')
    assert breaches(results, KNOWN) == []


def test_everything_that_is_committed_keeps_the_rules() -> None:
    assert breaches(RESULTS, history(ROOT)) == []


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of what is committed, with its exceptions."""
    root = tmp_path_factory.mktemp("results")
    for name in ("gs-sgd/vgg16", "convergence/resnet20", "flexreduce/cells"):
        shutil.copytree(RESULTS / name, root / name, copy_function=os.link)
    shutil.copy(RESULTS / "exceptions.toml", root)
    return root


@pytest.mark.parametrize(
    ("run", "rule", "change"),
    [
        ("gs-sgd/vgg16/gtopk-3", "commit", lambda r: r["environment"]["git"].update(commit="0" * 40)),
        ("convergence/resnet20/gs_sgd-2", "commit", lambda r: r["environment"]["git"].update(dirty=True)),
        ("convergence/resnet20/gs_sgd-2", "seeds", lambda r: r["config"]["train"].update(seed=1)),
        ("gs-sgd/vgg16/gs_sgd-1", "load", lambda r: r["load"][0].update(others_cores=0.5)),
        ("convergence/resnet20/iwp-1", "load", lambda r: r["load"][0].update(others_cores=1.9)),
        ("gs-sgd/vgg16/gs_sgd-1", "load unknown", lambda r: r.pop("load")),
        ("gs-sgd/vgg16/gs_sgd-1", "numbers", lambda r: r["images_per_second"].update(median=99.0)),
        ("convergence/resnet20/topk-0", "numbers", lambda r: r["final"].update(top1=0.99)),
    ],
)
def test_a_fault_that_is_planted_into_what_is_committed_is_found(
    run: str, rule: str, change: Doctor, linked: Path
) -> None:
    """No exception is so wide that it hides it."""
    path, known = linked / run / "record.json", history(ROOT)
    if rule == "commit" and known.commits is None and "dirty" not in change.__code__.co_names:
        pytest.skip("needs the commits before this one: a shallow clone or a copy has none")
    before, original = set(breaches(linked, known)), path.read_bytes()
    path.unlink()  # a link to the committed file
    path.write_bytes(original)
    doctor(path, change)
    found = set(breaches(linked, known)) - before
    path.write_bytes(original)
    assert {breach.rule for breach in found} == {rule}
    assert all(
        run.startswith(breach.file.relative_to(linked).as_posix().removesuffix("/record.json")) for breach in found
    )


def test_a_turn_that_is_taken_away_or_doubled_is_found(linked: Path) -> None:
    before, turn = set(breaches(linked, Repository(None))), linked / "gs-sgd/vgg16/gtopk-4"
    gone = turn.rename(linked / "gtopk-4")
    assert {breach.rule for breach in set(breaches(linked, Repository(None))) - before} == {"turns"}
    shutil.copytree(linked / "gs-sgd/vgg16/gtopk-1", turn)
    assert "is a copy of" in " ".join(breach.how for breach in breaches(linked, Repository(None)))
    shutil.rmtree(turn)
    gone.rename(turn)


def test_the_verb_names_what_is_wrong(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "RESULTS", results)
    monkeypatch.setattr(study, "history", lambda root: KNOWN)
    doctor(results / "gs-sgd/vgg16/gtopk-0/record.json", lambda r: r["environment"]["git"].update(dirty=True))
    assert study.main(["check"]) == 1
    assert capsys.readouterr().out == "gs-sgd/vgg16/gtopk-0/record.json: commit: cccccccccc with changes\n"
