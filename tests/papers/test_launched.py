"""wirebench study NAME run --launch: what is run where, what is left, and what a report says of it."""

import errno
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from papers.gs_sgd import cluster as gs_sgd
from papers.gs_sgd import report
from papers.runner import shown
from papers.trainings import Launched
from tests.papers import verb
from tests.papers.records import sound
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.folder_lock import NAME, Holder, _machine
from wirebench.utils.processes import began

FOUR = "horovodrun -np 4 -H a:1,b:1,c:1,d:1"
SPEED = ["--launch", f"env {FOUR}", "--parts", "speed", "--repeats", "2", "--data", "/data"]
ONE = ["--launch", "env", "--rows", "vgg16 dense", "--repeats", "1", "--data", "/data", "--parts"]


class Cluster(verb.Trains):
    """Stands in for a launcher: writes the record of a run whose config is the command's."""

    def __init__(self, seconds: float = 0.1, status: str = "finished") -> None:
        super().__init__(self.made, 0 if status == "finished" else 1)
        self.seconds, self.status = seconds, status

    def made(self, told: Mapping[str, str]) -> dict[str, Any]:
        """On four machines of one rank each, beside what a run leaves."""
        words, folder = self.commands[-1], Path(told["output.dir"])
        begin = words.index("train.py") + 1
        config = resolve(loader.load(words[begin], words[begin + 1 :]))
        (folder / "config.toml").write_text(loader.dump(config))
        (folder / "steps.jsonl").write_text("{}\n")
        (folder / "checkpoints").mkdir(exist_ok=True)
        record, seconds = sound(), self.seconds * (1 + 0.01 * (len(self.commands) % 3))
        record |= {"config": loader.to_dict(config), "status": self.status, "world_size": 4}
        record["environment"]["hosts"] = [{"ranks": [rank]} for rank in range(4)]
        record["load"] *= 4
        return record | {"step_seconds": {"median": seconds, "p10": seconds, "p90": seconds}}


@pytest.mark.parametrize(
    ("words", "begin"),
    [
        ("horovodrun -np 4", "horovodrun -np 4 python train.py a.toml"),
        ("srun -n 4", "srun -n 4 python train.py a.toml"),
        ("torchrun --nproc-per-node 4", "torchrun --nproc-per-node 4 train.py a.toml"),
        ("python -m torch.distributed.run --nnodes 2", "python -m torch.distributed.run --nnodes 2 train.py a.toml"),
    ],
)
def test_each_launcher_starts_python_in_its_own_way(words: str, begin: str) -> None:
    place = Launched(tuple(words.split()))
    assert shown(place.on(["train.py", "a.toml"])) == begin
    module = begin.replace("train.py a.toml", "-m wirebench bench collectives")
    assert shown(place.on(["wirebench", "bench", "collectives"])) == module


