"""wirebench study accuracy: which runs are started, which are not repeated, and what the table of accuracies says."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from papers.accuracy.classics import labels
from papers.accuracy.report import page
from papers.accuracy.run import CIFAR10
from papers.accuracy.task import Task
from papers.accuracy.tasks import CLASSICS, TASKS
from papers.gs_sgd.variants import DAMAGING_K, LITERAL
from tests import charts
from tests.flexreduce import run_record
from tests.papers import verb
from tests.papers.records import unlinked, write
from wirebench import compressors, models
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.record import recorded

pytestmark = pytest.mark.sampled(8)

run, report = verb.run("accuracy"), verb.report("accuracy")
QUICK, RESNET20 = TASKS["quick"], TASKS["resnet20"]


def record(*accuracies: float, megabytes: float = 10.0) -> dict:
    """A run with these accuracies after its epochs, and so many megabytes sent in each."""
    made = run_record("2+2")
    made["config"] |= {"data": {"name": "cifar10", "batch_size": 32}, "train": {"epochs": 3, "precision": "bf16"}}
    made["config"] |= {"optimizer": {"lr": 0.3}, "model": {"name": "resnet_cifar", "depth": 20}}
    made["config"].pop("compressor", None)  # each test's own matter
    made["history"] = [
        {
            "epoch": epoch, "seconds": 1.0, "loss": 1.0, "top1": top1, "top5": top1, "test_loss": 1.0,
            "seconds_total": epoch + 1.0, "wire_bytes_total": 1e6 * megabytes * (epoch + 1),
        }
        for epoch, top1 in enumerate(accuracies)
    ]  # fmt: skip
    made["final"]["top1"] = accuracies[-1]
    made["health"] = {"health/compression_error": {"last": 0.5, "mean": 0.25}}
    made["warnings"] = []
    return made


def put(folder: Path, label: str, seed: int, made: dict, task: str = "resnet20", **more: object) -> Path:
    return write(folder / "convergence" / task / f"{label}-{seed}", made, seed=seed, **more)


def rows(folder: Path) -> list[str]:
    """The table's rows, by a report of the folder."""
    assert report(["--out", str(folder)]) == 0
    lines = [line for line in text_of(folder).splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith(("| ---", "| method", "| claim"))]


def text_of(folder: Path) -> str:
    return unlinked((folder / "convergence/resnet20/table.md").read_text())


