import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
