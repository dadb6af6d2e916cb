"""The set-up scripts, as far as they can be tried without installing anything heavy."""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What the scripts may count on everywhere: Debian calls these packages essential. The others are what set-up looks for.
ESSENTIAL = """awk basename bash cat chmod cp cut df dirname env flock grep head mkdir mktemp mv nproc readlink realpath
    rm sed sh sha256sum sleep sort tail tr uname""".split()  # noqa: SIM905
TOOLS = ("git", "g++", "make")
OLD = "#!/bin/sh\nexit 1\n"


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def programs(tmp_path):
    """A folder to use as the whole PATH: essential programs, a good Python and every tool."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (*ESSENTIAL, *TOOLS):
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    write_program(folder / "python3.11", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    return folder


@pytest.fixture
def tree(tmp_path):
    """A copy of the files that set-up reads, so that no test touches the real environment."""
    copy = tmp_path / "tree with a space"
    (copy / "scripts").mkdir(parents=True)
    for name in ("requirements.lock", "pyproject.toml", "scripts/setup.sh", "scripts/build_horovod.sh"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def run_script(script: Path, *arguments: str, path: Path | str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script with nothing but the given environment; the time limit catches an install that was not meant."""
    environment = {"PATH": str(path), "HOME": "/nonexistent", "LC_ALL": "C", **variables}
    command = [shutil.which("bash") or "/bin/bash", str(script), *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )


def setup_complaints(tree: Path, path: Path | str, **variables: str) -> list[str]:
    """The lines on standard error of a set-up that must refuse to start."""
    result = run_script(tree / "scripts/setup.sh", path=path, **variables)
    assert result.returncode == 2, result
    assert result.stdout == ""
    return result.stderr.splitlines()


def without(name: str, programs: Path) -> None:
    (programs / name).unlink()


def fails(name: str, programs: Path) -> None:
    (programs / name).unlink()
    write_program(programs / name, OLD)


def fill_disk(programs: Path) -> None:
    (programs / "df").unlink()
    write_program(programs / "df", "#!/bin/sh\necho head\necho /dev/vda 100000000 90000000 5000000 95% /\n")


@pytest.mark.parametrize(
    ("spoil", "told", "line"),
    [
        (partial(without, "git"), {}, "missing: git.*apt-get install git$"),
        (partial(without, "g++"), {"HOROVOD": "1"}, r"missing: g\+\+.*apt-get install g\+\+$"),
        (partial(without, "make"), {"HOROVOD": "1"}, "missing: make.*apt-get install make$"),
        (partial(fails, "python3.11"), {}, "missing: Python 3.11 or later;"),
        (partial(fails, "g++"), {"HOROVOD": "1"}, r".*g\+\+ is too old"),
        (fill_disk, {}, ".* 4 GB of free disk space; about 12 GB are needed"),
        (id, {"PYTHON": "/no/such/python"}, ".*/no/such/python is not"),
        (id, {"HOROVOD": "no"}, ".*HOROVOD is no"),
    ],
)  # fmt: skip
def test_setup_says_in_one_line_what_keeps_it_from_starting(tree, programs, spoil, told, line):
    spoil(programs)
    (said,) = setup_complaints(tree, programs, **told)
    assert re.match(f"setup: {line}", said), said


def test_setup_names_every_missing_tool_at_once(tree, programs):
    for tool in TOOLS:
        (programs / tool).unlink()
    assert len(setup_complaints(tree, programs)) == len(TOOLS)
    assert not (tree / ".venv").exists()


def test_setup_takes_the_first_python_that_is_new_enough(tree, programs):
    good = (programs / "python3.11").read_text()
    write_program(programs / "python3.11", OLD)
    write_program(programs / "python3", good)
    (programs / "git").unlink()
    (line,) = setup_complaints(tree, programs)
    assert "git" in line


def test_setup_needs_no_compiler_without_horovod(tree, programs):
    for tool in TOOLS:
        (programs / tool).unlink()
    (line,) = setup_complaints(tree, programs, HOROVOD="0")
    assert "git" in line


def test_what_only_horovod_needs_is_a_line_and_horovod_is_left_out(tree, programs):
    (programs / "g++").unlink()
    result = install(tree, programs, "#!/bin/sh\nexit 0\n")
    assert result.returncode == 0
    missing, *_, done = result.stderr.splitlines()
    assert missing.startswith("setup: missing: g++") and "without Horovod" in done
    assert "Horovod is installed" not in result.stderr


