"""The rules of the house: who imports whom, how long things get, what no file holds, what every plugin is."""

import ast
import dataclasses
import functools
import gc
import inspect
import re
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from setuptools import find_packages

from wirebench.compose.resolve import KINDS
from wirebench.config.loader import SECTIONS
from wirebench.config.plugins import Plugins

TOP = Path(__file__).parent.parent


def _tracked(*patterns: str) -> list[str]:
    """Every file of these patterns that git knows or would add."""
    listing = ["git", "-C", str(TOP), "ls-files", "-z", "-co", "--exclude-standard", *patterns]
    names = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted(name for name in names if name and (TOP / name).is_file())


ORDER = (
    "wirebench",
    "wirebench.errors",
    "wirebench.utils",
    "wirebench.config",
    "wirebench.gradient",
    "wirebench.topology",
    "wirebench.comm",
    "wirebench.collectives",
    "wirebench.data",
    "wirebench.cluster",
    "wirebench.telemetry",
    "wirebench.exchange",
    "wirebench.record",
    "wirebench.costmodel",
    "wirebench.simulation",
    "wirebench.formats",
    "wirebench.profiling",
    "wirebench.dropin",
    "wirebench.training",
    "wirebench.models",
    "wirebench.compressors",
    "wirebench.schedulers",
    "wirebench.compose",
    "train",
    "wirebench.figures",
    "wirebench.traces",
    "wirebench.bench",
    "wirebench.planner",
    "wirebench.diagnose",
    "wirebench.doctor",
    "wirebench.chaos",
    "wirebench.inspect",
    "wirebench.cli",
    "wirebench.__main__",
    "papers",
    "examples",
    "tests",
    "scripts",
)
"""All packages, lowest first; `wirebench` itself is its version, and looks its ways in up when they are asked for.

A file imports its own package and those before it."""
LINKED = ("models", "compressors", "schedulers")
"""Folders at the root that are packages of wirebench by links."""
SIDEWAYS = {f"wirebench.{name}" for name in LINKED}
"""The plugin folders do not know each other."""

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_BYTES, MAX_FILES = 500, 60, 15_000_000, 1_499
PLUGIN_FOLDERS = {*map(Path, LINKED), Path("wirebench/collectives")}


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector, which would look through a million nodes again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@functools.cache
def every_tree() -> dict[Path, ast.Module]:
    """What Python makes of every file; only the process that runs this file's tests parses them."""
    files = map(Path, _tracked("*.py"))
    with uncollected():
        return {file: ast.parse((TOP / file).read_text(encoding="utf-8"), str(file)) for file in files}


@functools.cache
def every_node() -> dict[type[ast.AST], list[tuple[Path, Any]]]:
    """(file, node) of all files' nodes that a test asks for, by kind: one walk for all tests."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.Attribute, ast.Constant, ast.Name)
    found: dict[type[ast.AST], list[tuple[Path, Any]]] = {kind: [] for kind in (*kinds, ast.ExceptHandler)}
    with uncollected():
        for file, tree in every_tree().items():
            for node in ast.walk(tree):
                if type(node) in found:
                    found[type(node)].append((file, node))
    return found


def of_product(kind: type[ast.AST]) -> Iterator[tuple[Path, Any]]:
    """(file, node) of this kind, of every file but the tests'."""
    return ((file, node) for file, node in every_node()[kind] if file.parts[0] != "tests")


@functools.cache
def product() -> dict[Path, ast.Module]:
    """Every file but the tests'."""
    return {file: tree for file, tree in every_tree().items() if file.parts[0] != "tests"}


