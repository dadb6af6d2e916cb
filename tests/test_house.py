"""The rules of the house: who imports whom, how long things get, what no file holds, what every plugin is."""

import ast
import dataclasses
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from resolve import KINDS
from wirebench.config import SECTIONS
from wirebench.plugins import Plugins

TOP = Path(__file__).parent.parent
PLUGIN_FOLDERS = {"models", "compressors", "schedulers"}
ENTRIES = {"train", "compose", "resolve", "suite", "scripts", "tests"}
FOLDERS = ("wirebench", *sorted(PLUGIN_FOLDERS), "suite", "scripts", "tests")
FILES = sorted([*TOP.glob("*.py"), *(file for folder in FOLDERS for file in (TOP / folder).rglob("*.py"))])
TREES = {file.relative_to(TOP): ast.parse(file.read_text(encoding="utf-8"), str(file)) for file in FILES}
PRODUCT = {file: tree for file, tree in TREES.items() if file.parts[0] != "tests"}

MAX_FILE_LINES, MAX_FUNCTION_LINES = 300, 60

# What a part of wirebench may not know, so that data flows one way.
LOWER = {
    "wirebench/comm": ("wirebench.collectives", "wirebench.layout", "wirebench.exchange", "wirebench.requests"),
    "wirebench/collectives": ("wirebench.layout", "wirebench.exchange", "wirebench.lane", "wirebench.comm.engine"),
}


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


def forbidden_roots(file: Path) -> set[str]:
    room = file.parts[0]
    if room == "wirebench":
        return PLUGIN_FOLDERS | ENTRIES
    return (PLUGIN_FOLDERS - {room}) | ENTRIES if room in PLUGIN_FOLDERS else set()


def test_the_walk_finds_the_house():
    rooms = {file.parts[0] for file in TREES}
    assert rooms >= {"train.py", "compose.py", "resolve.py", *FOLDERS}
    assert len(PRODUCT) > 60


def test_imports_go_one_way():
    wrong = [
        f"{file}:{line}: imports {name}"
        for file, tree in TREES.items()
        for line, name in imports(tree)
        if name.split(".")[0] in forbidden_roots(file)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_wire_knows_no_gradient():
    wrong = [
        f"{file}:{line}: imports {name}"
        for file, tree in PRODUCT.items()
        for line, name in imports(tree)
        if name.startswith(LOWER.get(file.parent.as_posix(), ("no module",)))
    ]
    assert not wrong, "\n".join(wrong)


def test_files_are_short():
    counts = {file: len((TOP / file).read_text().splitlines()) for file in PRODUCT}
    assert not {str(file): count for file, count in counts.items() if count >= MAX_FILE_LINES}


def test_functions_are_short():
    sizes = {
        f"{file}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for file, tree in TREES.items()
        for node in functions(tree)
    }
    assert not {place: size for place, size in sizes.items() if size > MAX_FUNCTION_LINES}


def test_nothing_is_left_for_later():
    words = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    wrong = [
        f"{file}:{number}: {line.strip()}"
        for file in TREES
        for number, line in enumerate((TOP / file).read_text().splitlines(), 1)
        if words.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_exception_is_swallowed():
    wrong = [
        f"{file}:{node.lineno}"
        for file, tree in TREES.items()
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


def test_no_file_edits_the_search_path():
    wrong = [
        f"{file}:{node.lineno}"
        for file, tree in PRODUCT.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path"
    ]
    assert not wrong, f"the project is installed, so its packages are found: {wrong}"


def test_python_is_ascii():
    wrong = [str(file) for file in TREES if not (TOP / file).read_bytes().isascii()]
    assert not wrong


def test_every_package_is_installed():
    listed = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {".".join(file.parent.parts) for file in PRODUCT if file.name == "__init__.py"}
    assert set(listed) == found


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