def noted(path: Path) -> dict[str, Any]:
    """The note of a run."""
    run = recorded.at(path)
    assert run is not None
    return dict(run.note)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The flags of a run of the first seed of top-k on ResNet-20."""
    (tmp_path / "data" / CIFAR10).mkdir(parents=True)
    where = ["--out", str(tmp_path), "--data", str(tmp_path / "data")]
    return [*where, "--task", "resnet20", "--seeds", "0", "--methods", "topk"]


class Fake(verb.Trains):
    """Leaves a record of this status in every folder, none for "", and ends with this exit code."""

    def __init__(self, status: str = "finished", code: int = 0) -> None:
        super().__init__(lambda told: self.made() if status else None, code)
        self.status = status

    def made(self) -> dict[str, Any]:
        """The record of the command that is under way."""
        made, command = record(0.5, 0.8) | {"status": self.status}, self.commands[-1]
        ran = loader.to_dict(resolve(loader.load(command[2], command[3:])))
        made["config"] |= {section: ran[section] for section in ("compressor", "optimizer")}
        made["config"]["train"]["seed"] = ran["train"]["seed"]
        return made | ({"final": {"loss": None, "top1": None}} if self.status == "diverged" else {})

    @property
    def names(self) -> list[str]:
        """The runs that were started, without their task."""
        return [each.rpartition("/")[2] for each in self.started]


def test_every_compressor_is_trained_and_those_with_a_density_warm_up() -> None:
    chosen = {each.label: each for each in QUICK.methods(QUICK, None, 0.01)}
    plugins = {each.overrides[0].partition("=")[2] for each in chosen.values()}
    updates = {name for name in compressors.available() if compressors.class_of(name).makes_update}
    assert plugins >= set(compressors.available()) - updates and not plugins & updates
    assert "compressor.warmup=[0.25, 0.0625, 0.015625]" in chosen["topk"].overrides
    assert not any("warmup" in override for override in chosen["terngrad"].overrides)
    assert {each.label for each in RESNET20.methods(RESNET20, None, 0.01)} < set(labels(RESNET20))


@pytest.mark.parametrize("density", [0.01, 0.002])
@pytest.mark.parametrize(("task", "label"), [(task, label) for task in CLASSICS for label in labels(task)])
def test_a_warm_up_gets_sparser_from_epoch_to_epoch(density: float, task: Task, label: str) -> None:
    (chosen,) = task.methods(task, [label], density)
    warmup = re.search(r"warmup=\[(.*)\]", " ".join(chosen.overrides))
    if warmup is not None:
        last = DAMAGING_K / task.parameters if "k=" in label else density
        course = [*map(float, warmup.group(1).split(",")), last]
        assert course == sorted(set(course), reverse=True)
        assert len(course) > 1


@pytest.mark.parametrize("task", CLASSICS, ids=lambda task: task.name)
def test_the_models_size_is_the_models(task: Task) -> None:
    config = loader.load(task.config)
    side = config.data.options.get("size", 32)
    model = models.build(config.model.name, 10, (3, side, side), **config.model.options)
    assert sum(parameter.numel() for parameter in model.parameters()) == task.parameters


@pytest.mark.parametrize("name", TASKS)
def test_every_run_is_a_composition_that_makes_sense(name: str) -> None:
    task = TASKS[name]
    for method in task.methods(task, None, 0.01):
        resolve(task.composed(method))


def test_a_seeds_methods_lie_together_and_the_later_of_two_settings_counts(words: list[str], tmp_path: Path) -> None:
    """--set replaces what the task says. Contrasts have fewer seeds than the task."""
    fake, more = Fake(), ["--task", "quick", "--steps", "5", "--methods", "topk", "powersgd rank=1"]
    assert run([*words[:4], *more, "--set", "train.epochs=2"], fake) == 0
    names = [f"{label}-{seed}" for seed in range(5) for label in ("topk", "powersgd-rank=1")]
    assert fake.names == [name for name in names if name not in ("powersgd-rank=1-3", "powersgd-rank=1-4")]
    note = noted(tmp_path / "convergence/quick/topk-1")
    assert note["epochs"] == 2
    assert note["launch"].count("train.epochs=") == 1 and "train.max_steps=5" in note["launch"]


def test_what_is_there_is_not_trained_again(words: list[str], tmp_path: Path) -> None:
    assert run(words, Fake()) == 0
    failing, working, idle = Fake(code=1), Fake(), Fake()
    words += ["--methods", "dense", "topk"]
    assert run(words, failing) == 1 and failing.names == ["dense-0"]
    assert run(words, working) == 0 and working.names == ["dense-0"]
    elsewhere = tmp_path / "another"
    (elsewhere / CIFAR10).mkdir(parents=True)
    assert run([*words, "--data", str(elsewhere)], idle) == 0 and not idle.names, "where images lie is no setting"
    topk, dense = (noted(tmp_path / "convergence/resnet20" / name) for name in ("topk-0", "dense-0"))
    assert (topk["epochs"], topk["density"], topk["seed"], topk["task"]) == (10, 0.01, 0, "resnet20")
    assert dense["density"] is None
    assert run([*words, "--again"], idle) == 0 and idle.names == ["dense-0", "topk-0"]


def test_a_method_that_diverges_is_a_result(words: list[str], tmp_path: Path) -> None:
    put(tmp_path, "dense", 0, record(0.5, 0.9), epochs=10)
    fake = Fake("diverged", 3)
    assert run(words, fake) == run(words, fake) == 0
    assert fake.names == ["topk-0"]
    assert rows(tmp_path)[1].startswith(
        "| topk (diverged) | 1 | - | - | - | 80.0 | not reached | not reached | - | - |"
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--set", "train.epochs=20"], "epochs is 10 in topk-0 and 20 in this call"),
        (["--density", "0.02"], "density is 0.01 in topk-0 and 0.02 in this call"),
        (["--set", "train.epochs=20", "--methods", "dense"], "epochs is 10 in topk-0 and 20 in this call"),
    ],
)
@pytest.mark.parametrize("told", [{"epochs": 10, "density": 0.01}, {}], ids=["by the note", "by the config"])
def test_runs_of_other_settings_are_not_taken_for_those_that_are_asked_for(
    told: dict, asked: list[str], said: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = record(0.5, 0.9)
    made["config"]["train"]["epochs"] = 10
    made["config"]["compressor"] = {"name": "topk", "density": 0.01}
    put(tmp_path, "topk", 0, made, **told)
    assert run([*words, *asked], verb.nothing) == 2
    assert f"{tmp_path}/convergence/resnet20: mixes settings: {said}; --out " in capsys.readouterr().err


def test_a_method_without_a_density_joins_runs_of_any(words: list[str], tmp_path: Path) -> None:
    put(tmp_path, "topk", 0, record(0.5, 0.9), epochs=10, density=0.001)
    fake = Fake()
    assert run([*words, "--methods", "dense", f"gs_sgd literal k={DAMAGING_K}"], fake) == 0
    assert fake.names == ["dense-0", f"gs_sgd-literal-k={DAMAGING_K}-0"]


def test_a_run_that_was_begun_goes_on_and_is_not_stretched(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words, Fake("interrupted")) == 1
    saved = tmp_path / "convergence/resnet20/.topk-0.part/checkpoints"
    saved.mkdir()
    assert run([*words, "--set", "train.epochs=20"], verb.nothing) == 2
    assert "launch is 'train.epochs=10', and 'train.epochs=20' is asked for" in capsys.readouterr().err
    assert run(words, Fake("interrupted")) == 1 and saved.is_dir()
    assert run(words, Fake()) == 0 and not saved.parent.exists()


@pytest.mark.drawn
def test_the_table_by_hand(tmp_path: Path) -> None:
    """Times and bytes are read at 95 % of dense's 90 %, 85 %."""
    put(tmp_path, "dense", 0, record(0.5, 0.86, 0.90, megabytes=100))
    put(tmp_path, "topk", 0, record(0.4, 0.7, 0.86, megabytes=4))
    put(tmp_path, "topk", 1, record(0.4, 0.85, 0.88, megabytes=4))
    put(tmp_path, "gs_sgd", 0, record(0.4, 0.5, 0.6, megabytes=50))
    dense, topk, gs_sgd = rows(tmp_path)[:3]
    assert dense.startswith("| dense | 1 | 90.00 | - | - | 90.0 | 2.0 | 200 MB | 300 MB | 1x |")
    assert topk.startswith(
        "| topk | 2 | 87.00 +- 1.41 | -3.0 | too few seeds | 88.0 | 2.5 | 10 MB | 12 MB | 25x | 0.25 |"
    )
    few = "| gs_sgd | 1 | 60.00 | -30.0 | too few seeds | 60.0 | not reached | not reached | 150 MB | 2x |"
    assert gs_sgd.startswith(few)
    for name in ("epochs.svg", "bytes.svg"):
        assert (tmp_path / "convergence/resnet20" / name).stat().st_size > 4_000