def test_runs_take_turns_are_not_made_twice_and_are_judged_by_their_configs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake, out = Cluster(), ["--out", str(tmp_path)]
    assert verb.run("gs_sgd")([*SPEED, *out], fake) == 0
    turns = [word for command in fake.commands for word in command if word.startswith("output.dir=")]
    assert len(turns) == 2 * 2 * 16 and all(turn.endswith(("-0", ".part")) for turn in turns)
    made = {run.folder.name: run for run in recorded.directly_below(tmp_path / "speed")}
    assert {"vgg16_gs_sgd_literal-1", "resnet20_gtopk_density=0.001-0"} <= made.keys()
    note = made["vgg16_dense-0"].note
    assert note["layout"] == "1+1+1+1" and note["launch"].startswith(f"env {FOUR} python train.py configs/")
    again = Cluster()
    assert verb.run("gs_sgd")([*SPEED, *out], again) == 0
    assert again.commands == []
    assert verb.report("gs_sgd")(["--cluster", str(tmp_path), "--print", "--runs", "nowhere"]) == 2
    capsys.readouterr()
    measured = gs_sgd.load(tmp_path)
    assert {row.label for row in measured.rows["VGG-16"]} == {
        f"{label}{share}"
        for label in ("gtopk", "gs_sgd", "gs_sgd literal", "sketched_sgd", "sketched_sgd literal")
        for share in ("", " density=0.004", " density=0.001")
    } | {"dense"}
    assert verb.report("gs_sgd")(["--cluster", str(tmp_path), "--print"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [said] = [line for line in lines if line.startswith("| ResNet-20: gs-SGD's throughput over gTop-k")]
    assert "; at 0.4 % 1." in said and "; at 0.1 % 1." in said


def test_a_training_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    words = ["--launch", "env", "--parts", "training", "--repeats", "1", "--data", "/data", "--out", str(tmp_path)]
    broken = Cluster(status="interrupted")
    assert verb.run("gs_sgd")(words, broken) == 1
    part = tmp_path / "training/.vgg16_dense-0.part"
    assert (part / "checkpoints").is_dir(), "what it had saved is there"
    assert all({"train.resume=auto", "train.checkpoint_every_epochs=1"} <= set(each) for each in broken.commands)
    whole = Cluster()
    assert verb.run("gs_sgd")(words, whole) == 0
    assert whole.commands == broken.commands and not part.exists()
    assert recorded.at(tmp_path / "training/vgg16_dense-0")
    # Another launcher makes it no other run; another length does.
    assert verb.run("gs_sgd")(["--launch", "env -i", *words[2:]], verb.nothing) == 0
    assert verb.run("gs_sgd")([*words, "--set", "train.epochs=3"], verb.nothing) == 2


@pytest.mark.parametrize("part", ["training", "speed"])
def test_a_run_that_cannot_be_added_to_the_results_stays_and_is_added_by_the_next_call(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*ONE, part, "--out", str(tmp_path)]
    full, folder = OSError(errno.ENOSPC, "No space left on device"), tmp_path / part / ".vgg16_dense-0.ended"
    with monkeypatch.context() as patched:
        patched.setattr(recorded, "add", lambda *_: (_ for _ in ()).throw(full))
        assert verb.run("gs_sgd")(words, Cluster()) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "vgg16 dense: the run has ended" in line]
    assert "No space left on device; it stays in" in line and (folder / "record.json").is_file()
    assert recorded.below(tmp_path) == []
    assert verb.run("gs_sgd")([*words, "--set", "train.accumulation=2"], verb.nothing) == 2, "it is another run"
    assert verb.run("gs_sgd")(words, verb.nothing) == 0
    [run] = recorded.below(tmp_path)
    assert run.folder.name == "vgg16_dense-0" and list(folder.parent.glob(".*")) == []


class Longer(Cluster):
    def made(self, told: Mapping[str, str]) -> dict[str, Any]:
        return super().made(told) | {"seconds_total": 77.0}


def test_a_run_made_again_that_cannot_be_added_is_added_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, folder = [*ONE, "training", "--out", str(tmp_path)], tmp_path / "training/.vgg16_dense-0.ended"
    assert verb.run("gs_sgd")(words, Cluster()) == 0
    with monkeypatch.context() as patched:
        patched.setattr(recorded, "add", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        assert verb.run("gs_sgd")([*words, "--again"], Longer()) == 2
    left = (folder / "record.json").read_bytes()
    assert verb.run("gs_sgd")(words, verb.nothing) == 0
    [run] = recorded.below(tmp_path)
    assert run.record["seconds_total"] == 77.0 and not folder.exists()
    (file,) = tmp_path.rglob(recorded.RUNS)
    lines = file.read_text()
    # A call was stopped as it took the folder away: this run is a line already.
    folder.mkdir()
    (folder / "record.json").write_bytes(left)
    assert verb.run("gs_sgd")(words, verb.nothing) == 0
    assert file.read_text() == lines and len(lines.splitlines()) == 2


def test_a_layout_is_filled_in_and_what_needs_more_machines_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = ["--launch", "horovodrun -np {ranks} -H {hosts}", "--machines", "x", "y"]
    words = [*launch, "--out", str(tmp_path), "--dry-run"]
    assert verb.run("flexreduce")([*words, "--parts", "cells"], verb.nothing) == 0
    said = capsys.readouterr()
    assert [line.partition(" python")[0] for line in said.out.splitlines()] == [
        f"horovodrun -np {x + y} -H x:{x},y:{y}" for x, y in ((2, 2), (2, 3), (3, 3), (3, 4), (4, 4))
    ]
    assert said.err.count("left out, needs 3 machines: cells on ") == 4
    one = ["--layouts", "2+3", "--parts", "end_to_end", "--repeats", "1"]
    assert verb.run("flexreduce")([*words, *one], verb.nothing) == 0
    trained = capsys.readouterr().out.splitlines()
    assert len(trained) == 4 and shlex.split(trained[0])[-1] == f"output.dir={tmp_path}/end_to_end/2+3/ring-0"
    assert "data.root=FOLDER" in trained[0]


def test_another_number_of_workers_is_another_setting(tmp_path: Path) -> None:
    on_vgg16(tmp_path, "one-0", "train.max_steps=5", world_size=8)
    with pytest.raises(ValueError, match="with 4 workers"):
        gs_sgd.load(tmp_path)


def on_vgg16(folder: Path, name: str, *words: str, method: str = "gtopk", **changes: object) -> Path:
    """A record as a cluster's run of few steps leaves it, with an accuracy as every run has one at its end."""
    Cluster()(["train.py", f"configs/papers/cifar10_vgg16_{method}.toml", f"output.dir={folder / name}", *words])
    path = folder / name / "record.json"
    record = json.loads(path.read_text())
    record["final"]["top1"] = 0.1
    path.write_text(json.dumps(record | changes))
    return path


def test_runs_of_other_settings_never_stand_in_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for turn in range(2):
        on_vgg16(tmp_path, f"gtopk-{turn}", "train.max_steps=5")
    on_vgg16(tmp_path, "other-0", "train.max_steps=5", "data.batch_size=8")
    on_vgg16(tmp_path, "here-0", "train.max_steps=5", engine="local")
    on_vgg16(tmp_path, "whole-0")
    measured = gs_sgd.load(tmp_path)
    [row] = measured.rows["VGG-16"]
    assert [run.folder.name for run in row.runs] == ["gtopk-0", "gtopk-1"]
    assert [[run.folder.name for run in each.runs] for each in measured.methods["VGG-16"]] == [["whole-0"]]
    said = capsys.readouterr().err
    assert said.startswith("left out, of another setting: 1 runs such as ") and "data.batch_size is 8, not 128" in said
    on_vgg16(tmp_path / "again", "gtopk-1", "train.max_steps=5")
    with pytest.raises(UserError, match=r"gtopk-1 and .*gtopk-1 are both turn 1"):
        gs_sgd.load(tmp_path)


@pytest.mark.parametrize(
    ("machines", "link", "state", "why"),
    [
        (4, "1gbit", "not decidable", ""),
        (4, "", "not run here", "the rate of the links is not noted: run --link"),
        (4, "10gbit", "other setting", "measured on links of 10gbit, the claim is of 1gbit"),
        (1, "1gbit", "other setting", "measured on 1 machines, the claim is of 4"),
    ],
)
def test_times_are_judged_on_the_papers_machines_and_links(
    machines: int, link: str, state: str, why: str, tmp_path: Path
) -> None:
    for turn in range(5):
        for method in ("gtopk", "gs_sgd_literal"):
            path = on_vgg16(tmp_path, f"{method}-{turn}", "train.max_steps=5", method=method)
            record = json.loads(path.read_text())
            path.write_text(json.dumps(record | {"load": record["load"][:machines]}))
            if link:
                (path.parent / "note.json").write_text(json.dumps({"link": link}))
    found = {each.claim.id: each.verdict for each in report.of_cluster(tmp_path)}
    assert found["vgg16_over_gtopk"].state == state and found["vgg16_over_gtopk"].why.startswith(why)
    assert found["complexity"].state not in ("other setting", "not run here"), "bytes are those of any network"


def test_what_another_composition_left_is_not_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*ONE, "training", "--out", str(tmp_path)]
    assert verb.run("gs_sgd")(words, Cluster(status="interrupted")) == 1
    assert verb.run("gs_sgd")([*words, "--set", "train.epochs=2"], verb.nothing) == 2
    assert "train.epochs=2" in capsys.readouterr().err
    anew = Cluster()
    assert verb.run("gs_sgd")([*words, "--set", "train.epochs=2", "--again"], anew) == 0
    assert len(anew.commands) == 1


def test_two_that_make_the_same_run_do_not_meet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*ONE, "training", "--out", str(tmp_path)]

    part, parent = tmp_path / "training/.vgg16_dense-0.part", os.getppid()
    part.mkdir(parents=True)
    told = Holder("a", _machine(), parent, began(parent), "now")
    (part / NAME).write_text(json.dumps(asdict(told)))
    assert verb.run("gs_sgd")(words, verb.nothing) == 1
    assert f"{part}" in capsys.readouterr().err
    (part / NAME).unlink()
    assert verb.run("gs_sgd")(words, Cluster()) == 0
    assert [run.folder.name for run in recorded.below(tmp_path)] == ["vgg16_dense-0"]


def test_ranks_on_other_machines_than_the_layouts_are_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb.run("gs_sgd")([*ONE, "speed", "--layouts", "2+2", "--out", str(tmp_path)], Cluster()) == 1
    assert "vgg16 dense: ran on 1+1+1+1, not on 2+2" in capsys.readouterr().err
    assert recorded.below(tmp_path) == []


def test_a_launcher_that_leaves_nothing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.run("gs_sgd")([*ONE, "speed", "--out", str(tmp_path)], lambda _: 0) == 1
    assert "has no record of what ended well; does rank 0's machine share it?" in capsys.readouterr().err
    cells = ["--launch", "env", "--out", str(tmp_path), "--parts", "cells", "--layouts", "2+3"]
    assert verb.run("flexreduce")(cells, lambda _: 0) == 1
    assert "2+3.jsonl: was not written; is its folder one that rank 0's machine shares?" in capsys.readouterr().err