def test_setup_refuses_unknown_options(tree, programs):
    result = run_script(tree / "scripts/setup.sh", "--fast", path=programs)
    assert result.returncode == 2
    assert result.stderr.startswith("usage:")


def pretend_installed(tree: Path, programs: Path) -> None:
    """Make a .venv that cannot be told from a finished one; its Python ignores every install."""
    result = install(tree, programs, "#!/bin/sh\nexit 0\n")
    assert result.returncode == 0, result


def install(tree: Path, programs: Path, python: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A set-up in which `python` is the program of .venv that installs, and Horovod's wheel is there."""
    folder = tree / ".venv/bin"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = tree / "horovod.whl"
    wheel.touch()
    write_program(tree / "scripts/build_horovod.sh", f"echo '{wheel}'\n")
    write_program(folder / "python", python)
    return run_script(tree / "scripts/setup.sh", path=programs, **variables)


def pip_that(says: str) -> str:
    """A Python whose `pip install` runs these shell commands."""
    return f'#!/bin/sh\ncase "$*" in *" install "*) {says} ;; esac\nexit 0\n'


def test_setup_shows_a_line_for_each_phase_and_keeps_what_pip_says_in_its_log(tree, programs):
    chatter = 'for i in 1 2 3 4 5 6 7 8 9; do echo "Collecting $i"; echo "WARNING: $i" >&2; done'
    result = install(tree, programs, pip_that(chatter))
    assert (result.returncode, result.stdout) == (0, "")
    phases = ("installing the packages", "packages are installed", "Horovod is installed", "done")
    shown = zip(result.stderr.splitlines(), phases, strict=True)
    assert all(line.startswith(f"setup: {phase}") for line, phase in shown), result.stderr
    assert (tree / ".venv/setup.log").read_text().count("Collecting 9\nWARNING: 9\n") >= 1


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (
            "echo 'Collecting cffi'; echo 'ERROR: No matching distribution found for cffi' >&2; exit 1",
            "pip failed: No m",
        ),
        ("echo \"broken by 'NewConnectionError(no route)'\"; echo 'ERROR: none' >&2; exit 1", "no network: the Python"),
        ("echo 'ERROR: [Errno 28] No space left on device'; exit 1", "the disk is full"),
    ],
)
def test_an_error_of_pips_is_one_line_that_names_the_log(tree, programs, says, told):
    """And the sleep between its signs of life does not hold its output open, which `install` would wait for in vain."""
    (programs / "sleep").unlink()
    write_program(programs / "sleep", f'#!/bin/sh\nexec "{shutil.which("sleep")}" 90\n')
    result = install(tree, programs, pip_that(says))
    assert result.returncode == 2
    _, line = result.stderr.splitlines()
    assert line.startswith(f"setup: {told}")
    assert str(tree / ".venv/setup.log") in line
    assert "ERROR: " in (tree / ".venv/setup.log").read_text()


def test_the_project_is_found_by_a_path_that_every_locale_can_read(tree, programs):
    folder = tree / ".venv/lib/python3.11/site-packages"
    folder.mkdir(parents=True)
    entry = folder / "__editable__.wirebench-0.1.0.pth"
    says = f"case \"$*\" in *--editable*) echo '{tree}' >'{entry}' ;; esac"
    result = install(tree, programs, pip_that(says))
    assert result.returncode == 0, result
    assert entry.read_text().isascii() and not entry.read_text().startswith("/")
    assert (folder / entry.read_text().strip()).resolve() == tree


def test_setup_behind_a_symbolic_link_is_the_same_setup(tree, programs, tmp_path):
    pretend_installed(tree, programs)
    (tmp_path / "link").symlink_to(tree)
    assert run_script(tmp_path / "link/scripts/setup.sh", path=programs).stderr == ""


def test_second_setup_does_nothing(tree, programs):
    """Not even Python is started, which would take make longer than the rest."""
    pretend_installed(tree, programs)
    for python in (programs / "python3.11", tree / ".venv/bin/python"):
        write_program(python, f"#!/bin/sh\ntouch '{tree}/asked'\n")
    result = run_script(tree / "scripts/setup.sh", path=programs)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not (tree / "asked").exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("changed", "more", "again"),
    [
        ("requirements.lock", "# a change\n", True),
        ("scripts/build_horovod.sh", "# a change\n", True),
        ("pyproject.toml", '[project.scripts]\nwirebench = "wirebench:main"\n', True),
        ("pyproject.toml", "[tool.ruff.format]\n", False),
    ],
)
def test_setup_runs_again_when_an_input_changed(tree, programs, changed, more, again):
    pretend_installed(tree, programs)
    with (tree / changed).open("a") as file:
        file.write(more)
    result = run_script(tree / "scripts/setup.sh", path=programs)
    assert result.returncode == 0
    assert ("installing the packages" in result.stderr) == again


