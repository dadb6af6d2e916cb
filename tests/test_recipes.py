"""The documents keep their word: recipes train, commands compose, what is named exists, fields are explained."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from papers import cli as study
from tests.compressors import test_contract as contract
from tests.distributed.launch import last_of_each
from tests.distributed.on_made_up_gpus import see_a_gpu
from wirebench import collectives
from wirebench.collectives.plan import check
from wirebench.comm.engine import ENGINES
from wirebench.compose import run as train
from wirebench.compose.resolve import KINDS, resolve
from wirebench.config import loader
from wirebench.config.sections import OptimizerConfig
from wirebench.gradient.schedule import LayerCost
from wirebench.topology.tree import Topology

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
FORMULAS = {"docs/language_models.md", "docs/sketches.md", "docs/sums.md"}
"""They have signs of other alphabets."""
GUIDES = (*DOCUMENTS, "examples/README.md")
RECIPES = "CONTRIBUTING.md"
BLOCK = re.compile(r"^ *```(\S+)?(?: (\S+))?\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
STUDY = ("published.toml", "run.py", "report.py")
SHORT = ("train.max_steps=2", "engine.name=local", "output.tensorboard=false")


def blocks(document: str) -> list[tuple[str, str, str]]:
    """(language, file name or '', text) of every code block."""
    return BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))


def commands(document: str, program: str) -> list[list[str]]:
    """The words after `program` of every shell line that has it; comments are left out."""
    texts = [text.replace("\\\n", " ") for language, _, text in blocks(document) if language == "sh"]
    lines = [line for text in texts for line in text.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[line.index(program) + 1 :] for line in words if program in line]


FILES = {name: text for _, name, text in blocks(RECIPES) if name}
STUDIES = [c for c in commands(RECIPES, "wirebench") if c[0] == "study"]
TRAININGS = [c for c in commands(RECIPES, "train.py") if any("=mine." in word for word in c)]
TRAINERS = ("train.py", "wirebench:cpu", "wirebench:gpu")
"""What the words of a training come after: the script, or an image, which passes them on."""
COMPOSED = [
    (document, command)
    for document in sorted({*DOCUMENTS} - {"docs/own_loop.md"})  # its modules are no recipe's
    for program in TRAINERS
    for command in commands(document, program)
    if command and command[0].startswith("configs/")
]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that holds the recipes' `mine/`, which Python imports from during the test."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # A regular package: one without this file would give way to any other folder named mine on the path.
    (tmp_path / "mine" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_mine()
    importlib.import_module("mine.make_shapes")
    yield tmp_path
    forget_mine()


def forget_mine() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


def test_there_is_a_recipe_for_every_kind() -> None:
    sections = {word.partition(".name=")[0] for command in TRAININGS for word in command if ".name=mine." in word}
    assert sections == {kind.kind for kind in KINDS}


def test_every_file_of_a_recipe_is_used() -> None:
    used = {word.partition("=mine.")[2] for command in TRAININGS for word in command if "=mine." in word}
    scripts = {f"mine/{name}.py" for name in used} | {c[0] for c in commands(RECIPES, "python") if "mine/" in c[0]}
    studies = {f"mine/{c[1].removeprefix('mine.')}/{name}" for c in STUDIES for name in STUDY}
    assert scripts | studies == set(FILES)


@pytest.mark.parametrize("command", TRAININGS, ids=lambda c: next(w for w in c if "=mine." in w).partition("=")[2])
def test_a_recipe_trains(command: list[str], mine: Path, capsys: pytest.CaptureFixture) -> None:
    there = [word.replace("root=mine", f"root={mine}/mine") for word in command[1:]]
    directory = mine / "run"
    code = train.main(last_of_each([ROOT / command[0], *there, *SHORT, f"output.dir={directory}"]))
    assert code == 0, capsys.readouterr().err
    record = json.loads((directory / "record.json").read_text())
    assert (record["status"], record["steps_done"]) == ("finished", 2)


@pytest.mark.slow
def test_the_study_runs_and_judges(mine: Path, capsys: pytest.CaptureFixture) -> None:
    started = []

    def launch(words: list[str]) -> int:
        started.append(words)
        return train.main(last_of_each([ROOT / words[2], *words[3:], *SHORT, "train.warmup_steps=0"]))

    out = ["--out", str(mine / "results")]
    for words in STUDIES:
        assert study.main([*words[1:], *out], launch) == 0, capsys.readouterr().err
    assert [c[1:3] for c in STUDIES] == [["mine.fewer_bytes", "run"], ["mine.fewer_bytes", "report"]]
    assert len(started) == 4
    assert "| 20.00x | 20.0x | reproduced | - |" in (mine / "results/table.md").read_text()
    assert study.main(["mine.fewer_bytes", "run", *out], launch) == 0
    assert len(started) == 4, "what is there is not run again"


@pytest.mark.usefixtures("mine")
def test_all_studies_runs_need_a_series(capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["run", "mine.fewer_bytes"], lambda command: 1) == 2
    assert "mine.fewer_bytes: its run.py has no series(quick)" in capsys.readouterr().err


@pytest.mark.usefixtures("mine")
def test_the_compressor_keeps_the_contract() -> None:
    variant = ("mine.cyclic", {"density": 0.1})
    contract.test_nothing_is_lost_and_all_ranks_agree_also_when_buckets_are_cut_anew(variant, "ring", range(1, 10))
    contract.test_keeping_everything_is_the_dense_average(variant)
    contract.test_what_four_ranks_remember_is_handed_on_to_three_and_back(variant)
    contract.test_a_restored_run_goes_on_bit_for_bit(variant)
    contract.test_what_is_not_finite_reaches_all_ranks_at_once(variant, 25, float("nan"))


@pytest.mark.usefixtures("mine")
def test_the_optimizer_as_a_compressor_keeps_the_contract() -> None:
    assert FILES["mine/signum.py"].count("\n") <= 30
    contract.test_zeros_give_zeros(("mine.signum", {}))
    contract.test_a_restored_run_goes_on_bit_for_bit(("mine.signum", {}))
    contract.test_what_is_not_finite_reaches_all_ranks_at_once(("mine.signum", {}), 25, float("inf"))


@pytest.mark.usefixtures("mine")
def test_the_rule_of_the_outer_step_is_asked() -> None:
    rule = importlib.import_module("mine.post_local").PostLocal(every=4, together=3)
    assert [step for step in range(12) if rule.starts(0, step)] == [0, 1, 2, 3, 7, 11]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [("COMPRESSOR", "cyclic"), ("SCHEDULER", "even"), ("COLLECTIVE", "chain"), ("MODEL", "mlp")],
)
def test_the_contract_is_tested_on_a_module_of_ones_own(mine: Path, kind: str, name: str) -> None:
    (line,) = [line for _, _, text in blocks(RECIPES) for line in text.splitlines() if f"WIREBENCH_{kind}" in line]
    setting, *command = shlex.split(line)
    assert command[0] == "python"
    environment = {**os.environ, "PYTHONPATH": str(mine), **dict([setting.split("=", 1)])}
    few = ["-k", "zeros_give or restored_run"] if kind == "COMPRESSOR" else []
    done = subprocess.run(
        [sys.executable, *command[1:], "-vv", "-n0", "-p", "no:cacheprovider", *few],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    tested = re.findall(r"::test_\w+\[(\S+)\]", done.stdout)
    assert tested
    assert all(f"mine.{name}" in label for label in tested)


@pytest.mark.usefixtures("mine")
def test_the_scheduler_covers_all_layers() -> None:
    layers = [LayerCost("layer", numel) for numel in (5, 900, 1, 1, 90, 3)]
    for messages in (1, 3, 100):
        groups = importlib.import_module("mine.even").Even(messages).partition(layers, lambda numel: 0.0)
        assert [i for group in groups for i in group] == list(range(len(layers)))
        assert len(groups) <= messages


@pytest.mark.usefixtures("mine")
def test_the_collective_is_proved() -> None:
    for size in range(1, 9):
        plan = collectives.build("mine.chain").plan(Topology.flat(size), 7)
        assert plan is not None
        check(plan, size, 7)


def test_there_are_commands_in_every_guide() -> None:
    guides = {"README.md", "CONTRIBUTING.md", "docs/running.md", "docs/traces.md", "docs/elastic.md", "docs/images.md"}
    assert {document for document, _ in COMPOSED} >= guides
    assert len(COMPOSED) > 15


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(("document", "command"), COMPOSED, ids=[f"{d}-{i}" for i, (d, _) in enumerate(COMPOSED)])
def test_every_command_composes(document: str, command: list[str]) -> None:
    resolve(loader.load(ROOT / command[0], command[1:]))


@pytest.mark.parametrize("document", GUIDES)
def test_every_link_and_file_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert text.isascii() or document in FORMULAS
    prose = BLOCK.sub("", text)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", prose) if "://" not in link]
    missing = [link for link in links if link and not (ROOT / document).parent.joinpath(link).exists()]
    paths = re.findall(r"`((?:wirebench|tests|scripts|configs|compressors|schedulers|models|docs)/[\w./-]+)`", prose)
    missing += [path for path in paths if "NAME" not in path and not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize("document", GUIDES)
def test_every_extra_exists(document: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"pip install .*\[([\w,]+)\]", (ROOT / document).read_text(encoding="utf-8"))
    assert named or document not in {"README.md", "docs/installing.md"}
    assert {extra for names in named for extra in names.split(",")} <= extras.keys()


def test_the_axes_name_only_what_exists() -> None:
    text = (ROOT / "docs/architecture.md").read_text().partition("## What there is")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (\w[\w ]*) \| (`.*) \|$", text, re.MULTILINE))
    exists = {"data sets" if kind.kind == "data" else f"{kind.kind}s": set(kind.available()) for kind in KINDS}
    exists["engines"] = set(ENGINES)
    exists["optimizers"] = set(get_args(get_type_hints(OptimizerConfig)["name"]))
    assert rows.keys() == exists.keys()
    wrappers = {"dense_below", "warmup"}
    for axis, text in rows.items():
        named = set(re.findall(r"`(\w+)`", text)) - wrappers
        assert named
        assert named <= exists[axis], f"{axis}: {named - exists[axis]} do not exist"


def test_every_field_of_a_run_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    see_a_gpu(monkeypatch)
    toy = [str(ROOT / "configs/synthetic/toy.toml"), "train.warmup_steps=0", f"output.dir={tmp_path}"]
    assert train.main([*toy, *SHORT]) == 0
    explained = set(re.findall(r"`([\w.\[\]]+)`", (ROOT / "docs/record.md").read_text(encoding="utf-8")))
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["gpu"]["devices"]
    line = json.loads((tmp_path / "steps.jsonl").read_text().splitlines()[0])
    trace = json.loads((tmp_path / "trace.json").read_text())
    tracks = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert tracks
    unexplained = (fields("", record) | line.keys() | tracks) - explained
    # A machine has rank 0's fields.
    assert not {name.replace("environment.hosts[].", "environment.") for name in unexplained} - explained


def fields(where: str, value: Any) -> set[str]:
    """Dotted names of all leaves; what a user or an environment names freely is one leaf."""
    if where in ("config", "environment.variables"):
        return {where}
    if isinstance(value, dict) and value:
        return set().union(*(fields(f"{where}.{key}" if where else key, item) for key, item in value.items()))
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return fields(f"{where}[]", value[0])
    return {where}
