"""The examples run as they are written, at toy size, and do what they say."""

import ast
import difflib
import re
from pathlib import Path
from typing import cast

import pytest
import torch

import wirebench
from tests.distributed.forked import finish

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHOWN = re.findall(
    r"^```console\n\$ torchrun --nproc-per-node (\d) examples/(\w+)\.py(.*)\n((?:.*\n)*?)```$",
    (EXAMPLES / "README.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
"""(ranks, script, arguments, what it printed) of each run in the README."""


def told(name: str, arguments: list[str], logs: Path) -> str:
    """What rank 0 printed; the README has such lines."""
    runs = [(int(ranks), printed) for ranks, script, _, printed in SHOWN if script == name]
    ended = finish("torch", runs[0][0], arguments, logs, script=f"examples/{name}.py")
    shown = {form for _, printed in runs for form in forms(printed)}
    assert shown <= forms(ended.out), ended.out
    return ended.out


def forms(printed: str) -> set[str]:
    """The lines without their numbers."""
    return {re.sub(r"\d+(\.\d+)?", "#", line) for line in printed.splitlines()}


def test_the_readme_shows_every_script_as_its_own_first_lines_call_it() -> None:
    scripts = {path.stem: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}
    assert {name for _, name, *_ in SHOWN} == scripts.keys()
    for ranks, name, arguments, _ in SHOWN:
        assert f"\ntorchrun --nproc-per-node {ranks} examples/{name}.py{arguments}\n" in scripts[name]


@pytest.mark.parametrize("name", [pytest.param("plain_ddp", marks=pytest.mark.slow), "synchronised"])
def test_both_loops_learn(name: str, tmp_path: Path) -> None:
    losses = [float(each) for each in re.findall(r"loss (\S+)", told(name, ["--epochs=5"], tmp_path))]
    assert len(losses) == 5 and losses[-1] < 0.5


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda script: script.stem)
def test_what_a_script_takes_of_the_suite_is_there(script: Path) -> None:
    """Trainers' libraries take seconds to import, so that by day these scripts are not run."""
    nodes = [*ast.walk(ast.parse(script.read_text(encoding="utf-8")))]
    named = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    ways_in = {node.attr for node in named if cast(ast.Name, node.value).id == "wirebench"}
    assert all(hasattr(wirebench, name) for name in ways_in)
    plugins = {node.attr for node in named if cast(ast.Name, node.value).id in ("compressors", "schedulers")}
    assert plugins <= {"build"} and bool(ways_in) == bool(plugins) == (script.stem != "plain_ddp")


def test_the_suite_comes_into_a_loop_with_five_lines() -> None:
    plain, ours = ((EXAMPLES / f"{name}.py").read_text().splitlines() for name in ("plain_ddp", "synchronised"))
    added = [line for line in difflib.ndiff(plain, ours) if re.match(r"\+ +\S", line)]
    assert len(added) <= 5, added


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("lightning_hook", 1.0), ("hf_trainer", 2.0)])
def test_trainers_take_the_hook_and_go_on_with_its_residuals(name: str, most: float, tmp_path: Path) -> None:
    """With the real libraries, which wrap the model themselves.

    The compressor's steps are counted on, and every rank has a file of its own.
    """
    kept = tmp_path / "kept"
    for epochs in (1, 4):
        said = told(name, [f"--epochs={epochs}", f"--folder={kept}"], tmp_path)
        found = sorted(kept.rglob("hook-?.pt"), key=lambda path: path.stat().st_mtime)[-2:]
        states = [torch.load(path) for path in sorted(found)]
        residuals = [state["compressor"] for state in states]
        steps = {state["steps"] for state in states}
        # 57 steps of 32 samples an epoch for both ranks; DDP's first steps of each run are dense.
        assert len(steps) == 1 and 24 * epochs <= steps.pop() <= 29 * epochs, states
        assert str(residuals[0]) != str(residuals[1])
    loss, ratio = map(float, re.findall(r"loss (\S+), (\S+) times fewer bytes on the wire", said)[0])
    assert loss < most and ratio == 50


@pytest.mark.sampled(1)
@pytest.mark.parametrize("words", [[], ["--compressor=topk", "--option=density=0.01", "--scheduler=mg_wfbp"]])
def test_a_gpt_learns_from_the_standard_library(words: list[str], tmp_path: Path) -> None:
    small = ["--steps=40", "--width=32", "--depth=1", "--length=32", "--lr=0.01"]
    said = told("gpt", [*small, *words], tmp_path)
    bits = [float(each) for each in re.findall(r"(\S+) bits per byte", said)]
    assert bits[0] > 7 and bits[-1] < 6
    sent, dense = map(float, re.findall(r"(\S+) MB a step and rank, dense gradients would be (\S+) MB", said)[0])
    assert sent < dense / 20 if words else sent == pytest.approx(dense, rel=0.05)


def test_pods_send_less_between_them(tmp_path: Path) -> None:
    """And five lines of the script are the suite's."""
    script = (EXAMPLES / "hsdp.py").read_text(encoding="utf-8").splitlines()
    ours = [line for line in script[6:] if re.search(r"wirebench|compressors|replicas\.", line)]
    assert len(ours) == 5, ours
    said = told("hsdp", ["--steps=12", "--width=32", "--depth=1"], tmp_path)
    bits = [float(each) for each in re.findall(r"(\S+) bits per byte", said)]
    assert bits[-1] < 6 < bits[0]
    sent, dense = map(
        float, re.findall(r"(\S+) kB a step and rank between pods, dense gradients would be (\S+) kB", said)[0]
    )
    assert sent < dense / 5