def verdict(folder: Path, claim: str) -> str:
    """The last cell of a claim's row."""
    report(["--out", str(folder)])
    (row,) = [line for line in text_of(folder).splitlines() if line.startswith(f"| {claim}")]
    return row.split("|")[-3].strip()


def test_a_verdict_over_seeds_flips_when_a_record_is_doctored(tmp_path: Path) -> None:
    """gs-SGD within 1.5 points of top-k: 1.0 below over three seeds holds, one seed two points lower is not told."""
    for seed, jitter in enumerate((0.0, 0.001, -0.001)):
        put(tmp_path, "topk", seed, record(0.5, 0.90 + jitter))
        put(tmp_path, "gs_sgd", seed, record(0.5, 0.89 + jitter))
    claim = "gs-SGD with our defaults loses at most 1.5 points"
    assert verdict(tmp_path, claim) == "reproduced"
    path = tmp_path / "convergence/resnet20/gs_sgd-2/record.json"
    doctored = json.loads(path.read_text())
    doctored["final"]["top1"] = 0.87
    path.write_text(json.dumps(doctored))
    assert verdict(tmp_path, claim).startswith("not decidable: between ")
    for seed in range(3):
        path = tmp_path / f"convergence/resnet20/gs_sgd-{seed}/record.json"
        doctored["final"]["top1"] = 0.86 + 0.001 * seed
        path.write_text(json.dumps(doctored))
    assert verdict(tmp_path, claim).startswith("not reproduced: 3.9 points, not 1.5 points")


def test_the_bytes_of_a_claim_need_no_seeds(tmp_path: Path) -> None:
    put(tmp_path, "dense", 0, record(0.5, 0.9, megabytes=30))
    put(tmp_path, "gs_sgd", 0, record(0.5, 0.9, megabytes=10))
    assert verdict(tmp_path, "gs-SGD with our defaults sends at least 3 times fewer") == "reproduced"


def test_the_rank_correlation_of_two_tasks(tmp_path: Path) -> None:
    """Of methods that are judged in both: not of too few, nor of one of which a seed diverged."""
    for place, label in enumerate(("dense", "topk", "iwp", "dgc", "gtopk")):
        if label == "gtopk":
            report(["--out", str(tmp_path)])
            assert "rank correlation" not in text_of(tmp_path)
        for seed in range(3):
            put(tmp_path, label, seed, record(0.5, 0.9 - 0.01 * place))
            put(tmp_path, label, seed, record(0.5, 0.7 - 0.01 * place), task="quick")
    report(["--out", str(tmp_path)])
    said = "Of the 5 methods that have 3 seeds here and in the task quick, Spearman's rank correlation of the mean "
    assert f"{said}accuracies is 1.00" in text_of(tmp_path)
    gone = {**record(0.5, 0.9), "status": "diverged"}
    (tmp_path / "convergence/quick/gtopk-2/record.json").write_text(json.dumps(gone))
    report(["--out", str(tmp_path)])
    assert "rank correlation" not in text_of(tmp_path)


