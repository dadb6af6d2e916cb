"""wirebench study methods run: what is started, and what is kept of it."""

import json
from pathlib import Path

import pytest

from papers.gs_sgd.variants import LITERAL, variants
from papers.methods import run as methods
from papers.methods.run import BASELINES, plan
from tests.flexreduce import run_record
from tests.papers import verb
from tests.papers.records import unlinked
from wirebench import compressors
from wirebench.cluster.signals import Interrupted
from wirebench.compose.resolve import refuse_cut, resolve
from wirebench.config import loader
from wirebench.record import recorded

CONFIGS = ("configs/tables/methods_vgg16.toml", "configs/tables/methods_resnet20.toml")


def record(name: str, seconds: float, wire: float = 1e6, nic: float = 1.02e6) -> dict:
    """A run of this compressor, four workers."""
    made = run_record("2+2")
    made["config"]["name"] = "methods-vgg16"
    made["config"]["model"] = {"name": "replay", "trace": "vgg16_cifar_gtx1080ti"}
    made["config"]["compressor"] = {"name": name}
    made["config"]["network"] = {"dilation": 10.0}
    made["step_seconds"] = {"median": seconds, "p10": 0.9 * seconds, "p90": 1.2 * seconds}
    made["phases"] = {name: 0.01 for name in made["phases"]} | {"compress": 0.1, "exchange_exposed": 0.3}
    made["bytes_per_step"] = {
        "payload": 5e5, "dense": 4e6, "wire": wire, "wire_mean": 0.9 * wire, "wire_max": wire, "nic": nic,
        "nic_headers": 1e4,
    }  # fmt: skip
    made["compressor_state"] = 2.0
    return made


class Fake:
    """Stands in for the clusters: writes a record for every command; one compressor ends otherwise."""

    def __init__(self, failing: str = "none of them", status: str = "finished") -> None:
        self.failing, self.status = failing, status
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str]) -> int:
        self.commands.append(command)
        name = next(word for word in command if word.startswith("compressor.name=")).partition("=")[2]
        folder = Path(next(word for word in command if word.startswith("output.dir=")).partition("=")[2])
        (folder / "tb").mkdir(parents=True)
        made = record(name, 0.5)
        if name == self.failing:
            made["status"] = self.status
        (folder / "record.json").write_text(json.dumps(made))
        return 1 if name == self.failing else 0


def run(out: Path, *arguments: str, **ending: str) -> tuple[int, Fake]:
    fake = Fake(**ending)
    return verb.run("methods")(["--config", CONFIGS[0], "--out", str(out), *arguments], fake), fake


def test_every_compressor_has_a_row_and_the_baselines_stand_first():
    assert list(plan(None, 0.01))[: len(BASELINES)] == list(BASELINES)
    assert set(plan(None, 0.01)) == {*BASELINES, *compressors.available(), *variants(0.01)} - {"none"}
    assert plan(["gs_sgd literal k=10000"], 0.01)["gs_sgd literal k=10000"] == [
        "compressor.name=gs_sgd", *LITERAL, "compressor.k=10000",
    ]  # fmt: skip
    assert plan(["gtopk"], 0.05) == {"gtopk": ["compressor.name=gtopk", "compressor.density=0.05"]}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("path", CONFIGS)
@pytest.mark.parametrize("label", plan(None, 0.01))
def test_every_row_is_a_composition_that_makes_sense(label: str, path: str) -> None:
    settings = resolve(loader.load(path, plan(None, 0.01)[label]))
    refuse_cut(settings, [range(0, 3)])


def test_methods_take_turns_and_only_what_is_needed_is_kept(tmp_path: Path) -> None:
    code, fake = run(
        tmp_path, "--methods", "dense", "gs_sgd", "--turns", "2", "--link", "200mbit", "--set", "train.seed=1"
    )
    assert code == 0
    assert [word.rpartition("/")[2] for command in fake.commands for word in command if "output.dir" in word] == [
        ".dense-0.part", ".gs_sgd-0.part", ".dense-1.part", ".gs_sgd-1.part",
    ]  # fmt: skip
    for command in fake.commands:
        assert command[command.index("--link") + 1] == "200mbit"
        assert "train.seed=1" in command
    assert sorted(path.name for path in tmp_path.iterdir()) == [recorded.SHARED, recorded.RUNS]
    made = {run.folder.name: run for run in recorded.below(tmp_path)}
    assert list(made) == ["dense-0", "dense-1", "gs_sgd-0", "gs_sgd-1"] and not made["dense-0"].files
    assert f"output.dir={tmp_path}/gs_sgd-1" in made["gs_sgd-1"].note["launch"]


def test_what_is_there_is_not_run_again_and_what_was_run_otherwise_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--methods", "dense", "topk", "--turns", "1"]
    assert len(run(tmp_path, "--methods", "dense", "--turns", "1")[1].commands) == 1
    assert [fake.commands[0][-2] for fake in [run(tmp_path, *arguments)[1]]] == ["compressor.density=0.01"]
    assert "1 of 2 runs are there already; --again makes them anew\n" in capsys.readouterr().err
    for other, said in ((["--hosts", "2"], "hosts is 4, and 2 is asked for"), (["--density", "0.1"], "density=0.01")):
        code, fake = run(tmp_path, *arguments, *other)
        assert code == 2 and not fake.commands
        assert said in capsys.readouterr().err
    assert len(run(tmp_path, *arguments, "--again", "--density", "0.1")[1].commands) == 2


