"""The command `wirebench`: what it lists, what a typo is answered with, how every verb ends."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wirebench
from tests.cli.verbs import ROOT, run
from wirebench.cli.main import MENU, main
from wirebench.cli.planning import advise, trace
from wirebench.cli.results import bench

NESTED = {"bench": bench.MENU, "trace": trace.MENU}
TOOLS = [
    *((name,) for name in MENU.entries if name not in (*NESTED, "study")),  # a study has pages of its own
    *((verb, tool) for verb, menu in NESTED.items() for tool in menu.entries),
]


SHOWN = "show results/gs-sgd/vgg16/gtopk-0"
"""Prints a table, and starts in a tenth of the time of a verb that imports torch."""


def test_every_verb_is_a_module_and_every_module_a_verb():
    found = {path.stem for path in (ROOT / "wirebench/cli").glob("*/*.py")} - {"__init__"}
    assert found == set(MENU.entries)


@pytest.mark.parametrize("words", [(), ("--help",), ("bench",), ("bench", "-h"), ("trace", "--help")])
def test_menus_list_what_there_is(words):
    done = run(*words)
    menu = NESTED.get(words[0], MENU) if words else MENU
    assert (done.returncode, done.stderr) == (0, "")
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and "wirebench" not in line]
    assert listed == list(menu.entries)


@pytest.mark.parametrize("words", TOOLS, ids=" ".join)
def test_every_tool_explains_itself_with_examples(words):
    done = run(*words, "--help")
    command = f"wirebench {' '.join(words)}"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {command} ")
    assert command in done.stdout.partition("\nexamples:\n")[2], "no example of it"
    module = NESTED.get(words[0], MENU).entries[words[-1]].module
    assert str(importlib.import_module(module).__doc__).splitlines()[0] in done.stdout


def documented() -> Iterator[list[str]]:
    """The words after `wirebench` of the documents' lines that begin with it, and of what it runs on a cluster."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for line in re.findall(r"^ *wirebench (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            outer, _, inner = line.partition(" -- ")
            yield shlex.split(outer, comments=True)
            if inner.startswith("wirebench "):
                yield shlex.split(inner, comments=True)[1:]


DOCUMENTED = [words for words in dict.fromkeys(map(tuple, documented())) if "mine." not in " ".join(words)]
"""A recipe's own modules are not here."""


@pytest.mark.parametrize("words", DOCUMENTED, ids=" ".join)
def test_documented_commands_exist(words):
    """--help comes after their options, which are looked at first."""
    done = run(*words, "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_is_said():
    assert run("--version").stdout == f"wirebench {wirebench.__version__}\n"


def test_options_may_be_shortened(tmp_path):
    assert run("show", "--late", cwd=tmp_path).stderr.startswith("wirebench show: --latest: ")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("command", "says", "code"),
    [
        (f"wirebench {SHOWN} >&-", "", 0),
        ("wirebench show --help >&-", "", 0),
        (f"wirebench {SHOWN} >&- 2>&-", "", 0),
        (f"wirebench {SHOWN} >/dev/full", "wirebench show: No space left on device", 2),
        ("wirebench --help >/dev/full", "wirebench: No space left on device", 2),
        ("wirebench show --help >/dev/full", "wirebench show: No space left on device", 2),
        ("train --help >/dev/full", "error: standard output: No space left on device", 2),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_closed_or_full(command, says, code, unbuffered):
    done = subprocess.run(
        ["bash", "-c", f'"$0" -m {command}', sys.executable],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (code, "", says)


@pytest.mark.parametrize("words", [["topology", "2+3"], ["topology", "2+3", "--collective", "ring"], ["--help"]])
def test_a_reader_that_goes_away_ends_it_quietly(words, monkeypatch, capfd):
    """Plain lines, tables and help alike, with what the interpreter still has to write at its end."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=1) as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert main(words) == 141
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("words", ["bench", SHOWN])
def test_it_starts_without_torch(words: str):
    code = f"import sys; from wirebench.cli.main import main; main({words.split()}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL, timeout=60).returncode == 0


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ranking takes up to a minute."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(advise, "given_by", lambda options: pytest.fail("it computes"))
    words = ["advise", "--trace", "resnet20_gtx1080ti", "--workers", "4"]
    assert main([*words, "--json", str(tmp_path / "file" / "found.json")]) == 2
    assert "--json: " in capsys.readouterr().err
