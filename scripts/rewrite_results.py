"""Write results as this version writes them: python scripts/rewrite_results.py [FOLDER ...]; without one, results/

Lines of runs.jsonl and environments.jsonl that an older version appended get today's form, and measurements in files of
`wirebench bench` and `wirebench chaos` the digits that results keep. Runs and their order stay, and the shapes of all
come into FOLDER/environments.jsonl. What is as it should be is not written. `wirebench study check --since COMMIT`
compares the runs of before and after.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from wirebench.record import compressor_results, recorded
from wirebench.record.recorded import RUNS, SHARED
from wirebench.utils.files import write_atomically
from wirebench.utils.json_lines import json_text, rounded
from wirebench.utils.parsing import json_of

ROOT = Path(__file__).resolve().parents[1]


def contents(folder: Path) -> Iterator[tuple[Path, str]]:
    """The files of lines anywhere below a folder, and what each should hold; nothing: it should not be there.

    Runs under way, whose folders begin with a dot, and the steps of train.py's own folders are left out.
    """
    files = [path for path in sorted(folder.rglob("*.jsonl")) if "/." not in f"/{path.relative_to(folder).as_posix()}"]
    runs = [path for path in files if path.name == RUNS]
    texts, shapes = recorded.rewritten([(_text(path), recorded.shapes(path.parent)) for path in runs])
    yield from ((folder / SHARED, shapes), *zip(runs, texts, strict=True))
    for path in files:
        if path.name == SHARED and path.parent != folder:
            yield path, ""
        elif path.name not in (RUNS, SHARED, "steps.jsonl"):
            header, *lines = map(json_of, _text(path).splitlines())
            of_compressors = header["kind"] == compressor_results.KIND
            written = (rounded(compressor_results.brief(line) if of_compressors else line) for line in lines)
            yield path, "".join(f"{json_text(each)}\n" for each in (rounded(header), *written))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def main(words: list[str]) -> None:
    """Write what is not as it should be, and name it."""
    for folder in map(Path, words or [str(ROOT / "results")]):
        for path, content in contents(folder):
            before = _text(path) if path.is_file() else ""
            if content != before:
                write_atomically(path, content)
                print(f"{path}: {len(before.encode())} bytes are {len(content.encode())}")
            if not content:
                path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1:])