def test_a_method_that_fails_leaves_the_others_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(tmp_path, "--methods", "dense", "gtopk", "topk", "--turns", "1", failing="gtopk")
    assert code == 1
    assert [run.folder.name for run in recorded.below(tmp_path)] == ["dense-0", "topk-0"]
    assert "failed: gtopk\n" in capsys.readouterr().err


def test_a_run_that_fails_costs_the_earlier_one_nothing(tmp_path: Path) -> None:
    old = put(tmp_path, "gtopk", 0, record("gtopk", 0.1))
    assert run(tmp_path, "--methods", "gtopk", "--turns", "1", "--again", failing="gtopk")[0] == 1
    assert recorded.read(old)["step_seconds"]["median"] == 0.1
    assert run(tmp_path, "--methods", "gtopk", "--turns", "1", "--again")[0] == 0
    [again] = recorded.below(tmp_path)
    assert again.record["step_seconds"]["median"] == 0.5


def test_a_stop_leaves_nothing_half_done(tmp_path: Path) -> None:
    old = put(tmp_path, "gtopk", 0, record("gtopk", 0.1))

    def stopped(command: list[str]) -> int:
        Fake()(command)
        raise Interrupted(2)

    arguments = ["--config", CONFIGS[0], "--out", str(tmp_path), "--methods", "gtopk", "topk", "--again"]
    assert verb.run("methods")(arguments, stopped) == 130
    assert list(tmp_path.iterdir()) == [old]


def test_a_method_that_diverges_has_a_row(tmp_path: Path) -> None:
    code, _ = run(tmp_path, "--methods", "dense", "topk", "--turns", "1", failing="topk", status="diverged")
    assert code == 0
    assert verb.report("methods")([str(tmp_path)]) == 0
    assert "| topk (diverged) (mg_wfbp, ring) |" in unlinked((tmp_path / "table.md").read_text())


def test_results_go_by_the_configs_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "RESULTS", tmp_path)
    own = tmp_path / "own.toml"
    own.write_text(Path(CONFIGS[0]).read_text().replace("methods-vgg16", "my vgg"))
    for configs in ([], ["--config", str(own)]):
        assert verb.run("methods")([*configs, "--methods", "dense", "--turns", "1"], Fake()) == 0
    assert {path.name for path in (tmp_path / "methods").iterdir()} == {"vgg16", "resnet20", "my-vgg"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "gtopp"], "--methods: no 'gtopp'; there is: dense"),
        (["--turns", "0"], "--turns: must be positive, got 0"),
        (["--hosts", "0"], "--hosts: must be positive, got 0"),
        (["--link", "fast"], "fast"),
        (["--density", "0"], "--density: lies in (0, 1], got 0"),
        (["--density", "1.5", "--methods", "dense"], "--density: lies in (0, 1], got 1.5"),
        (["--config", "configs/tables/none.toml"], "none.toml: cannot be read"),
        (["--set", "train.epoch=3"], "train.epoch: no such key"),
        (["--methods", "dense", "DDP", "--set", "collective.name=ring"], "DDP: scheduler.name: 'native' is"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, fake = run(tmp_path, *arguments)
    assert code == 2 and not fake.commands
    said = capsys.readouterr().err
    assert said.startswith("wirebench study methods run: ") and message in said and said.count("\n") == 1


def put(folder: Path, label: str, turn: int, made: dict, **more: object) -> Path:
    place = folder / f"{label}-{turn}"
    place.mkdir(parents=True)
    (place / "record.json").write_text(json.dumps(made))
    note = {"label": label, "hosts": 4, "link": "1gbit", "launch": "python train.py", **more}
    (place / "note.json").write_text(json.dumps(note))
    return place


def test_gs_sgds_runs_are_those_of_the_methods(tmp_path: Path) -> None:
    fake, arguments = Fake(), ["--out", str(tmp_path), "--models", "vgg16", "--turns", "1"]
    assert verb.run("gs_sgd")(arguments, fake) == 0
    assert {run.folder.name for run in recorded.directly_below(tmp_path / "vgg16")} == {
        "gtopk-0", "gs_sgd-0", "sketched_sgd-0", "gs_sgd_literal-0", "gs_sgd_literal_c=0.1k-0",
        "gs_sgd_literal_k=10000-0", "sketched_sgd_literal-0", "gtopk_16_bytes-0",
        *(f"{label}_density={share}-0" for label in ("gtopk", "gs_sgd_literal", "sketched_sgd_literal")
          for share in ("0.004", "0.001")),
    }  # fmt: skip
    assert run(tmp_path / "vgg16", "--methods", "gtopk", "gs_sgd literal", "--turns", "1")[1].commands == []