def test_setup_with_horovod_serves_those_who_leave_it_out(tree, programs):
    pretend_installed(tree, programs)
    assert run_script(tree / "scripts/setup.sh", path=programs, HOROVOD="0").stderr == ""


def test_what_was_left_out_stays_out_until_it_is_asked_for(tree, programs):
    left_out = install(tree, programs, "#!/bin/sh\nexit 0\n", HOROVOD="0")
    assert left_out.returncode == 0
    assert "Horovod is installed" not in left_out.stderr
    setup = tree / "scripts/setup.sh"
    assert run_script(setup, path=programs).stderr == ""
    (tree / "requirements.lock").write_text("# another\n")
    again = run_script(setup, path=programs).stderr
    assert "installing the packages" in again
    assert "Horovod is installed" not in again
    assert "Horovod is installed" in run_script(setup, path=programs, HOROVOD="1").stderr
    assert run_script(setup, path=programs).stderr == ""


def test_setup_makes_an_interrupted_environment_anew(tree, programs):
    pretend_installed(tree, programs)
    (tree / ".venv/.setup-unfinished").touch()
    fill_disk(programs)
    cut_off, full = setup_complaints(tree, programs)
    assert "cut off" in cut_off
    assert "free disk space" in full
    assert not (tree / ".venv").exists()


def test_setup_in_an_activated_environment_looks_beyond_it(tree, programs):
    pretend_installed(tree, programs)
    (tree / ".venv/.setup-unfinished").touch()
    shutil.copy(tree / ".venv/bin/python", tree / ".venv/bin/python3.11")
    (programs / "python3.11").unlink()
    (line,) = setup_complaints(tree, f"{tree}/.venv/bin:{programs}")
    assert "Python 3.11 or later" in line


FAILS = "echo 'horovod: the build failed' >&2; exit 1\n"
UNLOADABLE = '#!/bin/sh\necho "$@" >>"$0.asked"\ncase "$*" in *horovod.torch*) exit 1 ;; esac\nexit 0\n'


def test_a_horovod_that_cannot_be_built_costs_a_line(tree, programs):
    pretend_installed(tree, programs)
    before = len(run_script(tree / "scripts/setup.sh", "--force", path=programs).stderr.splitlines())
    builder = tree / "scripts/build_horovod.sh"
    works = builder.read_text()
    write_program(builder, FAILS)
    result = run_script(tree / "scripts/setup.sh", path=programs)
    assert result.returncode == 0
    # In place of the line that says that Horovod is installed.
    assert len(result.stderr.splitlines()) == before
    assert "without Horovod" in result.stderr.splitlines()[-1]
    assert run_script(tree / "scripts/setup.sh", path=programs).stderr == "", "it is not built at every make"
    insisted = run_script(tree / "scripts/setup.sh", path=programs, HOROVOD="1")
    assert (insisted.returncode, insisted.stderr.splitlines()[-1]) == (2, "horovod: the build failed")
    write_program(builder, works)
    assert "Horovod is installed" in run_script(tree / "scripts/setup.sh", path=programs, HOROVOD="1").stderr


def test_a_horovod_that_does_not_load_is_built_for_the_cpu_and_taken_away_again(tree, programs):
    result = install(tree, programs, UNLOADABLE)
    assert result.returncode == 0
    assert "CPU" in result.stderr
    assert "without Horovod" in result.stderr.splitlines()[-1]
    asked = (tree / ".venv/bin/python.asked").read_text()
    assert asked.count("horovod.torch") == 2
    assert "uninstall --yes horovod" in asked


@pytest.fixture
def checkout(tree):
    """A tree with the Makefile, whose set-up does nothing and whose launchers say how they are called."""
    shutil.copy(ROOT / "Makefile", tree / "Makefile")
    write_program(tree / "scripts/setup.sh", 'echo "HOROVOD=${HOROVOD:-}"\n')
    (tree / ".venv/bin").mkdir(parents=True)
    for launcher in ("horovodrun", "torchrun"):
        write_program(tree / f".venv/bin/{launcher}", f'#!/bin/sh\necho {launcher} "$@"\n')
    return tree


