"""scripts/convergence.py and its report: which runs are started, which are not repeated, and what the table says."""

import json
from pathlib import Path

import pytest

import compressors
from resolve import resolve
from scripts import convergence, convergence_report
from scripts.convergence import plan
from tests.flexreduce import run_record
from wirebench import config


def record(*accuracies: float, megabytes: float = 10.0) -> dict:
    """A run with these accuracies after its epochs, and so many megabytes sent in each."""
    made = run_record("2+2")
    made["config"] |= {"data": {"name": "cifar10", "batch_size": 32}, "train": {"epochs": 3, "precision": "bf16"}}
    made["config"] |= {"optimizer": {"lr": 0.3}, "model": {"name": "resnet_cifar", "depth": 20}}
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


def put(folder: Path, label: str, seed: int, made: dict) -> None:
    place = folder / f"{label}-{seed}"
    place.mkdir(parents=True)
    (place / "record.json").write_text(json.dumps(made))
    (place / "method.json").write_text(json.dumps({"label": label, "seed": seed, "launch": "python train.py"}))


def test_every_compressor_is_trained_and_those_with_a_density_warm_up():
    chosen = plan(None, 0.01)
    plugins = {overrides[0].partition("=")[2] for overrides in chosen.values()}
    assert plugins == set(compressors.available())
    assert "compressor.warmup=[0.25, 0.0625, 0.015625]" in chosen["topk"]
    assert not any("warmup" in override for override in chosen["terngrad"])
    assert "compressor.k=10000" in chosen["gs_sgd k=10000"]


@pytest.mark.parametrize("label", plan(None, 0.01))
def test_every_run_is_a_composition_that_makes_sense(label: str) -> None:
    resolve(config.load(convergence.CONFIG, plan(None, 0.01)[label]))


def test_what_is_there_is_not_trained_again(tmp_path: Path) -> None:
    put(tmp_path, "dense", 0, record(0.5, 0.9))
    started = []

    def launch(command: list[str]) -> int:
        folder = Path(next(word for word in command if word.startswith("output.dir=")).partition("=")[2])
        started.append(folder.name)
        folder.mkdir(exist_ok=True)
        (folder / "record.json").write_text(json.dumps(record(0.5, 0.8)))
        return 1 if folder.name == "topk-1" else 0

    arguments = ["--out", str(tmp_path), "--data", "nowhere", "--methods", "dense", "topk", "--seeds", "0", "1"]
    assert convergence.main(arguments, launch) == 1
    assert started == ["topk-0", "dense-1", "topk-1"]
    assert not (tmp_path / "topk-1" / "method.json").exists()
    assert convergence.main(arguments, launch) == 1
    assert started[3:] == ["topk-1"]


def test_the_table_by_hand(tmp_path: Path) -> None:
    put(tmp_path, "dense", 0, record(0.5, 0.81, 0.90, megabytes=100))
    put(tmp_path, "topk", 0, record(0.4, 0.7, 0.82, megabytes=4))
    put(tmp_path, "topk", 1, record(0.4, 0.80, 0.84, megabytes=4))
    put(tmp_path, "gs_sgd", 0, record(0.4, 0.5, 0.6, megabytes=50))
    assert convergence.main(["--out", str(tmp_path), "--report"]) == 0
    table = (tmp_path / "table.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    rows = [line for line in rows if not line.startswith("| ---")]
    dense, topk, gs_sgd = rows
    assert dense.startswith("| dense | 1 | 90.00 | 0.0 | 90.0 | 2.0 | 200 MB | 300 MB | 1x |")
    assert topk.startswith("| topk | 2 | 83.00 +- 1.41 | 7.0 | 84.0 | 2.5 | 10 MB | 12 MB | 25x | 0.25 |")
    assert gs_sgd.startswith("| gs_sgd | 1 | 60.00 | 30.0 | 60.0 | not reached | not reached | 150 MB | 2x |")
    for name in ("epochs.png", "bytes.png"):
        assert (tmp_path / name).stat().st_size > 10_000


def test_a_seed_that_did_not_get_there_is_counted(tmp_path: Path) -> None:
    put(tmp_path, "topk", 0, record(0.4, 0.7))
    put(tmp_path, "topk", 1, record(0.4, 0.8))
    convergence_report.write(tmp_path)
    assert "| 2.0 (1 of 2 runs) | 20 MB (1 of 2 runs) |" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--report"], "train first"),
        (["--methods", "tokp", "--data", "x"], "--methods: no 'tokp'; there is: dense"),
        ([], "--data: which folder"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convergence.main(["--out", str(tmp_path), *arguments], lambda command: pytest.fail("started")) == 2
    said = capsys.readouterr().err
    assert said.startswith("convergence.py: ") and message in said and said.count("\n") == 1
