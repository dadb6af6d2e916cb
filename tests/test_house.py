"""The rules of the house: who imports whom, how long things get, what no file holds, what every plugin is."""

import ast
import dataclasses
import functools
import inspect
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

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

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_BYTES = 500, 60, 15_000_000
PLUGIN_FOLDERS = {*map(Path, LINKED), Path("wirebench/collectives")}


@functools.cache
def every_tree() -> dict[Path, ast.Module]:
    """What Python makes of every file; only the process that runs this file's tests parses them."""
    files = map(Path, _tracked("*.py"))
    return {file: ast.parse((TOP / file).read_text(encoding="utf-8"), str(file)) for file in files}


@functools.cache
def product() -> dict[Path, ast.Module]:
    """Every file but the tests'."""
    return {file: tree for file, tree in every_tree().items() if file.parts[0] != "tests"}


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports name their module in full"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def package_of(module: str) -> str | None:
    """The entry of ORDER that a dotted name belongs to, the longest that fits; None for what is not ours."""
    fitting = [name for name in ORDER if module == name or module.startswith(f"{name}.")]
    return max(fitting, key=len, default=None)


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
    for file, tree in every_tree().items():
        own = package_of(module_of(file))
        for line, name in imports(tree):
            other = package_of(name)
            if own is None or other is None or other == own:
                continue
            if ORDER.index(other) > ORDER.index(own) or (own in SIDEWAYS and other in SIDEWAYS):
                wrong.append(f"{file}:{line}: {own} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_file_edits_the_search_path():
    """Nor does the code in a text that a file runs."""
    wrong = [
        f"{file}:{node.lineno}"
        for file, tree in product().items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path")
        or (isinstance(node, ast.Constant) and "sys.path." in str(node.value))
    ]
    assert not wrong, f"the project is installed, so its packages are found: {wrong}"


ASKS_THE_SYSTEM = re.compile(
    r"os\.(cpu_count|sched_\w+affinity|sysconf|uname|statvfs)|platform\.(?!python)\w+|shutil\.disk_usage"
    r"|psutil\.(cpu_count|virtual_memory|net_if_addrs|net_if_stats|disk_usage)|socket\.(gethostname|gethostbyname|getfqdn)"
)


def test_the_machine_is_asked_in_one_place():
    """By the module's name, so that tests replace what it says. Faults pin other processes than their own."""
    wrong = [
        f"{file}:{node.lineno}: {found}"
        for file, tree in product().items()
        if str(file) not in ("wirebench/utils/this_machine.py", "wirebench/chaos/faults.py")
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and ASKS_THE_SYSTEM.fullmatch(found := ast.unparse(node)))
        or (isinstance(node, ast.Constant) and (found := str(node.value)) in ("/proc/cpuinfo", "/proc/meminfo"))
    ]
    wrong += [
        f"{file}:{line}: {name}"
        for file, tree in product().items()
        for line, name in imports(tree)
        if name.startswith("wirebench.utils.this_machine.")
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
    assert sum((TOP / name).lstat().st_size for name in _tracked()) <= MAX_BYTES


def test_functions_are_short():
    sizes = {
        f"{file}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for file, tree in every_tree().items()
        for node in functions(tree)
    }
    assert not {place: size for place, size in sizes.items() if size > MAX_FUNCTION_LINES}


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
        for file, tree in every_tree().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and all(_does_nothing(node, statement) for statement in node.body)
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
    wrong = [
        f"{file}:{node.lineno}"
        for file, tree in product().items()
        if module_of(file).startswith("wirebench") and str(file) not in MEETS_PAPERS
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id == "__file__" and not _stays_within(file, tree, node))
        or (isinstance(node, ast.Constant) and str(node.value).startswith("papers."))
    ]
    wrong += [
        f"{file}:{line}"
        for file, tree in product().items()
        if module_of(file).startswith("wirebench")
        for line, name in imports(tree)
        if name.split(".")[0] == "papers"
    ]
    assert not wrong, "\n".join(wrong)


def _stays_within(file: Path, tree: ast.Module, name: ast.Name) -> bool:
    """Whether what is made of __file__ is a folder of the package: its own, or, in one module, the package's."""
    if str(file) == "wirebench/utils/package.py":
        return True
    climbs = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "parents"]
    return not climbs


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
