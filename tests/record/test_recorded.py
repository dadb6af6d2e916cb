"""Runs as lines: what is appended is read as it was, once a name, and a line that is damaged or torn is told."""

import copy
import json
import runpy
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.runner import RESULTS, ROOT
from wirebench.errors import UserError
from wirebench.record import lines, recorded, schema
from wirebench.record.lines import Shapes, decode, encode, named
from wirebench.utils import json_lines

RUN = RESULTS / "gs-sgd/vgg16/gtopk-0"
KEYS = st.sampled_from(("a", "b", "bc", "peers", "warnings"))
NUMBERS = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = NUMBERS | st.text("ab/-0 1.=?{}@", max_size=9) | st.just("run a/b-0, lr=0.10, at 007")
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4))


def made(folder: Path, **changes: Any) -> Path:
    """The folder of a run that has just ended."""
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps({**recorded.read(RUN), **changes}))
    return folder


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 6))
def test_rounding_again_is_rounding_once(number: float, digits: int) -> None:
    assert f"{json_lines.rounded(number, 7):.{digits}g}" == f"{number:.{digits}g}"


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=3), max_size=4), VALUES, st.lists(LEAVES, max_size=3))
def test_any_run_is_read_as_it_was(tables: list[dict[str, Any]], other: Any, row: list[Any]) -> None:
    """But for digits: of ranks four are kept, in files six, of settings all, else ten."""
    config = {"name": "x", "output": {"dir": "here"}, "train": {"seed": 3, "lr": 0.1 + 0.2}, "more": other}
    environment = {"utc": "now", "peers": ["a"], "hosts": tables, "share": 1 / 3}
    record = {"config": config, "environment": environment, "ranks": tables, "other": other, "all": [tables, tables]}
    note = {"label": "a", "curve": [row, row], "launch": "made a/b-0 seed=3 --out=/tmp/a/b-0 at 1.50"}
    run = {"run": "a/b-0", "note": note, "record": record, "files": {"steps.jsonl": tables}}
    before = copy.deepcopy(run)
    shared = Shapes()
    line = encode(run, shared)
    assert run == before
    read = decode(json.loads(json.dumps(line)), json.loads(json.dumps(shared)))
    brief = {"ranks": json_lines.rounded(tables, 4, 4)}
    kept = json_lines.rounded(record) | brief | {"config": config, "environment": environment}
    files = {"steps.jsonl": json_lines.rounded(tables, 6, 6)}
    wanted = {"run": "a/b-0", "note": json_lines.rounded(note), "record": kept, "files": files}
    # Python's 1, 1.0 and True are equal, and a record's are not.
    assert json.dumps(read, sort_keys=True) == json.dumps(wanted, sort_keys=True)


