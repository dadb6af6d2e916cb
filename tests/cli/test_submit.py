"""wirebench submit: what it names runs, what it refuses, and that a file of runs comes into results as they were."""

import json
from pathlib import Path
from typing import Any

import pytest

from papers.committed import breaches
from tests.papers.records import KNOWN, Doctor, doctor, put
from wirebench.cli.results import submit
from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.lines import named


def whole(root: Path, name: str) -> Path:
    file = put(root, name)
    doctor(file, lambda r: r["config"]["train"].pop("max_steps"))
    return file.parent


@pytest.fixture
def seeds(tmp_path: Path) -> list[Path]:
    """The folders of three seeds of one composition, trained for all epochs."""
    return [whole(tmp_path / "made", f"a-{seed}") for seed in (3, 1, 2)]


@pytest.fixture
def turns(tmp_path: Path) -> list[Path]:
    """The folders of five turns, which have one seed."""
    files = [put(tmp_path / "made", f"turn-{turn}") for turn in range(5)]
    for file in files:
        doctor(file, lambda r: r["config"]["train"].update(seed=0))
    return [file.parent for file in files]


def packed(tmp_path: Path, *words: object) -> Path:
    file = tmp_path / "sent" / "some.jsonl"
    assert submit.main([*map(str, words), "--out", str(file), "--series", "mine"]) == 0
    return file


def test_seeds_are_an_accuracy_and_turns_a_speed(seeds, turns, tmp_path, capsys):
    def names(file: Path) -> dict[str, str]:
        return {str(run.folder): run.note["claim"] for run in recorded.unpacked(file)}

    label = "gtopk_sync_easgd_tree"
    assert names(packed(tmp_path, *seeds)) == {f"mine/{label}-{seed}": "accuracy" for seed in (1, 2, 3)}
    assert names(packed(tmp_path, *turns)) == {f"mine/{label}-{turn}": "speed" for turn in range(5)}
    verdict, _, heads, _, *rows = capsys.readouterr().out.splitlines()
    assert verdict.startswith("3 runs of 1 composition keep all rules")
    assert "edition" in heads and all("none" in row for row in rows[:3])


def test_two_compositions_have_two_names(seeds, tmp_path):
    other = [whole(tmp_path / "made", f"b-{seed}") for seed in (0, 1, 2)]
    for folder in other:
        doctor(folder / "record.json", lambda r: r["config"]["compressor"].update(density=0.5))
    file = packed(tmp_path, *seeds, *other)
    assert len({run.composition for run in recorded.unpacked(file)}) == 2


def test_a_sent_file_comes_into_results_as_the_records_were(seeds, tmp_path):
    file = packed(tmp_path, *seeds)
    results = tmp_path / "results"
    assert submit.main([str(file), "--into", str(results / "contributed")]) == 0
    runs = recorded.below(results)
    assert [run.folder.name.rpartition("-")[2] for run in runs] == ["1", "2", "3"]
    for run, source in zip(runs, (seeds[1], seeds[2], seeds[0]), strict=True):
        made = recorded.read(source)
        assert run.record.keys() == made.keys()
        assert all(run.record[key] == made[key] for key in ("config", "environment", "history", "final", "load"))
    assert breaches(results, KNOWN) == []


def test_an_interrupted_addition_is_resumed_and_no_run_is_replaced(seeds, tmp_path, capsys):
    file, results = packed(tmp_path, *seeds), tmp_path / "results"
    submit.main([str(file), "--into", str(results)])
    lines = results / recorded.RUNS
    whole = lines.read_text()
    lines.write_text("".join(whole.splitlines(keepends=True)[:1]))
    submit.main([str(file), "--into", str(results)])
    assert capsys.readouterr().out.endswith(": 2 more, 1 were there already\n")
    assert lines.read_text() == whole
    doctor(seeds[0] / "record.json", lambda r: r.update(parameters=1))
    with pytest.raises(UserError, match="is there already, another run; --series"):
        submit.main([*map(str, seeds), "--into", str(results), "--series", "mine"])
    assert lines.read_text() == whole
    submit.main([str(file), "--into", str(results), "--series", "yours"])
    assert len(recorded.below(results / "yours")) == 3


def test_runs_of_one_name_and_copies_are_refused(seeds, tmp_path):
    file = packed(tmp_path, seeds[0], "--claim", "counts")
    other = packed(tmp_path / "b", seeds[1], "--claim", "counts", "--series", "mine")
    third = tmp_path / "third.jsonl"
    third.write_text(file.read_text().replace('"mine/', '"yours/'))
    for words, said in (((file, file), "have this name"), ((file, other), "have this name"), ((file, third), "a copy"),
                        ((file, "--claim", "speed"), "--claim"), ((file, "--series", "../x"), "--series")):  # fmt: skip
        with pytest.raises(UserError, match=said):
            submit.main([*map(str, words), "--into", str(tmp_path / "results")])


