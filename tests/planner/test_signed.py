"""wirebench study prediction run --list: compositions named before they are run, and predicted before they are."""

import json
from pathlib import Path

import pytest

from papers.prediction import listed, signed
from papers.prediction.run import CONFIG, FORTY
from papers.prediction.signed import Signed
from tests.papers import verb
from tests.papers.test_methods_run import Fake, put
from tests.papers.test_prediction import made, table
from wirebench.errors import UserError
from wirebench.planner import ranges
from wirebench.record import recorded
from wirebench.telemetry import environment

LISTS = Path(listed.__file__).parent
MACHINE = ranges.written(
    [{"factor": 0.8, "fitted": False}, {"factor": 1.2, "fitted": False}],
    {"processor": {"cores": 2, "message_us": 200, "call_us": 300}, "other_seconds": {"2": 0.002, "8": 0.005}},
)


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Path:
    """A machine's file, and a checkout that can sign."""
    path = tmp_path / "machine" / "outside.json"
    path.parent.mkdir()
    path.write_text(MACHINE)
    monkeypatch.setattr(ranges, "SHIPPED", path)
    monkeypatch.setattr(environment, "git", lambda: {"commit": "0123456789abcdef", "dirty": False})
    return path


def write(tmp_path: Path, *lines: str) -> list[str]:
    path = tmp_path / "list.toml"
    path.write_text(f"compositions = {json.dumps(lines)}\n")
    return ["--list", str(path), "--out", str(tmp_path / "out")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "count"), [("hundred", 100), ("sixty", 60)])
def test_what_is_listed_can_be_run_and_is_new(name: str, count: int) -> None:
    compositions = listed.load(LISTS / f"{name}.toml")
    assert len(compositions) == len({each.name for each in compositions}) == count
    assert {each.hosts for each in compositions} == {2, 3, 4, 5, 6, 8}
    assert len({each.link for each in compositions}) == 4
    for each in compositions:
        each.training(CONFIG).check()
    earlier = [] if name == "hundred" else [*FORTY, *listed.load(LISTS / "hundred.toml")]
    assert not {each.name for each in compositions} & {each.name for each in earlier}
    assert len({each.name for each in FORTY}) == 40


def test_they_are_predicted_before_they_are_run(tmp_path, machine, capsys) -> None:
    words, fake = write(tmp_path, "2x1gbit wfbp topk native", "4x100mbit optimal none ring"), Fake()
    assert verb.run("prediction")([*words, "--predict-only"], fake) == 0
    assert not fake.commands
    before = signed.load(tmp_path / "out")
    assert before is not None and before.commit == "0123456789abcdef" and before.fitted_to == str(machine)
    assert list(before.steps) == ["2x1gbit-wfbp-topk-native", "4x100mbit-optimal-none-ring"]
    assert all(step["low"] < step["seconds"] < step["high"] for step in before.steps.values())
    assert verb.run("prediction")(words, fake) == 0
    assert len(fake.commands) == 2 and "compressor.density=0.01" in fake.commands[0]
    assert verb.run("prediction")(words, fake) == 0
    assert len(fake.commands) == 2 and signed.load(tmp_path / "out") == before, "they are there already"
    words = write(tmp_path, "2x1gbit wfbp none native")
    assert verb.run("prediction")(words, fake) == 2
    assert "does not predict 2x1gbit-wfbp-none-native; --out names another folder" in capsys.readouterr().err
    (tmp_path / "out" / signed.FILE).unlink()
    words = write(tmp_path, "2x1gbit wfbp topk native")
    assert verb.run("prediction")(words, fake) == 2
    assert "does not predict 2x1gbit-wfbp-topk-native, which has been run" in capsys.readouterr().err


