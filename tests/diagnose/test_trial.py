"""wirebench diagnose --try: what is launched, and what is made of it; --measure without ranks to measure with."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.verbs import verb
from tests.diagnose.test_diagnose import crowded, elsewhere, healthy, heavy, slow, write
from tests.distributed.launch import BIN, CONFIG, ROOT, Job, launch
from wirebench.config import loader
from wirebench.diagnose import trial
from wirebench.diagnose.launching import run, started
from wirebench.utils.own import OWN

main = verb("diagnose")
CLUSTER = "wirebench cluster run --hosts 2 --link 1gbit --"
SECONDS = {"before": 0.2, "after-1": 0.05, "after-2": 0.15}
"""By the folder's name without the number of its turn."""


class Launcher:
    """In the place of trial.run: notes the commands, and leaves a record with SECONDS.

    drift   seconds by which a step of each run takes longer than one of the run before
    held_up the number of a run whose steps take half a second longer
    others  cores of other work beside every run
    """

    def __init__(self, code: int = 0) -> None:
        self.code, self.drift, self.others = code, 0.0, 0.0
        self.held_up: int | None = None
        self.commands: list[list[str]] = []
        self.variables: list[Mapping[str, str]] = []
        self.configs: list[dict[str, Any]] = []

    def __call__(self, command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, list[str]]:
        self.commands.append(list(command))
        self.variables.append(variables)
        at = command.index("train")
        config = loader.load(command[at + 1], command[at + 2 :])
        self.configs.append(loader.to_dict(config))
        folder = Path(config.output.dir)
        folder.mkdir()
        record = healthy()
        number = len(self.commands) - 1
        drifted = self.drift * number + 0.5 * (number == self.held_up)
        record["step_seconds"]["median"] = SECONDS[folder.name.rpartition("-")[0]] + drifted
        record["load"] = [{"hostname": "vm", "ranks": [0, 1], "cores": 2, "others_cores": self.others}]
        (folder / "record.json").write_text(json.dumps(record))
        return self.code, ["the last line"]


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Launcher:
    fake = Launcher()
    monkeypatch.setattr(trial, "run", fake)
    return fake


def recorded(folder: Path, command: str, *plants: Any) -> None:
    """A record of a run that was so launched, with a whole config."""
    record = healthy()
    for plant in plants:
        plant(record)
    settings = ["compressor.name=topk", "compressor.warmup=[0.25]", "engine.workers=2", "engine.name=torch"]
    record["config"] = loader.to_dict(loader.load(ROOT / "configs/synthetic/toy.toml", settings))
    record["environment"]["command"] = command
    write(folder, record)


