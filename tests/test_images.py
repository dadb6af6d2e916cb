"""The Dockerfile and the script that builds it, as far as they can be checked without building anything."""

import fnmatch
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "images.sh"
COMPILERS = ("g++", "gcc", "build-essential", "clang", "cmake", "nvcc", "python3-dev", "make")


def parse(dockerfile: Path) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Stage -> what it starts from, and its instructions as (word, rest), continuation lines joined."""
    kept = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    stages: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    current: list[tuple[str, str]] = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(kept)).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            current = []
            stages[name] = (base, current)
        else:
            current.append((word, rest))
    return stages


STAGES = parse(ROOT / "Dockerfile")


def instructions(stage: str) -> list[tuple[str, str]]:
    """All instructions that an image of this stage is made of, those of the stages that it starts from first."""
    base, own = STAGES[stage]
    return [*(instructions(base) if base in STAGES else []), *own]


def run_script(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    command = [shutil.which("bash") or "/bin/bash", str(SCRIPT), *arguments]
    environment = {"PATH": path, "HOME": "/nonexistent", "LC_ALL": "C"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_the_image_runs_as_an_ordinary_user(target):
    words = [word for word, _ in instructions(target)]
    assert ("USER", "wirebench") in instructions(target) and words.count("USER") == 1
    assert words[words.index("USER") :].count("RUN") == 0


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_no_compiler_is_installed_in_the_image(target):
    """But the one with which Triton builds the launcher of its kernels, on a GPU."""
    runs = [rest for word, rest in instructions(target) if word == "RUN"]
    found = {name for name in COMPILERS for rest in runs if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", rest)}
    assert found == ({"gcc", "python3-dev"} & set(COMPILERS) if target == "gpu" else set())
    assert "compilers" in STAGES and any("g++" in rest for _, rest in instructions("compilers"))


def test_what_is_copied_exists_and_is_not_ignored():
    admitted = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    linked = {path.name for path in (ROOT / "wirebench").iterdir() if path.is_symlink()}
    wanted = {"wirebench", "papers", "scripts", "LICENSE"} | linked
    wanted |= {path.name for path in ROOT.glob("*.py")}
    for _, own in STAGES.values():
        for word, rest in own:
            if word == "COPY" and not rest.startswith("--from"):
                wanted |= {source.partition("/")[0] for source in rest.split()[:-1]} - {"."}
    assert all((ROOT / name).exists() for name in wanted)
    assert {name for name in wanted if not any(fnmatch.fnmatch(name, pattern) for pattern in admitted)} == set()
    assert not {"results", "data", ".git", ".venv"} & set(admitted)


@pytest.mark.parametrize("arguments", [["tpu"], ["cpu", "--fast"], ["cpu", "gpu"]])
def test_wrong_arguments_are_answered_in_one_line(arguments):
    done = run_script(*arguments, path="/usr/bin:/bin")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and "cpu" in done.stderr
