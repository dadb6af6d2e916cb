"""scripts/bench_methods.py and its report: what is started, what is kept, and what the table says of it."""

import json
from pathlib import Path

import pytest

import compressors
from resolve import refuse_cut, resolve
from scripts import bench_methods, methods_report
from scripts.bench_methods import BASELINES, plan
from tests.flexreduce import run_record
from wirebench import config
from wirebench.paper_gs_sgd import SPEEDUPS

CONFIGS = ("configs/tables/methods_vgg16.toml", "configs/tables/methods_resnet20.toml")


def record(name: str, seconds: float, wire: float = 1e6, nic: float = 1.02e6) -> dict:
    """A run of this compressor, four workers."""
    made = run_record("2+2")
    made["config"]["name"] = "methods-vgg16"
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
    """Stands in for the clusters: writes a record for every command, and fails for one compressor."""

    def __init__(self, failing: str = "none of them") -> None:
        self.failing = failing
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str]) -> int:
        self.commands.append(command)
        name = next(word for word in command if word.startswith("compressor.name=")).partition("=")[2]
        folder = Path(next(word for word in command if word.startswith("output.dir=")).partition("=")[2])
        (folder / "tb").mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps(record(name, 0.5)))
        return 1 if name == self.failing else 0


def run(out: Path, *arguments: str, failing: str = "none of them") -> tuple[int, Fake]:
    fake = Fake(failing)
    return bench_methods.main(["--out", str(out), *arguments], fake), fake


def test_every_compressor_has_a_row_and_the_baselines_stand_first():
    assert list(plan(None, 0.01))[: len(BASELINES)] == list(BASELINES)
    wider = {"gs_sgd c=10k", "sketched_sgd c=10k"}
    assert set(plan(None, 0.01)) == {*BASELINES, *compressors.available(), *wider} - {"none"}
    assert plan(["gs_sgd c=10k"], 0.01)["gs_sgd c=10k"] == [
        "compressor.name=gs_sgd", "compressor.density=0.01", "compressor.ratio=0.1",
    ]  # fmt: skip
    assert plan(["gtopk"], 0.05) == {"gtopk": ["compressor.name=gtopk", "compressor.density=0.05"]}


@pytest.mark.parametrize("path", CONFIGS)
@pytest.mark.parametrize("label", plan(None, 0.01))
def test_every_row_is_a_composition_that_makes_sense(label: str, path: str) -> None:
    settings = resolve(config.load(path, plan(None, 0.01)[label]))
    refuse_cut(settings, [range(0, 3)])


def test_methods_take_turns_and_only_what_is_needed_is_kept(tmp_path: Path) -> None:
    code, fake = run(
        tmp_path, "--methods", "dense", "gs_sgd", "--turns", "2", "--link", "200mbit", "--set", "train.seed=1"
    )
    assert code == 0
    assert [word.rpartition("/")[2] for command in fake.commands for word in command if "output.dir" in word] == [
        "dense-0", "gs_sgd-0", "dense-1", "gs_sgd-1",
    ]  # fmt: skip
    for command in fake.commands:
        assert command[command.index("--link") + 1] == "200mbit"
        assert "train.seed=1" in command
    assert sorted(path.name for path in (tmp_path / "gs_sgd-1").iterdir()) == ["method.json", "record.json"]


def test_a_method_that_fails_leaves_the_others_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(tmp_path, "--methods", "dense", "gtopk", "topk", "--turns", "1", failing="gtopk")
    assert code == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dense-0", "topk-0"]
    assert "failed: gtopk\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "gtopp"], "--methods: no 'gtopp'; there is: dense"),
        (["--turns", "0"], "--turns: must be positive"),
        (["--link", "fast"], "fast"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, *arguments)[0] == 2
    said = capsys.readouterr().err
    assert said.startswith("bench_methods.py: ") and message in said and said.count("\n") == 1


def put(folder: Path, label: str, turn: int, made: dict) -> None:
    place = folder / f"{label}-{turn}"
    place.mkdir(parents=True)
    (place / "record.json").write_text(json.dumps(made))
    note = {"label": label, "hosts": 4, "link": "1gbit", "launch": "python train.py"}
    (place / "method.json").write_text(json.dumps(note))


def test_the_report_has_medians_over_turns_and_judges_the_papers_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for turn, seconds in enumerate((0.8, 1.0, 1.2)):
        put(tmp_path, "dense", turn, record("none", seconds))
    put(tmp_path, "gs_sgd", 0, record("gs_sgd", 0.5))
    put(tmp_path, "sketched_sgd", 0, record("sketched_sgd", 0.65))
    put(tmp_path, "gtopk", 0, record("gtopk", 0.25))
    assert methods_report.main([str(tmp_path)]) == 0
    table = (tmp_path / "table.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    assert [row.split()[1] for row in rows[1:5]] == ["gtopk", "gs_sgd", "sketched_sgd", "dense"]
    assert "| 1000 [720 - 1440] | 1.00 |" in table
    assert "| 1.010 |" in rows[1]  # (1.02 - 0.01) / 1 of the interface's bytes are no headers
    assert "Everything but the compressors is slowed down 10 times" in table
    sizes = "900 kB against 900 kB"
    assert f"| VGG-16: gs-SGD over gtopk | 3.12x | 0.50x | {sizes} | not reproduced: 0.50x, not 3.12x;" in table
    assert f"| VGG-16: gs-SGD over sketched_sgd | 1.23x | 1.30x | {sizes} | reproduced;" in table
    assert (tmp_path / "steps.png").stat().st_size > 10_000


def test_a_report_of_nothing_and_of_several_settings_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert methods_report.main([str(tmp_path)]) == 2
    other = record("none", 1.0)
    other["config"]["name"] = "methods-resnet20"
    put(tmp_path, "dense", 0, record("none", 1.0))
    put(tmp_path, "topk", 0, other)
    assert methods_report.main([str(tmp_path)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "run bench_methods.py first" in said[0] and "mixes clusters or configs" in said[1]


def test_the_papers_ratios():
    assert {model: [claim.ratio for claim in claims] for model, claims in SPEEDUPS.items()} == {
        "ResNet-20": [1.29, 1.06],
        "VGG-16": [3.12, 1.23],
    }