def test_what_follows_or_repeats_is_not_written_and_is_read_as_it_was() -> None:
    """Lossless but for digits: what follows, whole numbers in regular steps, and tables of a few forms in any order."""
    sent = [float(1_000_000 * (epoch + 1)) for epoch in range(12)]
    events = [{"name": name, "at": place} for place, name in enumerate("abcabcabcabc")]
    record: dict[str, Any] = {
        "config": {}, "environment": {"utc": "2026-11-25T01:40:10+00:00"}, "parameters": 250, "world_size": 4,
        "history": [{"epoch": epoch, "top1": 0.1 * epoch, "wire_bytes_total": each} for epoch, each in enumerate(sent)],
        "final": {"top1": 0.1 * 11}, "step_seconds": {"median": 0.123456789}, "phases": {"forward": 0.0123456789},
        "bytes_per_step": {"dense": 1000, "payload": 300.0, "wire": 70.0, "wire_mean": 70.0, "wire_max": 71.0},
        "compression_ratio": {"with_indices": 1000 / 300.0, "values": 1000 / 300.0, "wire": 1500 / 70.0},
        "prediction": {"step_seconds": 0.13, "measured_seconds": 0.123456789, "error": 0.13 / 0.123456789 - 1},
        "ranks": [{"rank": rank, "phases": {"forward": 0.0123456789 + rank / 9}} for rank in range(2)],
        "events": [{**each, "more": 1} if each["name"] == "a" else each for each in events],
    }  # fmt: skip
    shared = Shapes()
    line = encode({"run": "a-0", "note": {}, "record": record}, shared)
    parts = named(line)
    values = parts["record"][1:]
    assert not {0.13 / 0.123456789 - 1, 1000, 1000 / 300.0, 1500 / 70.0, 250} & {
        each for each in values if not isinstance(each, list | dict)
    }
    assert [values.count(each) for each in (0.123456789, 70.0, 71.0)] == [1, 1, 1]
    assert parts["environment"][1:] == ["25T01:40:10"]
    assert any("+" in each for each in shared.values() if isinstance(each, dict)), (
        "regular steps are written by their steps"
    )
    assert any("*" in each for each in shared.values() if isinstance(each, dict)), "forms of tables are written once"
    read = decode(json.loads(json.dumps(line)), json.loads(json.dumps(shared)))["record"]
    assert read["history"] == json_lines.rounded(record["history"]) and read["events"] == record["events"]
    assert {name: read[name] for name in ("prediction", "bytes_per_step")} == {
        "prediction": {**record["prediction"], "error": pytest.approx(record["prediction"]["error"], abs=2e-9)},
        "bytes_per_step": record["bytes_per_step"],
    }
    assert read["ranks"] == json_lines.rounded(record["ranks"], 4, 4)
    other = copy.deepcopy(record) | {"final": {"top1": 0.5}, "prediction": {**record["prediction"], "error": 0.5}}
    kept = decode(encode({"run": "a-0", "note": {}, "record": other}, shared), shared)["record"]
    assert kept["final"] == {"top1": 0.5} and kept["prediction"]["error"] == 0.5, "what does not follow is written"


@pytest.mark.parametrize("steps", [[1, 10**9, 1, -(10**9)], [1, 2**40], [None, 3], [1, "a"]])
def test_damaged_steps_are_refused(steps: list[Any]) -> None:
    shared = {"shape": {"bytes": "?"}, "note": {}, "column": {"+": steps}}
    line = {"run": "a-0", "note": ["note"], "record": ["shape", {"@": "column"}]}
    with pytest.raises(recorded.MALFORMED):
        decode(line, shared)


REWRITE = runpy.run_path(str(ROOT / "scripts" / "rewrite_results.py"))