def test_a_damaged_file_is_one_line(seeds, tmp_path, capfd):
    file = packed(tmp_path, seeds[0], "--claim", "counts")
    *shared, line = file.read_text().splitlines()
    run = named(json.loads(line))
    changes: list[dict[str, Any]] = [{"run": name} for name in (3, "", ".", "/x/a-0", "../a-0", "a/b", "-0", "a-x")]
    changes += [{"note": note} for note in (3, [1], None, {"claim": [1]})]
    damages: list[dict[str, Any]] = [{"git": {"commit": None, "dirty": False}}, {"cpu": 3}]
    record = recorded.unpacked(file)[0].record
    environments = [record["environment"] | damage for damage in damages]
    changes += [{"files": 3}, *({"note": {}, "record": record | {"environment": each}} for each in environments)]
    for change in changes:
        file.write_text("\n".join([*shared, json.dumps(run | change), ""]))
        with pytest.raises(UserError) as refused:
            submit.main([str(file), "--out", str(tmp_path / "out.jsonl")])
        assert "\n" not in str(refused.value)


def test_a_claim_that_came_with_runs_is_held_to_its_rules(seeds, tmp_path):
    results = tmp_path / "results"
    submit.main([*map(str, seeds), "--into", str(results / "contributed")])
    lines = results / "contributed" / recorded.RUNS
    lines.write_text("".join(lines.read_text().splitlines(keepends=True)[:2]))
    assert {breach.rule for breach in breaches(results, KNOWN)} == {"seeds"}


def test_each_run_of_a_folder_is_held_to_its_own_claim(seeds, turns, tmp_path):
    results = tmp_path / "results"
    submit.main([*map(str, turns), "--into", str(results), "--series", "mine"])
    for file in turns[:1]:
        doctor(file / "record.json", lambda r: r["config"]["compressor"].update(density=0.5))
        doctor(file / "record.json", lambda r: r.update(seconds_total=1.0))
        doctor(file / "record.json", lambda r: r["step_seconds"].update(p10=0.0))
        doctor(file / "record.json", lambda r: r["load"][0].update(others_cores=1.9))
    sent = tmp_path / "sent.jsonl"
    submit.main([str(turns[0]), "--claim", "counts", "--series", "mine", "--out", str(sent)])
    name = str(recorded.unpacked(sent)[0].folder)
    sent.write_text(sent.read_text().replace(f'"{name}"', '"mine/counted-0"'))
    submit.main([str(sent), "--into", str(results)])
    assert breaches(results, KNOWN) == []
    run = recorded.at(results / "mine" / "counted-0")
    assert run is not None
    busy = run._replace(folder=Path("mine/busy-0"), note={"label": "busy", "claim": "speed"})
    recorded.add(results, busy)
    assert {breach.rule for breach in breaches(results, KNOWN)} == {"load", "turns"}


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("a-1: commit: none", lambda r: r["environment"].update(git=None)),
        ("a-1: commit: cccccccccc with changes", lambda r: r["environment"]["git"].update(dirty=True)),
        ("final.top1: is missing", lambda r: r["final"].pop("top1")),
        ("a-1: numbers: final.top1", lambda r: r["final"].update(top1=0.5)),
        ("a-1: edition: ", lambda r: r.update(edition={"name": "2026.12", "task": "resnet20"})),
        ("seeds: 2 used twice", lambda r: r["config"]["train"].update(seed=2)),
        ("a-1: the run was interrupted", lambda r: r.update(status="interrupted")),
    ],
)
def test_what_breaks_a_rule_is_refused_in_a_line(said: str, change: Doctor, seeds, tmp_path):
    doctor(seeds[1] / "record.json", change)
    with pytest.raises(UserError) as refused:
        packed(tmp_path, *seeds)
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "sent" / "some.jsonl").exists()


def test_an_accuracy_of_runs_cut_short_is_refused(seeds, tmp_path, capsys):
    for folder in seeds:
        doctor(folder / "record.json", lambda r: r["config"]["train"].update(max_steps=9))
    with pytest.raises(UserError, match=r"seeds: gtopk_sync_easgd_tree-3 has train\.max_steps"):
        packed(tmp_path, *seeds)
    assert capsys.readouterr().err.count("has train.max_steps") == len(seeds) - 1, "the other broken rules"


def test_turns_that_are_too_few_copied_or_beside_other_work_are_refused(turns, tmp_path):
    with pytest.raises(UserError, match="turns: 4, and a claim about speed needs 5"):
        packed(tmp_path, *turns[:4])
    with pytest.raises(UserError, match="turns: is a copy of"):
        packed(tmp_path, *turns[:4], turns[0])
    doctor(turns[4] / "record.json", lambda r: r["environment"]["git"].update(commit="d" * 40))
    with pytest.raises(UserError, match="commit: a claim about speed needs one"):
        packed(tmp_path, *turns)
    doctor(turns[4] / "record.json", lambda r: r["environment"]["git"].update(commit="c" * 40))
    doctor(turns[4] / "record.json", lambda r: r["environment"]["cpu"].update(model="other"))
    with pytest.raises(UserError, match="machines: a claim about speed needs one"):
        packed(tmp_path, *turns)
    doctor(turns[0] / "record.json", lambda r: r["load"][0].update(others_cores=1.9))
    with pytest.raises(UserError, match=r"load: 1\.90 of"):
        packed(tmp_path, *turns)
    assert len(recorded.unpacked(packed(tmp_path, turns[0], "--claim", "counts"))) == 1, (
        "bytes need one run, at any load"
    )


def test_what_is_no_run_is_one_line(tmp_path):
    (tmp_path / "other.jsonl").write_text('{"step": 1}\n')
    for path in (tmp_path / "other.jsonl", tmp_path / "none", tmp_path):
        with pytest.raises(UserError):
            packed(tmp_path, path)
