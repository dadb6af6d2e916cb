"""A wheel in an environment of its own, from a folder whose own models/, compressors.py and others have our names."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from wirebench.utils.package import TOP

FOREIGN = (
    "models/__init__.py",
    "compressors.py",
    "suite.py",
    "tests/__init__.py",
    "schedulers.py",
    "papers/__init__.py",
)
BLOCKED = ("altair", "vl_convert", "torchvision", "sklearn", "PIL", "tensorboard", "horovod")
"""Of extras."""
TINY = ("train.max_steps=6", "output.tensorboard=false")
RUN = ("train", "smoke", "engine.name=local", *TINY, "output.dir=run")

Run = Callable[..., str]


def checkout(folder: Path) -> Path:
    """What git knows of this checkout, but for its results; setuptools leaves its work beside the sources."""
    listed = ["git", "-C", str(TOP), "ls-files", "-z", "-co", "--exclude-standard", ":!results"]
    for name in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (TOP / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the call that pip makes, without the network."""
    made = tmp_path_factory.mktemp("wheel")
    sources = checkout(tmp_path_factory.mktemp("sources"))
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(made)], cwd=sources, check=True, stdout=subprocess.DEVNULL)
    return next(made.glob("wirebench-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, and of this one's packages all but the project itself."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    purelib = sysconfig.get_path("purelib", vars={"base": str(folder)})
    # The .pth file of an editable install is not read there.
    shared = [sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))]
    (Path(purelib) / "shared.pth").write_text("\n".join(dict.fromkeys(shared)) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-compile"]
    subprocess.run([*pip, str(wheel)], check=True)
    return python


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of somebody's own, which says so where one of its modules is imported."""
    folder = tmp_path_factory.mktemp("somewhere")
    for name in FOREIGN:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("raise RuntimeError('a module of the user was imported')\n")
    return folder


@pytest.fixture(scope="module")
def run(installed: Path, there: Path) -> Run:
    """Runs words in that folder; the first is a program of the environment."""

    def start(*words: str, code: int = 0, **variables: str) -> str:
        programs = str(installed.parent)
        path = os.pathsep.join([programs, str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PYTHONPATH": "", "PATH": path, "OMP_NUM_THREADS": "1", **variables}
        done = subprocess.run(words, cwd=there, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return start


def test_the_package_comes_from_the_wheel_and_has_no_papers(run: Run, installed: Path) -> None:
    code = (
        "from wirebench import compressors, models, schedulers; print(models.__file__)\n"
        "from wirebench.compressors.kernels import native as n; print(n.SOURCE.is_file(), n.library() is not None)\n"
        "from wirebench.record import edition; print(edition.tasks())"
    )
    place, native, editions = run("python", "-c", code).splitlines()[:3]
    assert place.startswith(str(installed.parents[1])) and native == f"True {shutil.which('cc') is not None}"
    assert "resnet20" in editions
    assert "wirebench 0." in run("wirebench", "--version") and "advise" in run("wirebench", "--help")
    assert run("wirebench", "study", code=2).startswith("wirebench study: studies are not installed; ")


def test_it_trains_by_a_bare_name(run: Run, there: Path) -> None:
    run("wirebench", *RUN)
    assert json.loads((there / "run" / "record.json").read_text())["steps_done"] == 6
    assert "smoke" in run("wirebench", "show", "run")
    assert "commit: none: it was not made in a checkout" in run("wirebench", "submit", "run", code=2)


@pytest.mark.slow
def test_it_reads_runs_and_plans_without_results(run: Run) -> None:
    run("wirebench", *RUN[:-1], "output.dir=read")
    assert "smoke" in run("wirebench", "table", "read")
    run("wirebench", "diagnose", "read")
    said = run("wirebench", "train", "configs/smoke.toml", code=2)
    assert said.endswith("No such file or directory; did you mean smoke, which is shipped?\n")
    assert "free" in run("wirebench", "advise", "--trace", "resnet20_k80", "--workers", "4", "--compressors", "fp16")
    assert "wfbp" in run("wirebench", "simulate", "--trace", "resnet20_k80", "--workers", "4")


@pytest.mark.slow
def test_a_plugin_of_another_distribution_has_a_name(run: Run, there: Path, tmp_path: Path) -> None:
    (tmp_path / "halved.py").write_text(
        "from wirebench.compressors.fp16 import Fp16\n\n\nclass Halved(Fp16):\n    '''As fp16.'''\n"
    )
    about = tmp_path / "halved-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: halved\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[wirebench.compressors]\nhalved = halved:Halved\n")
    run("wirebench", *RUN[:-1], "output.dir=other", "compressor.name=halved", PYTHONPATH=str(tmp_path))
    record = json.loads((there / "other" / "record.json").read_text())
    assert record["config"]["compressor"]["name"] == "halved"
    assert "halved" in run("wirebench", "train", "--list", PYTHONPATH=str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "wirebench topology 2+3_1gbit.toml",
        pytest.param("wirebench compat", marks=pytest.mark.weekly),
        "wirebench fit cells.jsonl",
        "wirebench trace estimate --model lenet --gpu v100 --batch 2 --out t.json",
        "wirebench bench compressors --sizes 1k --compressors none",
        "wirebench bench --help",
        pytest.param("wirebench doctor --help", marks=pytest.mark.weekly),
        pytest.param("wirebench chaos --help", marks=pytest.mark.weekly),
        "wirebench cluster status",
        pytest.param(
            "torchrun --standalone --nproc-per-node 2 -m wirebench train smoke output.dir=t", marks=pytest.mark.weekly
        ),
        "wirebench torchrun --standalone --nproc-per-node 2 -m wirebench train smoke output.dir=w",
        "horovodrun -np 2 -H 127.0.0.1:2 --gloo --network-interface lo wirebench train smoke output.dir=h",
        pytest.param("torchrun --standalone --nproc-per-node 2 plain_ddp.py", marks=pytest.mark.weekly),
        "torchrun --standalone --nproc-per-node 2 synchronised.py",
    ],
)
def test_every_subcommand_s_smallest_case(run: Run, there: Path, words: str) -> None:
    for example in (TOP / "examples").glob("*.py"):
        shutil.copy(example, there)
    if "cells.jsonl" in words:
        start = "torchrun --standalone --nproc-per-node 2 -m wirebench bench collectives --collectives ring"
        run(*start.split(), "--sizes", "4", "4k", "64k", "--json", "cells.jsonl")
    if words.startswith("horovodrun") and shutil.which("horovodrun", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("Horovod is not installed")
    run(*words.split(), *(TINY if " train smoke" in words else ()))


@pytest.mark.slow
def test_without_extras_what_needs_none_works_and_the_rest_says_which_is_missing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n\n\nclass Blocked:\n    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {BLOCKED}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n\n\n"
        "sys.meta_path.insert(0, Blocked())\n"
    )
    core = {"PYTHONPATH": str(tmp_path)}
    few = ("--trace", "resnet20_k80", "--workers", "4")
    run("wirebench", "advise", *few, "--compressors", "fp16", **core)
    run("wirebench", "simulate", *few, **core)
    run("wirebench", "train", "synthetic/toy", "engine.name=local", *TINY, "output.dir=core", **core)
    run("wirebench", "diagnose", "core", **core)
    said = run("wirebench", "simulate", *few, "--figure", "f.png", code=2, **core)
    assert said.endswith("altair is not installed: pip install 'wirebench[figures]'\n")
    said = run("wirebench", "train", "smoke", *TINY, code=2, **core)
    assert "sklearn is not installed: pip install 'wirebench[train]'" in said
    said = run("wirebench", "train", "synthetic/resnet50", code=2, **core)
    assert "torchvision is not installed: pip install 'wirebench[train]'" in said