def imports() -> Iterator[tuple[Path, int, str]]:
    """(file, line, dotted name) of everything that is imported."""
    for file, node in every_node()[ast.Import]:
        yield from ((file, node.lineno, alias.name) for alias in node.names)
    for file, node in every_node()[ast.ImportFrom]:
        assert node.level == 0, f"{file}:{node.lineno}: imports name their module in full"
        yield from ((file, node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def dotted(node: ast.Attribute) -> str:
    """`module.name`, of an attribute of a name; "" for one of anything else."""
    return f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else ""


@functools.cache
def package_of(module: str) -> str | None:
    """The entry of ORDER that a dotted name belongs to, the longest that fits; None for what is not ours."""
    fitting = [name for name in ORDER if module == name or module.startswith(f"{name}.")]
    return max(fitting, key=len, default=None)


@functools.cache
def module_of(file: Path) -> str:
    linked = ("wirebench",) if file.parts[0] in LINKED else ()
    return ".".join((*linked, *file.with_suffix("").parts)).removesuffix(".__init__")


def test_every_file_has_a_place_in_the_order():
    assert {"train.py", "wirebench/errors.py", "wirebench/cli/main.py"} <= {str(file) for file in every_tree()}
    homeless = [str(file) for file in every_tree() if package_of(module_of(file)) is None]
    assert not homeless, f"in no package of ORDER: {homeless}"
    inside = {module_of(file) for file in product() if len(file.parts) == 2 and file.parts[0] == "wirebench"}
    assert inside == {"wirebench", "wirebench.errors", "wirebench.__main__"}


def test_imports_go_down_the_order():
    wrong = []
    for file, line, name in imports():
        own, other = package_of(module_of(file)), package_of(name)
        if own is None or other is None or other == own:
            continue
        if ORDER.index(other) > ORDER.index(own) or (own in SIDEWAYS and other in SIDEWAYS):
            wrong.append(f"{file}:{line}: {own} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_file_edits_the_search_path():
    """Nor does the code in a text that a file runs."""
    wrong = [f"{file}:{node.lineno}" for file, node in of_product(ast.Attribute) if dotted(node) == "sys.path"]
    wrong += [f"{file}:{node.lineno}" for file, node in of_product(ast.Constant) if "sys.path." in str(node.value)]
    assert not wrong, f"the project is installed, so its packages are found: {wrong}"


ASKS_THE_SYSTEM = re.compile(
    r"os\.(cpu_count|sched_\w+affinity|sysconf|uname|statvfs)|platform\.(?!python)\w+|shutil\.disk_usage"
    r"|psutil\.(cpu_count|virtual_memory|net_if_addrs|net_if_stats|disk_usage)|socket\.(gethostname|gethostbyname|getfqdn)"
)


def test_the_machine_is_asked_in_one_place():
    """By the module's name, so that tests replace what it says. Faults pin other processes than their own."""
    named = [(file, node, dotted(node)) for file, node in of_product(ast.Attribute)]
    texts = [(file, node, str(node.value)) for file, node in of_product(ast.Constant)]
    wrong = [
        f"{file}:{node.lineno}: {found}"
        for file, node, found in (
            *(each for each in named if ASKS_THE_SYSTEM.fullmatch(each[2])),
            *(each for each in texts if each[2] in ("/proc/cpuinfo", "/proc/meminfo")),
        )
        if str(file) not in ("wirebench/utils/this_machine.py", "wirebench/chaos/faults.py")
    ]
    wrong += [
        f"{file}:{line}: {name}"
        for file, line, name in imports()
        if name.startswith("wirebench.utils.this_machine.") and file in product()
    ]
    assert not wrong, "\n".join(wrong)


def _folder(package: str) -> Path:
    name = package.removeprefix("wirebench.")
    return Path(name if name in LINKED else package.replace(".", "/"))


def test_folders_of_plugins_hold_plugins():
    plugins = {_folder(kind.package): set(kind.available()) for kind in KINDS}
    for folder in PLUGIN_FOLDERS:
        strangers = (
            {file.stem for file in every_tree() if file.parent == folder}
            - plugins[folder]
            - {"__init__", "plan", "rounds", "wire"}
        )
        assert not strangers, f"{folder} holds one file per plugin; helpers are in a package of it: {strangers}"


def test_every_package_says_what_it_holds():
    wrong = [
        str(file) for file, tree in product().items() if file.name == "__init__.py" and not ast.get_docstring(tree)
    ]
    assert not wrong


def test_files_are_short():
    counts = {file: len((TOP / file).read_text().splitlines()) for file in product()}
    assert not {str(file): count for file, count in counts.items() if count > MAX_FILE_LINES}


def test_a_checkout_without_history_is_small():
    """Results that an older version wrote are shorter after scripts/rewrite_results.py."""
    sizes = [(TOP / name).lstat().st_size for name in _tracked()]
    assert sum(sizes) <= MAX_BYTES and len(sizes) <= MAX_FILES


def test_functions_are_short():
    sizes = {
        f"{file}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for kind in (ast.FunctionDef, ast.AsyncFunctionDef)
        for file, node in every_node()[kind]
    }
    assert not {place: size for place, size in sizes.items() if size > MAX_FUNCTION_LINES}


def test_one_name_is_of_one_class():
    """A name that another module may import means the same everywhere; an example is a script that none imports."""
    classes: dict[str, list[str]] = {}
    for file, tree in product().items():
        for node in tree.body if file.parts[0] != "examples" else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault(node.name, []).append(str(file))
    assert not {name: files for name, files in classes.items() if len(files) > 1}


def test_nothing_is_left_for_later():
    words = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    wrong = [
        f"{file}:{number}: {line.strip()}"
        for file in every_tree()
        for number, line in enumerate((TOP / file).read_text().splitlines(), 1)
        if words.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_exception_is_swallowed():
    wrong = [
        f"{file}:{node.lineno}"
        for file, node in every_node()[ast.ExceptHandler]
        if all(_does_nothing(node, statement) for statement in node.body)
    ]
    assert not wrong, f"an except clause does nothing: {wrong}"


def _does_nothing(handler: ast.ExceptHandler, statement: ast.stmt) -> bool:
    """Skipping one item of a loop is an answer to an error that is named, but not to any error at all."""
    if isinstance(statement, ast.Continue):
        return handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException")
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def test_python_is_ascii():
    wrong = [str(file) for file in every_tree() if not (TOP / file).read_bytes().isascii()]
    assert not wrong


def test_every_module_of_the_package_is_installed():
    """A folder without __init__.py is none of setuptools' packages, and is missing from a wheel."""
    include = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = set(find_packages(str(TOP), include=include))
    modules = {module_of(file): file for file in product() if module_of(file).startswith("wirebench")}
    outside = {str(file) for name, file in modules.items() if not {name, name.rpartition(".")[0]} & packages}
    assert not outside and all(each.split(".")[0] == "wirebench" for each in packages)


MEETS_PAPERS = ("wirebench/cli/results/study.py", "wirebench/config/plugins.py")


def test_nothing_of_the_package_opens_a_path_outside_of_it_or_imports_papers():
    """Where a checkout's folders are, `study` alone asks: it hands its words to the papers' own command.

    Plugins know what the studies' own compressors are called now, of which old records have another name.
    """
    climbing = {str(file) for file, node in of_product(ast.Attribute) if node.attr == "parents"}
    climbing -= {"wirebench/utils/package.py"}  # the one module that says where the package is
    places = [(file, node) for file, node in of_product(ast.Name) if node.id == "__file__" and str(file) in climbing]
    texts = [(file, node) for file, node in of_product(ast.Constant) if str(node.value).startswith("papers.")]
    wrong = [
        f"{file}:{node.lineno}"
        for file, node in (*places, *texts)
        if module_of(file).startswith("wirebench") and str(file) not in MEETS_PAPERS
    ]
    wrong += [
        f"{file}:{line}"
        for file, line, name in imports()
        if name.split(".")[0] == "papers" and module_of(file).startswith("wirebench")
    ]
    assert not wrong, "\n".join(wrong)


EVERY = [(kind, name) for kind in KINDS for name in kind.available()]


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=[f"{kind.kind}-{name}" for kind, name in EVERY])
def test_a_plugin_says_what_it_takes(kind: Plugins, name: str):
    assert inspect.getdoc(kind.load(name))
    parameters = inspect.signature(kind.load(name)).parameters
    sinks = [p.name for p in parameters.values() if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    assert not sinks, "the constructor swallows options"
    bare = [p.name for p in parameters.values() if p.annotation is p.empty]
    assert not bare, "options without a type are not checked"
    own = {field.name for field in dataclasses.fields(SECTIONS[kind.kind])} - set(kind.fixed)
    assert not own & kind.options(name).keys(), "the section has a key of this name, so the option cannot be set"
    kind.check(name, kind.defaults(name))


def test_every_kind_has_plugins():
    assert {kind.kind for kind, _ in EVERY} == {"model", "data", "compressor", "scheduler", "collective"}