def test_a_changed_checkout_signs_nothing(tmp_path, machine, monkeypatch, capsys) -> None:
    for state in (None, {"commit": "0123456789abcdef", "dirty": True}):
        monkeypatch.setattr(environment, "git", lambda state=state: state)
        assert verb.run("prediction")(write(tmp_path, "2x1gbit wfbp none ring"), verb.nothing) == 2
        assert "signed with the commit that makes them" in capsys.readouterr().err
    assert not (tmp_path / "out" / signed.FILE).exists()


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "compositions: names none"),
        (["2x1gbit wfbp none"], "compositions[0]: needs 'HOSTSxRATE SCHEDULER COMPRESSOR COLLECTIVE'"),
        (["1x1gbit wfbp none ring"], "with 2 or more hosts, got '1x1gbit wfbp none ring'"),
        (["2x1gbit wfbp none ring", "2xfast wfbp none ring"], "compositions[1]: "),
        (["2x1gbit wfbp none ring"] * 2, "compositions: 2x1gbit-wfbp-none-ring stands there twice"),
        (["2x1gbit wfb none ring"], "did you mean 'wfbp'?"),
    ],
)
def test_mistakes_in_a_list_are_one_line(lines, problem, tmp_path, machine, capsys) -> None:
    assert verb.run("prediction")(write(tmp_path, *lines), verb.nothing) == 2
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1


def test_only_a_list_is_predicted(tmp_path, capsys) -> None:
    for words in (["--predict-only"], ["--machine", str(tmp_path)]):
        assert verb.run("prediction")([*words, "--out", str(tmp_path)], verb.nothing) == 2
        assert f"{words[0]}: goes with --list" in capsys.readouterr().err


def test_constants_of_another_machine_predict_no_run_of_this_one(tmp_path, machine, monkeypatch, capsys) -> None:
    other, own = tmp_path / "other", tmp_path / "own"
    for folder in (other, own):
        put(folder, "run", 0, made(0.2, 0.2))
        (folder / "outside.json").write_text(MACHINE)
    words, fake = write(tmp_path, "2x1gbit wfbp none native"), Fake()
    run, cpu = verb.run("prediction"), recorded.noted(own, {})[0].record["environment"]["cpu"]
    monkeypatch.setattr(environment, "cpu", lambda: {**cpu, "cores": 64})
    assert run([*words, "--machine", str(other)], fake) == 2 and not fake.commands
    assert f"{other} has runs of " in capsys.readouterr().err
    monkeypatch.setattr(environment, "cpu", lambda: cpu)
    assert run([*words, "--machine", str(own)], fake) == 0 and len(fake.commands) == 1
    before = signed.load(tmp_path / "out")
    assert before is not None and before.fitted_to == str(own / "outside.json")
    assert run(words, fake) == 0 and len(fake.commands) == 1, "by the same constants, unsaid"
    monkeypatch.setattr(environment, "cpu", lambda: {**cpu, "cores": 64})
    assert run(words, fake) == 0, "all runs are there"
    assert run([*words, "--machine", str(other)], fake) == 2
    assert f"predicted.json predicts by {own / 'outside.json'}; --out names another" in capsys.readouterr().err


def test_a_report_compares_what_was_signed(tmp_path) -> None:
    for turn, (name, seconds) in enumerate((("a", 0.2), ("b", 0.4), ("c", 0.8))):
        put(tmp_path, name, turn, made(seconds, seconds))
    steps = {
        name: {"seconds": seconds, "low": 0.9 * seconds, "high": 1.1 * seconds}
        for name, seconds in (("a-0", 0.21), ("b-1", 0.5), ("d", 1.0))
    }
    signed.save(tmp_path, Signed("0123456789abcdef", "2026-11-24T10:00:00+00:00", "machine.json", steps))
    assert verb.report("prediction")([str(tmp_path)]) == 0
    text = (tmp_path / "table.md").read_text()
    assert (
        "Predicted before the runs, by commit 0123456789 at 2026-11-24T10:00:00+00:00, with the constants of "
        "machine.json: 2 of 3 were run; 1 are within 10 %; the median error is 15.0 %, the mean 15.0 %, "
        "the largest 25.0 %, 1 lie in the predicted range; "
        "Kendall's tau of their order 1.00. None of these steps repeats itself to 3 %." in text
    )
    assert table(text)["b-1"][-3:] == ["500.00", "450.00-550.00", "+25.0 %"]
    assert table(text)["c-2"][-3:] == ["-"] * 3
    (tmp_path / signed.FILE).write_text("{}")
    with pytest.raises(UserError, match=r"predicted\.json: is not what"):
        signed.load(tmp_path)