def make(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"]}
    return subprocess.run(["make", *words], cwd=tree, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "setup", "launcher"),
    [
        (("run",), "", "horovodrun -np 4 "),
        (("run", "ENGINE=torch", "NP=3"), "0", "torchrun "),
        (("run", "ENGINE=torch", "HOROVOD=1"), "1", "torchrun "),
    ],
)
def test_make_run_starts_the_launcher_that_engine_names(checkout, words, setup, launcher):
    done = make(checkout, *words)
    assert (done.returncode, done.stderr) == (0, "")
    said, launched = done.stdout.splitlines()
    assert said == f"HOROVOD={setup}"
    assert launched.startswith(launcher)
    assert launched.endswith("train.py configs/smoke.toml")
    assert ("--nproc-per-node 3 " in launched) == ("NP=3" in words)


def test_make_run_without_horovod_starts_torchrun_and_says_so(checkout):
    (checkout / ".venv/bin/horovodrun").unlink()
    done = make(checkout, "run")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("torchrun ")
    (line,) = done.stderr.splitlines()
    assert "torchrun" in line and "make setup HOROVOD=1" in line


def test_make_refuses_an_engine_that_has_no_launcher(checkout):
    done = make(checkout, "run", "ENGINE=nccl")
    assert (done.returncode, done.stdout) == (2, "")
    assert "ENGINE is nccl" in done.stderr


@pytest.mark.parametrize("number", ["0", "-1", "two", ""])
def test_make_refuses_a_number_of_processes_that_is_none(checkout, number):
    done = make(checkout, "run", f"NP={number}")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"NP is {number}; it needs a whole number" in line


@pytest.fixture
def fake_torch(tmp_path):
    """A Python that finds a torch of any version, by its version.py alone."""

    def make(version: str = "2.15.0+cu132", cuda: str | None = "13.2") -> Path:
        packages = tmp_path / "a space/packages"
        for name in ("torch", "nvidia/nccl"):
            (packages / name).mkdir(parents=True, exist_ok=True)
        (packages / "nvidia/nccl/__init__.py").touch()
        (packages / "torch/__init__.py").write_text("raise SystemExit('the key must not import torch')\n")
        (packages / "torch/version.py").write_text(f"__version__ = {version!r}\ncuda = {cuda!r}\n")
        python = tmp_path / "python"
        write_program(python, f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" "$@"\n')
        return python

    return make


def cache_key(python: Path, path: Path | str, **variables: str) -> str:
    result = run_script(ROOT / "scripts/build_horovod.sh", "--key", str(python), path=path, **variables)
    assert result.returncode == 0, result
    return result.stdout.strip()


def test_a_failed_build_is_one_line_with_the_compilers_first_error(fake_torch, programs, tmp_path):
    python = fake_torch()
    write_program(tmp_path / "cmake", "#!/bin/sh\necho cmake version 4.0\n")
    log = "echo 'a.cc:1:1: error: no such type'; echo 'b.cc: error: another'; exit 1"
    write_program(python, python.read_text().replace("\n", f'\ncase "$*" in *wheel*) {log} ;; esac\n', 1))
    result = run_script(
        ROOT / "scripts/build_horovod.sh", str(python), path=programs, GPU_OPS="none", CMAKE=str(tmp_path / "cmake"),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )  # fmt: skip
    assert result.returncode == 1
    _, line = result.stderr.splitlines()
    assert "a.cc:1:1: error: no such type" in line and ".log" in line and "another" not in line


def test_cache_key_holds_all_that_a_wheel_depends_on(fake_torch, programs):
    key = cache_key(fake_torch(), programs, GPU_OPS="none")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = os.uname().machine
    assert re.fullmatch(rf"horovod-0\.28\.1-r\d+-{python}-torch2\.15\.0\+cu132-cpu-{machine}-glibc[\d.]+", key)
    assert cache_key(fake_torch(version="2.14.0"), programs, GPU_OPS="none") == key.replace("2.15.0+cu132", "2.14.0")
    assert cache_key(fake_torch(), programs, GPU_OPS="none", MPI="1") == key.replace("-cpu-", "-cpu-mpi-")
    assert cache_key(fake_torch(), programs, GPU_OPS="none", MPI="only") == key.replace("-cpu-", "-cpu-mpi-only-")


def fake_toolkit(folder: Path, version: str) -> str:
    (folder / "bin").mkdir(parents=True)
    script = (
        f'#!/bin/sh\ncase $1 in --dryrun) echo "#$ TOP={folder}" >&2;; *) echo "tools, release {version}, V1";; esac\n'
    )
    write_program(folder / "bin/nvcc", script)
    return str(folder)


def test_cache_key_holds_the_gpu_operations(fake_torch, programs, tmp_path):
    home = fake_toolkit(tmp_path / "cuda", "13.0")
    assert "-gloo-cuda13.0-" in cache_key(fake_torch(), programs, GPU_OPS="gloo", CUDA_HOME=home)
    assert "-gloo-cuda13.0-cc80,90-" in cache_key(
        fake_torch(), programs, GPU_OPS="gloo", CUDA_HOME=home, CC_LIST="80,90"
    )
    assert "-cpu-" in cache_key(fake_torch(cuda=None), programs, GPU_OPS="gloo", CUDA_HOME=home)


def test_a_toolkit_of_another_major_version_is_left_alone(fake_torch, programs, tmp_path):
    home = fake_toolkit(tmp_path / "cuda", "12.8")
    assert "-cpu-" in cache_key(fake_torch(), programs, CUDA_HOME=home)


def test_build_horovod_takes_a_wheel_from_the_cache(fake_torch, programs, tmp_path):
    python = fake_torch()
    folder = tmp_path / "cache/wirebench" / cache_key(python, programs, GPU_OPS="none")
    folder.mkdir(parents=True)
    (folder / "horovod-any.whl").touch()
    result = run_script(
        ROOT / "scripts/build_horovod.sh",
        str(python),
        path=programs,
        GPU_OPS="none",
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert result.stdout.splitlines()[-1] == str(folder / "horovod-any.whl")


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"GPU_OPS": "magic"}, "GPU_OPS is magic"),
        ({"MPI": "all"}, "MPI is all"),
        ({"CMAKE": "/no/cmake", "GPU_OPS": "none"}, "cmake is missing"),
    ],
)
def test_build_horovod_names_what_is_wrong(fake_torch, programs, tmp_path, variables, complaint):
    variables["XDG_CACHE_HOME"] = str(tmp_path)
    result = run_script(ROOT / "scripts/build_horovod.sh", str(fake_torch()), path=programs, **variables)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert complaint in line


