"""train.py for those who stand outside of the environment, and for readers who go."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wirebench.compose import run as train

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("made", "here", "way"),
    [
        (True, "", "source .venv/bin/activate"),
        (False, "", "make setup && source .venv/bin/activate"),
        (True, "configs", "cd '{root}' && source .venv/bin/activate"),
    ],
)
def test_outside_of_the_environment_one_line_says_how_to_enter_it(
    tmp_path: Path, made: bool, here: str, way: str
) -> None:
    root = tmp_path / "wire bench"
    (root / "wirebench").mkdir(parents=True)
    (root / "configs").mkdir()
    shutil.copy(ROOT / "train.py", root)
    for name in ("__init__.py", "errors.py"):
        shutil.copy(ROOT / "wirebench" / name, root / "wirebench")
    shutil.copytree(ROOT / "wirebench/utils", root / "wirebench/utils")
    if made:
        (root / ".venv/bin").mkdir(parents=True)
        (root / ".venv/bin/activate").touch()
    # -S -E: a Python that finds no packages.
    command = [sys.executable, "-S", "-E", str(root / "train.py"), "configs/smoke.toml"]
    done = subprocess.run(command, cwd=root / here, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and " has no torch: " in line
    assert line.endswith(f"enter that with: {way.format(root=root)}")


@pytest.mark.parametrize("words", [["--list"], ["--list", "topk"], ["--help"]])
def test_a_reader_who_goes_ends_it_quietly(monkeypatch: pytest.MonkeyPatch, capsys, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        try:
            assert train.main(words) == 141
        except SystemExit as end:
            assert (words, end.code) == (["--help"], 0)
    assert capsys.readouterr().err == ""