def lines_of(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_lines(file: Path, lines: list[Any]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_older_lines_are_read_and_rewritten_once(tmp_path: Path) -> None:
    """With keys in every line, and what several share merged with what is a run's own; shapes beside each file."""
    config = {"train": {"lr": 0.1}, "model": {"@": "m"}}
    shared = [{"id": "m", "value": {"name": "gpt"}}, {"id": "c", "value": config}]
    record = {"config": {"@": "c", "train": {"seed": 3}}, "history": {"#": 2, "loss": [0.5, 0.25], "epoch": [1]}}
    runs = [tmp_path / study / recorded.RUNS for study in ("one", "two")]
    for file in runs:
        write_lines(file, [{"run": f"a-{turn}", "note": {"label": "a"}, "record": record} for turn in (0, 1)])
        write_lines(file.with_name(recorded.SHARED), shared)
    read = {"config": {"train": {"lr": 0.1, "seed": 3}, "model": {"name": "gpt"}},
            "history": [{"loss": 0.5, "epoch": 1}, {"loss": 0.25, "epoch": 1}]}  # fmt: skip
    before = [recorded.canonical(file.read_text(), file.with_name(recorded.SHARED).read_text()) for file in runs]
    now, shapes = [], tmp_path / recorded.SHARED
    for _ in range(3):
        REWRITE["main"]([str(tmp_path)])
        assert sorted(tmp_path.rglob("*.jsonl")) == sorted([*runs, shapes])
        known = recorded.shapes(runs[0].parent)
        assert [decode(line, known)["record"] for file in runs for line in lines_of(file)] == [read] * 4
        assert [recorded.canonical(file.read_text(), shapes.read_text()) for file in runs] == before
        now.append([shapes.read_bytes(), *(file.read_bytes() for file in runs)])
        if len(now) == 2:  # an older form, with keys for the parts of a line
            write_lines(shapes, [{"id": key, "value": shape} for key, shape in known.items()])
            write_lines(runs[0], [named(line) for line in lines_of(runs[0])])
    assert now[0] == now[1] == now[2]


def test_runs_of_several_studies_are_appended_as_they_would_be_rewritten(tmp_path: Path) -> None:
    (tmp_path / recorded.SHARED).touch()
    sizes = []
    for turn, layers in enumerate(("one", "two", "one", "three", "two")):
        folder = made(tmp_path / f".made-{turn}", health={f"norm {layers} {place}": place for place in range(9)})
        for study in ("b", "a"):
            recorded.append(tmp_path / study, f"dense-{turn}", {"label": "dense"}, folder)
            sizes.append((tmp_path / recorded.SHARED).stat().st_size)
    assert sorted(path.name for path in tmp_path.rglob("*.jsonl")) == sorted([recorded.SHARED, *[recorded.RUNS] * 2])
    assert sizes[1::2] == sizes[::2] and sizes[2] - sizes[1] < sizes[0] / 4, "the second study adds nothing"
    assert sizes[2] == sizes[4] and sizes[6] == sizes[9], "what was there is not added"
    (tmp_path / "runs/smoke").mkdir(parents=True)
    (tmp_path / "runs/smoke/steps.jsonl").write_text('{"step": 0}\n')
    assert all(path.read_text() == content for path, content in REWRITE["contents"](tmp_path))


@pytest.mark.slow
def test_results_are_as_they_would_be_written() -> None:
    assert [
        path.name for path, content in REWRITE["contents"](RESULTS) if path.read_text(encoding="utf-8") != content
    ] == []


def test_runs_are_lines_of_one_file_and_the_last_of_a_name_counts(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / recorded.RUNS).touch()
    for turn in (0, 1, 0):
        folder = made(tmp_path / f"made-{len(list(tmp_path.iterdir()))}", seconds_total=100.0 + turn)
        (folder / "steps.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
        (folder / "tb").mkdir()
        recorded.append(
            tmp_path / "study/part", f"dense-{turn}", {"label": "dense"}, folder, ("steps.jsonl", "none.json")
        )
    assert sorted(path.name for path in (tmp_path / "study").rglob("*")) == [recorded.SHARED, recorded.RUNS]
    lines = (tmp_path / "study" / recorded.RUNS).read_text().splitlines()
    assert [json.loads(line)[0] for line in lines] == ["part/dense-0", "part/dense-1", "part/dense-0"]
    shared = (tmp_path / "study" / recorded.SHARED).read_text().splitlines()
    assert len(shared) == len(set(shared)) and sum(map(len, lines)) < 3 * len(json.dumps(recorded.read(RUN))) / 2
    first, second = recorded.directly_below(tmp_path / "study/part")
    assert (first.folder, first.composition, first.turn) == (tmp_path / "study/part/dense-0", "dense", "0")
    assert first.files == {"steps.jsonl": [{"step": 1}, {"step": 2}]} and second.record["seconds_total"] == 101.0
    assert recorded.below(tmp_path / "study") == recorded.below(tmp_path / "study/part") == [first, second]
    assert recorded.at(first.folder) == first and recorded.at(tmp_path / "study/part/dense") is None
    assert recorded.below(first.folder) == [first]
    assert recorded.file_of(first.folder) == tmp_path / "study" / recorded.RUNS
    assert recorded.read(first.folder) == first.record
    with pytest.raises(UserError, match="dense-7: no such file"):
        recorded.read(tmp_path / "study/part/dense-7")


def test_a_folder_without_a_file_of_runs_gets_one_and_folders_of_runs_are_runs_too(tmp_path: Path) -> None:
    folder = made(tmp_path / ".dense-1.part")
    recorded.append(tmp_path, "dense-1", {"label": "dense"}, folder)
    made(tmp_path / "mine/smoke")
    (tmp_path / "mine/smoke" / recorded.NOTE).write_text('{"label": "smoke"}')
    found = recorded.below(tmp_path)
    assert [run.folder.relative_to(tmp_path).as_posix() for run in found] == ["dense-1", "mine/smoke"]
    assert [run.note["label"] for run in found] == ["dense", "smoke"]
    assert recorded.noted(tmp_path, {"label": str}) == found[:1]
    with pytest.raises(UserError, match="note: hosts: needs a whole number"):
        recorded.noted(tmp_path, {"hosts": int})


def test_what_was_being_written_when_the_machine_stopped_is_no_line(tmp_path: Path) -> None:
    folder, file = made(tmp_path / ".made"), tmp_path / recorded.RUNS
    recorded.append(tmp_path, "a-0", {}, folder)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[: len(whole) // 2])
    assert len(recorded.below(tmp_path)) == 1
    recorded.append(tmp_path, "a-1", {}, folder)
    assert [run.folder.name for run in recorded.below(tmp_path)] == ["a-0", "a-1"]
    assert file.read_bytes().startswith(whole)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "runs.jsonl:2: not valid JSON"),
        ("[]", "runs.jsonl:2: no line of a run"),
        ('{"run": "b-0", "note": {}}', "runs.jsonl:2: no line of a run: KeyError('record')"),
        ('{"run": "b-0", "note": {}, "record": {"@": "gone"}}', "runs.jsonl:2: no line of a run: KeyError('gone')"),
        ('{"run": "b-0", "note": {}, "record": {"schema": 1}}', "runs.jsonl:2: b-0: not a run's record: "),
    ],
)
def test_a_damaged_line_is_named_and_loses_no_later_run(line: str, said: str, tmp_path: Path) -> None:
    folder = made(tmp_path / ".made")
    recorded.append(tmp_path, "a-0", {}, folder)
    with (tmp_path / recorded.RUNS).open("a") as file:
        file.write(f"{line}\n")
    recorded.append(tmp_path, "a-1", {}, folder)
    assert len((tmp_path / recorded.RUNS).read_text().splitlines()) == 3
    with pytest.raises(UserError) as raised:
        recorded.below(tmp_path)
    assert said in str(raised.value)


def test_of_shapes_with_one_id_the_nearest_counts(tmp_path: Path) -> None:
    for folder, shape in ((tmp_path, "far"), (tmp_path / "study", "near")):
        folder.mkdir(exist_ok=True)
        (folder / recorded.SHARED).write_text(f'{{"abcdef": "{shape}"}}\n{{"{shape}": 1}}\n')
    assert recorded.shapes(tmp_path / "study") == {"abcdef": "near", "near": 1, "far": 1}
    assert recorded.shapes(tmp_path) == {"abcdef": "far", "far": 1}


@pytest.mark.parametrize("line", ["[1]", "3", "{}", '{"a": 1, "b": 2}'])
def test_a_damaged_shape_is_one_line(line: str, tmp_path: Path) -> None:
    recorded.append(tmp_path, "a-0", {}, made(tmp_path / ".made"))
    (tmp_path / recorded.SHARED).write_text(f"{line}\n")
    for act in (lambda: recorded.below(tmp_path), lambda: recorded.append(tmp_path, "a-1", {}, tmp_path / ".made")):
        with pytest.raises(UserError, match=r"environments\.jsonl:1: no line of a shape"):
            act()


def test_a_damaged_record_is_not_appended(tmp_path: Path) -> None:
    folder = made(tmp_path / ".made")
    (folder / "record.json").write_text("{}")
    with pytest.raises(UserError):
        recorded.append(tmp_path, "a-0", {}, folder)
    assert not (tmp_path / recorded.RUNS).exists()


def test_several_may_append_at_once(tmp_path: Path) -> None:
    folder = made(tmp_path / ".made")
    threads = [
        threading.Thread(target=recorded.append, args=(tmp_path, f"a-{number}", {}, folder)) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(run.turn for run in recorded.below(tmp_path)) == [str(number) for number in range(8)]
    assert all(schema.problems(run.record) == [] for run in recorded.below(tmp_path))


def test_a_run_that_is_added_while_others_are_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.append(tmp_path, "dense-0", {}, made(tmp_path / ".made-0"))
    shapes, other = recorded.shapes, made(tmp_path / ".made-1", more={"a key": ["of its own"] * 9})

    def and_then_added(folder: Path) -> Any:
        monkeypatch.setattr(recorded, "shapes", shapes)
        found = shapes(folder)
        recorded.append(tmp_path, "dense-1", {}, other)
        return found

    monkeypatch.setattr(recorded, "shapes", and_then_added)
    assert [run.folder.name for run in recorded.below(tmp_path)] == ["dense-0"]
    assert [run.folder.name for run in recorded.below(tmp_path)] == ["dense-0", "dense-1"]


def test_a_torn_line_of_what_is_shared_is_none(tmp_path: Path) -> None:
    recorded.append(tmp_path, "dense-0", {}, made(tmp_path / "made-0"))
    file = tmp_path / recorded.SHARED
    file.write_text(file.read_text()[:-9])
    recorded.append(tmp_path, "dense-1", {}, made(tmp_path / "made-1"))
    (tmp_path / recorded.RUNS).write_text((tmp_path / recorded.RUNS).read_text().splitlines(keepends=True)[1])
    assert recorded.at(tmp_path / "dense-1") is not None


def test_shapes_whose_ids_begin_alike_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ids of one letter most shapes meet another's: each run is read as it was, and no end of a run is lost."""
    wanted = {}
    for turn in (0, 1):
        folder = made(tmp_path / f"made-{turn}", more={f"key {turn} {each}": [f"{each}" * 50] for each in range(60)})
        recorded.append(tmp_path / "whole", f"dense-{turn}", {"label": "dense"}, folder)
        wanted[turn] = recorded.read(tmp_path / f"whole/dense-{turn}")
    monkeypatch.setattr(lines, "ID_LENGTH", 1)
    for turn in (0, 1):
        recorded.append(tmp_path / "short", f"dense-{turn}", {"label": "dense"}, tmp_path / f"made-{turn}")
    assert {turn: recorded.read(tmp_path / f"short/dense-{turn}") for turn in (0, 1)} == wanted
    known = [json.loads(line) for line in (tmp_path / "short" / recorded.SHARED).read_text().splitlines()]
    assert {len(key) for each in known for key in each} >= {1, 2}
    # What two appended without knowing of each other, and a merge put together, may have one id for two shapes.
    with (tmp_path / "short" / recorded.SHARED).open("a") as file:
        file.write(json.dumps({next(iter(known[0])): "another"}) + "\n")
    with pytest.raises(UserError, match=rf"environments.jsonl:{len(known) + 1}: another shape has the id"):
        recorded.append(tmp_path / "short", "dense-2", {"label": "dense"}, tmp_path / "made-0")


def test_a_sent_file_that_has_lost_a_run_is_refused(tmp_path: Path) -> None:
    recorded.append(tmp_path, "dense-0", {}, made(tmp_path / "made"))
    text = recorded.packed(run._replace(folder=Path("a/dense-0")) for run in recorded.below(tmp_path)[:1])
    file = tmp_path / "sent.jsonl"
    for content, said in ((text[:-1], "no end"), ("", "has no run"), ("\n", "not valid"), (text + text, "one name")):
        file.write_text(content)
        with pytest.raises(UserError, match=said):
            recorded.unpacked(file)
