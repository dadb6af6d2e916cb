"""How many small faults the tests find: a fixed sample of mutants, each tried with the tests of its own folder.

    python scripts/mutants.py draw COUNT > build/mutants.jsonl
    python scripts/mutants.py try build/mutants.jsonl build/killed.jsonl

A mutant changes one operator, comparison, constant or condition of one function. It is described by its function and
the line's text, so that the same sample can be tried on two commits; where the line is gone, so is the mutant. `try`
first runs the tests once with functions that note who calls them, since only those tests can kill a mutant. It
continues where it was interrupted, and leaves every file as it was. Run it in a clone of its own.
"""

import ast
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    name: ([f"wirebench/{name}"] if name != "compressors" else [name], [f"tests/{name}"])
    for name in ("gradient", "compressors", "exchange", "collectives", "comm", "training", "record")
}
"""By the tests' name: folders of the code, folders of its tests."""
SEED = 2026
LIMIT_S = 900
"""A mutant that hangs is killed by the clock."""
SWAPS: dict[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "+",
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of one place.

    line and nth find it: the text of its line, and the how manieth such line of the function it is; start and end are
    columns in that line, in characters of UTF-8's bytes, of `was`, which becomes `now`.
    """

    tests: str
    file: str
    function: str
    line: str
    nth: int
    start: int
    end: int
    was: str
    now: str


def places(tests: str, path: Path) -> Iterator[Mutant]:
    """Every mutant of the functions of a file."""
    source = path.read_text()
    lines = source.encode().splitlines()
    for function, node in _functions(ast.parse(source)):
        for row, start, end, now in sorted(set(_changes(node, lines))):
            line = lines[row - 1].decode()
            indent = len(line) - len(line.lstrip())
            nth = sum(lines[earlier - 1] == lines[row - 1] for earlier in range(node.lineno, row))
            was = lines[row - 1][start:end].decode()
            file = str(path.relative_to(ROOT))
            yield Mutant(tests, file, function, line.strip(), nth, start - indent, end - indent, was, now)


def _functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The outermost functions of a module and of its classes, by their dotted names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{inside}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{inside}{node.name}", node


def _changes(function: ast.FunctionDef, lines: list[bytes]) -> Iterator[tuple[int, int, int, str]]:
    """Line, first and last column and new text of each change within a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.lineno == node.end_lineno:
            now = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
            yield node.lineno, node.col_offset, node.end_col_offset or 0, now
        elif isinstance(node, ast.BinOp | ast.AugAssign):
            left = node.left if isinstance(node, ast.BinOp) else node.target
            right = node.right if isinstance(node, ast.BinOp) else node.value
            yield from _between(left, right, node.op, lines, "=" if isinstance(node, ast.AugAssign) else "")
        elif isinstance(node, ast.Compare):
            yield from _between(node.left, node.comparators[0], node.ops[0], lines)
        elif isinstance(node, ast.BoolOp):
            yield from _between(node.values[0], node.values[1], node.op, lines)
        elif isinstance(node, ast.If | ast.IfExp | ast.While) and node.test.lineno == node.test.end_lineno:
            test = node.test
            was = lines[test.lineno - 1][test.col_offset : test.end_col_offset].decode()
            yield test.lineno, test.col_offset, test.end_col_offset or 0, f"(not ({was}))"


def _between(
    left: ast.expr, right: ast.expr, operator: ast.AST, lines: list[bytes], suffix: str = ""
) -> Iterator[tuple[int, int, int, str]]:
    """The operator between two operands of one line, where swapping it is a mutant."""
    if type(operator) in SWAPS and left.end_lineno == right.lineno:
        between = lines[right.lineno - 1][left.end_col_offset or 0 : right.col_offset]
        was = between.strip(b" ()")
        if was:
            start = (left.end_col_offset or 0) + between.index(was)
            yield right.lineno, start, start + len(was), SWAPS[type(operator)] + suffix


def draw(count: int) -> Iterator[Mutant]:
    """A sample, as many of each folder, drawn with a fixed seed."""
    rng = random.Random(SEED)
    for number, (tests, (code, _)) in enumerate(FOLDERS.items()):
        files = sorted(path for folder in code for path in (ROOT / folder).rglob("*.py"))
        share = count // len(FOLDERS) + (number < count % len(FOLDERS))
        yield from rng.sample([mutant for path in files for mutant in places(tests, path)], share)


def changed(mutant: Mutant) -> tuple[Path, str] | None:
    """The file that has the mutant's function and line now, with the mutant in it; None if none has."""
    code = FOLDERS[mutant.tests][0]
    here = [ROOT / mutant.file, *sorted(path for folder in code for path in (ROOT / folder).rglob("*.py"))]
    for path in (each for each in here if each.is_file()):
        lines = path.read_text().encode().splitlines(keepends=True)
        for name, node in _functions(ast.parse(b"".join(lines))):
            rows = [row for row in range(node.lineno - 1, node.end_lineno or 0)
                    if lines[row].decode().strip() == mutant.line]  # fmt: skip
            if name == mutant.function and len(rows) > mutant.nth:
                row = rows[mutant.nth]
                indent = len(lines[row]) - len(lines[row].lstrip())
                start, end = indent + mutant.start, indent + mutant.end
                if lines[row][start:end].decode() == mutant.was:
                    lines[row] = lines[row][:start] + mutant.now.encode() + lines[row][end:]
                    return path, b"".join(lines).decode()
    return None


def reached(sample: list[Mutant], notes: Path) -> dict[Mutant, list[str]]:
    """By mutant the tests which call its function, from one run of all tests; "" stands for a call outside of any.

    notes  keeps what the functions wrote: number of the mutant, test and phase
    """
    if not notes.exists():
        originals: dict[Path, bytes] = {}
        rows: dict[Path, list[tuple[int, int]]] = {}
        for number, mutant in enumerate(sample):
            found = changed(mutant)
            if found is not None:
                path, _ = found
                originals[path] = path.read_bytes()
                rows.setdefault(path, []).append((_first_row(path, mutant.function), number))
        try:
            # A run that was interrupted leaves no notes, since they would be taken for all.
            begun = notes.with_suffix(".begun")
            begun.write_text("")
            for path, marks in rows.items():
                path.write_bytes(_noting(originals[path], marks, begun))
            _pytest("-n", "2", *sorted({folder for mutant in sample for folder in FOLDERS[mutant.tests][1]}))
            begun.rename(notes)
        finally:
            for path, original in originals.items():
                path.write_bytes(original)
    tests: dict[Mutant, list[str]] = {mutant: [] for mutant in sample}
    for line in sorted(set(notes.read_text().splitlines())):
        place, _, where = line.partition("\t")
        test, _, phase = where.rpartition(" (")
        # What a fixture made for one test, others of its file may look at.
        tests[sample[int(place)]].append(test.partition("::")[0] if phase == "setup)" else test)
    return tests


def _first_row(path: Path, function: str) -> int:
    """Row, from 0, of a function's first statement behind its docstring; of the function itself if it is compiled."""
    node = next(node for name, node in _functions(ast.parse(path.read_bytes())) if name == function)
    compiled = any("jit" in ast.unparse(each) for each in node.decorator_list)
    first = node if compiled else node.body[ast.get_docstring(node) is not None and len(node.body) > 1]
    decorators = getattr(first, "decorator_list", [])
    return min(each.lineno for each in (first, *decorators)) - 1


def _noting(source: bytes, marks: list[tuple[int, int]], notes: Path) -> bytes:
    lines = source.splitlines(keepends=True)
    for row, number in sorted(marks, reverse=True):
        indent = lines[row][: len(lines[row]) - len(lines[row].lstrip())].decode()
        test = "__import__('os').environ.get('PYTEST_CURRENT_TEST', '')"
        known = "__import__('builtins').__dict__.setdefault('_reached', set())"
        note = f"open({str(notes.absolute())!r}, 'a').write('{number}\\t' + {test} + '\\n')"
        mark = f"({number}, {test}) in {known} or ({known}.add(({number}, {test})), {note})"
        lines.insert(row, f"{indent}{mark}\n".encode())
    return b"".join(lines)


def _pytest(*words: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=LIMIT_S, check=False).returncode


def attempt(mutant: Mutant, tests: list[str], listed: Path) -> str:
    """Try a mutant: killed, survived, or gone from the code.

    tests   those that call its function; then all others of their files, which may see what was kept of a call
    listed  a file for their names
    """
    found = changed(mutant)
    if found is None:
        return "gone"
    everywhere = FOLDERS[mutant.tests][1] if "" in tests else []
    files = everywhere or sorted({test.partition("::")[0] for test in tests})
    path, source = found
    original = path.read_bytes()
    try:
        path.write_text(source)
        for names in ([] if everywhere else [test for test in tests if "::" in test], files):
            listed.write_text("\n".join(names))
            if names and _pytest("-x", f"@{listed}"):
                return "killed"
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        path.write_bytes(original)
    return "survived"


def main(words: list[str]) -> None:
    """Draw a sample, or try one."""
    if len(words) == 2 and words[0] == "draw":
        for mutant in draw(int(words[1])):
            print(json.dumps(asdict(mutant)))
    elif len(words) == 3 and words[0] == "try":
        sample = [Mutant(**json.loads(line)) for line in Path(words[1]).read_text().splitlines()]
        tried = Path(words[2])
        done = tried.read_text().splitlines() if tried.exists() else []
        tests = reached(sample, tried.with_suffix(".reached"))
        for mutant in sample[len(done) :]:
            verdict = attempt(mutant, tests[mutant], tried.with_suffix(".tests"))
            with tried.open("a") as file:
                file.write(json.dumps({"verdict": verdict, **asdict(mutant)}) + "\n")
            print(verdict, mutant.file, mutant.function, f"{mutant.was} -> {mutant.now}", flush=True)
        verdicts = [json.loads(line)["verdict"] for line in tried.read_text().splitlines()]
        print(", ".join(f"{verdicts.count(each)} {each}" for each in ("killed", "survived", "gone")))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