def test_build_horovod_needs_torch_first(programs, tmp_path):
    write_program(tmp_path / "python", f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')
    result = run_script(ROOT / "scripts/build_horovod.sh", "--key", str(tmp_path / "python"), path=programs)
    assert result.returncode == 2
    assert "has no torch" in result.stderr


@pytest.mark.parametrize("name", ["wirebench", "repository"])
def test_ci_tests_in_a_folder_called_wirebench_and_leaves_nothing(tree, programs, tmp_path, name):
    """Beside a `make` that notes where it is called, changes what it finds there, and fails."""
    (tmp_path / "a space").mkdir()
    top, temporary = tree.rename(tmp_path / "a space" / name), tmp_path / "temporary"
    (top / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", top / ".ci/run")
    (top / ".venv").mkdir()
    (top.parent / "shared").mkdir()
    (top.parent / "shared/data").touch()
    temporary.mkdir()
    (programs / "make").unlink()
    write_program(programs / "make", '#!/bin/sh\npwd; echo "$@"; ls -A . ../shared; cat; touch left; exit 7\n')
    for program in ("cat", "ln", "ls", "tar", "touch"):
        (programs / program).unlink(missing_ok=True)
        (programs / program).symlink_to(str(shutil.which(program)))
    result = run_script(top / ".ci/run", path=programs, TMPDIR=str(temporary))
    where, target, *found = result.stdout.splitlines()
    assert (result.returncode, target, result.stderr) == (7, "test", "")
    assert {".ci", "pyproject.toml", "scripts", "data"} <= set(found)
    assert Path(where).name == "wirebench"
    assert (where == str(top)) == (name == "wirebench") == (".venv" in found) == (top / "left").exists()
    assert not list(temporary.iterdir())


def test_make_takes_folders_with_a_space():
    """As it would run them: one word, of a config; and the folder of the programs."""
    command = ["make", "--dry-run", "run", "CONFIG=my configs/a b.toml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    [training] = [line for line in done.stdout.replace("\\\n", " ").splitlines() if "train.py" in line]
    words = shlex.split(training)
    assert "my configs/a b.toml" in words and f"PATH={ROOT}/.venv/bin:$PATH" in words
