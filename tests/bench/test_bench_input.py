import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.verbs import run
from wirebench.bench import overhead

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_script_measures_both_sides_and_reports_a_limit_that_is_not_kept(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = [
        "--batch-size",
        "4",
        "--turns",
        "3",
        "--input-batches",
        "2",
        "--steps",
        "1",
        "--precision",
        "fp32",
        "--limit",
        "1e9",
    ]
    command = [sys.executable, "-m", "wirebench", "bench", "input", *options, "--json", str(report)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "NOT KEPT" in done.stdout
    result = json.loads(report.read_text())["precision"]["fp32"]
    assert len(result["input_images_per_second"]) == len(result["training_images_per_second"]) == 3
    assert 0 < result["ratio"]["min"] <= result["ratio"]["median"] <= result["ratio"]["max"] < 1e9


OUTPUTS = [
    ("bench", "overhead", "--json"),
    ("bench", "checkpoint", "--json"),
    ("bench", "compressors", "--sizes", "1k", "--compressors", "none", "--json"),
    ("bench", "compressors", "--sizes", "1k", "--compressors", "none", "--figures"),
    ("bench", "input", "--json"),
    ("trace", "estimate", "--model", "lenet5", "--gpu", "v100", "--batch", "1", "--out"),
    ("trace", "reconstruct", "--model", "lenet5", "--seconds", "1", "--batch", "1", "--out"),
]


@pytest.mark.parametrize("words", OUTPUTS, ids=lambda words: f"{words[1]} {words[-1]}")
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_measured(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*given: object, **more: object) -> None:
        raise AssertionError("it began to measure")

    monkeypatch.setattr(overhead.subprocess, "run", measured)
    (tmp_path / "file").write_text("")
    done = run(*words, tmp_path / "file" / "new.json")
    assert done.returncode == 2 and "Not a directory" in done.stderr and done.stdout == "", done
    assert done.stderr.count("\n") == 1 and words[-1] in done.stderr