def test_the_change_is_tried_as_the_run_was_launched(
    launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "configs/synthetic/toy.toml data.batch_size=3"
    recorded(tmp_path, f"{CLUSTER} python train.py {given}", crowded)
    assert main([str(tmp_path), "--try", "--steps", "7", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    gain = told["findings"][0]["gain"]
    assert told["trial"] == {
        "passed_over": [], "steps": 7, "before_seconds": pytest.approx(0.2), "befores_seconds": [0.2] * 4, "busy": [],
        "tried": [{
            "finding": "threads", "command": f"{CLUSTER} python train.py {given} engine.threads=1",
            "after_seconds": pytest.approx(0.05), "afters_seconds": [0.05] * 3,
            "predicted_saving_seconds": gain, "measured_saving_seconds": pytest.approx(0.15),
            "savings_by_turn_seconds": pytest.approx([0.15] * 3),
        }],
    }  # fmt: skip
    begin = [*shlex.split(CLUSTER), "python", "-m", "wirebench", "train"]
    assert [command[: len(begin)] for command in launcher.commands] == [begin] * 7
    before, after, *_ = launcher.configs
    assert (before["engine"]["threads"], after["engine"]["threads"]) == (0, 1)
    assert before["data"]["batch_size"] == 16  # as recorded: what was typed is not read again
    assert before["train"]["max_steps"] == after["train"]["max_steps"] == trial.SETTLING + 7
    assert before["compressor"]["warmup"] == [] and before["output"]["tensorboard"] is False
    assert not list(tmp_path.glob(".tried-*"))


def test_predicted_and_measured_are_printed(
    launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, "torchrun --nproc-per-node 2 train.py c.toml", crowded, slow)
    assert main([str(tmp_path), "--try"]) == 0
    out = capsys.readouterr().out
    assert "torchrun --nproc-per-node 2 train.py c.toml engine.threads=1" in out
    assert "as it was    200 ms a step" in out and "with it    50 ms a step" in out
    assert "measured   150 ms a step saved (+75%)" in out and "predicted " in out


def test_what_is_passed_over_is_named(launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, f"{CLUSTER} python train.py c.toml", elsewhere, slow)
    assert main([str(tmp_path), "--try", "--json"]) == 0
    trial = json.loads(capsys.readouterr().out)["trial"]
    assert [each["finding"] for each in trial["tried"]] == ["interface"] and trial["passed_over"] == ["slow rank"]
    told = ["env", "GLOO_SOCKET_IFNAME=eth0", "NCCL_SOCKET_IFNAME=eth0", "python"]
    assert launcher.commands[1][len(shlex.split(CLUSTER)) :][: len(told)] == told
    named = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
    assert launcher.variables == [{}, named, {}, named, {}, named, {}]


def test_the_two_best_changes_of_all_findings_are_tried(
    launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, f"{CLUSTER} python train.py c.toml", heavy, crowded, elsewhere)
    assert main([str(tmp_path), "--try", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["findings"]) == 3
    assert [each["finding"] for each in told["trial"]["tried"]] == ["compressor", "interface"]
    names = [each["compressor"]["name"] for each in launcher.configs]
    assert names == ["topk", "none", "topk", "topk", "topk", "none", "topk", "none", "topk", "topk"]


def test_a_machine_whose_speed_drifts_measures_the_same_savings(
    launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every run is 20 ms slower than the one before, which is more than half of what the second change saves."""
    launcher.drift = 0.02
    recorded(tmp_path, f"{CLUSTER} python train.py c.toml", heavy, crowded, elsewhere)
    assert main([str(tmp_path), "--try", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["trial"]
    savings = [each["savings_by_turn_seconds"] for each in told["tried"]]
    assert savings == [pytest.approx([0.15] * 3), pytest.approx([0.05] * 3)]
    assert told["before_seconds"] == pytest.approx(0.2 + 0.02 * 4.5)


def test_a_turn_that_was_held_up_does_not_count(
    launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run 0 is as it was, before the first turn; run 5 has the change, in the third turn."""
    recorded(tmp_path, f"{CLUSTER} python train.py c.toml", crowded)
    for held_up, by_turn in ((0, [0.4, 0.15, 0.15]), (5, [0.15, 0.15, -0.35])):
        launcher.held_up, launcher.commands = held_up, []
        assert main([str(tmp_path), "--try", "--json"]) == 0
        [tried] = json.loads(capsys.readouterr().out)["trial"]["tried"]
        assert tried["savings_by_turn_seconds"] == pytest.approx(by_turn)
        assert tried["measured_saving_seconds"] == pytest.approx(0.15)


def test_other_work_on_the_machine_is_said_before_the_diagnosis_and_before_what_was_measured(
    launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def occupied(record: dict[str, Any]) -> None:
        crowded(record)
        record["load"] = [{"hostname": "vm", "ranks": [0, 1], "cores": 2, "others_cores": 1.25}]

    launcher.others = 0.5
    recorded(tmp_path, f"{CLUSTER} python train.py c.toml", occupied)
    assert main([str(tmp_path), "--try"]) == 0
    diagnosis, _, trial = capsys.readouterr().out.partition("Tried in 3 turns")
    line = "This machine was busy: 1.2 cores of other work during the run (vm, 2 cores)."
    assert diagnosis.startswith(line) and line in trial.partition("predicted")[0]
    assert "up to 0.5 cores of other work in 7 of the 7 short runs" in trial.partition("predicted")[0]
    launcher.others = 0.3
    recorded(tmp_path, f"{CLUSTER} python train.py c.toml", crowded)
    assert main([str(tmp_path), "--try"]) == 0
    assert "busy" not in capsys.readouterr().out, "0.15 of the cores are the limit of wirebench show, too"


def test_a_finding_without_a_setting_leaves_nothing_to_try(
    launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for plants in ((slow,), ()):
        recorded(tmp_path, f"{CLUSTER} python train.py c.toml", *plants)
        assert main([str(tmp_path), "--try"]) == 0
        assert "Nothing to try" in capsys.readouterr().out
    assert not launcher.commands


@pytest.mark.parametrize("command", ["", "python my_loop.py", "python -c 'import x' '{\"command\": [\"train.py\"]}'"])
def test_a_command_that_is_not_known_is_one_line(
    command: str, launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, command, crowded)
    assert main([str(tmp_path), "--try"]) == 2
    assert "does not say how train.py was launched" in capsys.readouterr().err


def test_a_short_run_that_fails_is_shown(
    launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher.code = 3
    recorded(tmp_path, f"{CLUSTER} python train.py c.toml", crowded)
    assert main([str(tmp_path), "--try"]) == 2
    err = capsys.readouterr().err
    assert "the last line" in err and "a short run failed, with exit code 3" in err
    assert not list(tmp_path.glob(".tried-*"))


def test_the_launchers_words() -> None:
    told, module = {"A": "1"}, "-m wirebench train"
    for command, words, shown in (
        ("torchrun -n 2 /x/train.py", f"torchrun -n 2 {module}", "torchrun -n 2 /x/train.py"),
        ("torchrun -n 2 -m wirebench train", f"torchrun -n 2 {module}", "torchrun -n 2 -m wirebench train"),
        ("horovodrun -np 2 /v/python3 train.py", f"horovodrun -np 2 env A=1 /v/python3 {module}",
         "horovodrun -np 2 env A=1 /v/python3 train.py"),
        ("horovodrun -np 2 wirebench train", f"horovodrun -np 2 env A=1 python {module}",
         "horovodrun -np 2 env A=1 wirebench train"),
        ("srun python -m wirebench train", f"srun env A=1 python {module}", f"srun env A=1 python {module}"),
        ("wirebench cluster run -- wirebench train", f"wirebench cluster run -- env A=1 python {module}",
         "wirebench cluster run -- env A=1 wirebench train"),
        ("python train.py", f"env A=1 python {module}", "env A=1 python train.py"),
    ):  # fmt: skip
        how = started({"environment": {"command": f"{command} c.toml output.dir=train.py"}})
        assert how is not None
        assert (shlex.join(how.words(told)), shlex.join(how.shown(told, []))) == (words, f"{shown} c.toml")
        assert "env" not in how.words({})
    assert started({"environment": {}}) is None and started({"environment": {"command": "python mine.py"}}) is None


def test_the_shown_command_is_the_runs_with_the_change() -> None:
    run = (
        "c.toml train.max_steps=9 output.dir=out compressor.name=topk compressor.density=0.1 scheduler.bucket_cap_mb=1"
    )
    how = started({"environment": {"command": f"wirebench train {run}"}})
    assert how is not None
    for settings, shown in (
        (["compressor.name=fp16"], "train.max_steps=9 scheduler.bucket_cap_mb=1 compressor.name=fp16"),
        (["scheduler.bucket_cap_mb=8"],
         "train.max_steps=9 compressor.name=topk compressor.density=0.1 scheduler.bucket_cap_mb=8"),
    ):  # fmt: skip
        assert shlex.join(how.shown({}, settings)) == f"wirebench train c.toml {shown}"


def test_a_command_finds_this_environments_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    code, said = run(["python", "-c", "import os, sys; print(os.environ['ADDED'], sys.executable)"], {"ADDED": "1"})
    assert (code, said) == (0, [f"1 {sys.executable}"])
    assert run(["sh", "-c", "command -v torchrun; exit 4"], {}) == (4, [str(BIN / "torchrun")])
    assert set(OWN) == {"python", "wirebench"}


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (f"{CLUSTER} python train.py c.toml", f"{CLUSTER} wirebench diagnose RUN --measure"),
        ("torchrun --nproc-per-node 2 train.py", "torchrun --nproc-per-node 2 -m wirebench diagnose RUN --measure"),
        ("python train.py c.toml", "wirebench cluster run --hosts 2 -- wirebench diagnose RUN --measure"),
    ],
)
def test_measuring_alone_is_answered_with_the_line_to_type(
    command: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, command)
    assert main([str(tmp_path), "--measure"]) == 2
    assert capsys.readouterr().err.strip().endswith(line.replace("RUN", str(tmp_path)))


@pytest.mark.parametrize(
    ("words", "says"), [(("--steps", "0"), "--steps: must be at least 1"), (("--measure", "--try"), "not allowed with")]
)
def test_mistakes_are_one_line(
    words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), *words]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


@pytest.mark.weekly  # test_planted.py tries what it finds on a cluster
@pytest.mark.clock
def test_a_real_trial(tmp_path: Path) -> None:
    """On two ranks of this machine: the record's own command, found and repeated, with one thread instead of eight."""
    folder = tmp_path / "run"
    words = [CONFIG, f"output.dir={folder}", "engine.threads=8", "train.max_steps=8", "output.trace_steps=2"]
    ended = launch("torch", 2, words, tmp_path / "logs")
    assert ended.code == 0, ended.said
    job = Job([*map(str, [BIN / "python", "-m", "wirebench", "diagnose", folder, "--try", "--steps", 4, "--json"])],
              tmp_path / "logs", {})  # fmt: skip
    ended = job.wait()
    assert ended.code == 0, ended.said
    told = json.loads(ended.out)["trial"]
    [tried] = [each for each in told["tried"] if each["finding"] == "threads"]
    assert tried["command"].startswith("torchrun --standalone --local-addr ")
    assert told["before_seconds"] > 0 and tried["after_seconds"] > 0