def test_a_method_of_which_a_seed_diverged_is_not_judged(tmp_path: Path) -> None:
    for seed in range(3):
        put(tmp_path, "dense", seed, record(0.5, 0.80 + 0.001 * seed))
        put(tmp_path, "topk", seed, record(0.5, 0.90 + 0.001 * seed))
    put(tmp_path, "topk", 3, {**record(0.5, 0.1), "status": "diverged", "final": {"loss": None, "top1": None}})
    (row,) = [row for row in rows(tmp_path) if row.startswith("| topk")]
    assert row.startswith("| topk (1 of 4 diverged) | 4 | ")
    assert "better" not in row


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda made: made["config"]["compressor"].update(masking=True), "compressor.masking is False"),
        (lambda made: made["config"]["optimizer"].update(weight_decay=0.1), "optimizer.weight_decay is 0.0"),
        (lambda made: made["config"]["train"].update(seed=0), "iwp-1: its note says seed 1, its record 0"),
    ],
)
def test_runs_of_one_row_are_of_one_method_and_each_of_its_own_seed(
    change: Callable[[dict], None], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(2):
        made = record(0.5, 0.9)
        made["config"]["compressor"] = {"name": "iwp", "masking": False}
        made["config"]["optimizer"]["weight_decay"] = 0.0
        if seed:
            change(made)
        put(tmp_path, "iwp", seed, made)
    assert report(["--out", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_no_seed_counts_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "iwp", 0, record(0.5, 0.9))
    write(tmp_path / "convergence/resnet20/iwp-1", record(0.5, 0.9), seed=0)
    assert report(["--out", str(tmp_path)]) == 2
    assert "iwp-1 are both seed 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("train", "epochs", 4, "epochs is 3 in dense-0 and 4 in topk-0"),
        ("data", "batch_size", 64, "batch size is 32 in dense-0 and 64 in topk-0"),
        ("data", "name", "digits", "data is 'cifar10' in dense-0 and 'digits' in topk-0"),
        ("optimizer", "lr", 0.1, "learning rate is 0.3 in dense-0 and 0.1 in topk-0"),
        ("", "world_size", 8, "workers is 4 in dense-0 and 8 in topk-0"),
    ],
)
def test_a_table_of_several_settings_is_refused(
    section: str, key: str, value: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = record(0.5, 0.9)
    (other["config"][section] if section else other)[key] = value
    put(tmp_path, "dense", 0, record(0.5, 0.9))
    put(tmp_path, "topk", 0, other)
    assert report(["--out", str(tmp_path)]) == 2
    assert f"{tmp_path}/convergence/resnet20: mixes settings: {said}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "needs a table"),
        ('{"label": 3, "seed": 0, "launch": "x"}', "label: needs a string, got 3"),
        ('{"label": "topk", "seed": 0}', "launch: needs a string, got None"),
        ('{"label": "topk", "seed": 0, "launch": "x", "epochs": "ten"}', "epochs: needs a whole number, got 'ten'"),
    ],
)
def test_a_damaged_note_is_one_line(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, "topk", 0, record(0.5, 0.9)) / "note.json"
    path.write_text(content)
    assert report(["--out", str(tmp_path)]) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert str(path.parent) in said and message in said


def test_a_methods_name_may_be_followed_by_options() -> None:
    names = ["powersgd rank=1", "randomk optimizer.momentum=0.9", "clt_k density=0.034", "gs_sgd literal rows=3"]
    rank, momentum, density, rows = QUICK.methods(QUICK, names, 0.01)
    assert rank.overrides == ("compressor.name=powersgd", "compressor.rank=1")
    assert momentum.overrides[:3] == (
        "compressor.name=randomk", "optimizer.momentum=0", "optimizer.momentum=0.9",
    )  # fmt: skip
    assert density.overrides[1:] == ("compressor.density=0.034", "compressor.warmup=[0.25, 0.0625]")
    assert density.density is None, "it joins runs of another density"
    assert rows.overrides[1 : len(LITERAL) + 1] == LITERAL and rows.overrides[-3] == "compressor.rows=3"
    with pytest.raises(UserError, match="no 'powersdg rank=1'"):
        QUICK.methods(QUICK, ["powersdg rank=1"], 0.01)


def test_runs_at_chance_have_figures(tmp_path: Path) -> None:
    """As after the first epoch of a short series, whose page is made after every run."""
    put(tmp_path, "dense", 0, record(0.1))
    put(tmp_path, "topk", 0, record(0.08))
    drawn = page(tmp_path / "convergence/resnet20")
    assert drawn is not None
    for figure in drawn.figures.values():
        assert figure is not None
        charts.check(figure)
