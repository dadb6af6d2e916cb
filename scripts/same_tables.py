"""Which numbers of results' tables differ between two commits: python scripts/same_tables.py BEFORE [AFTER]

Rows are compared cell by cell, without where their links lead. Of a table that has other rows or columns it is said
which numbers of the former one are nowhere in it, as often as they were. A table that is in one of both alone is named,
too. The exit code is 1 where a number is missing or another.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def tables(commit: str) -> dict[str, str]:
    """The tables of a commit by their paths."""
    paths = _git("ls-tree", "-r", "--name-only", commit, "results").splitlines()
    return {path: _git("show", f"{commit}:{path}") for path in paths if path.endswith("/table.md")}


def numbers(table: str) -> list[list[str]]:
    """The numbers of each row of a Markdown table."""
    return [NUMBER.findall(LINK.sub(r"\1", line)) for line in table.splitlines() if line.startswith("|")]


def differences(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    """A line for each row whose numbers differ, for each table that lacks some, and for each that only one has."""
    for path in sorted(before.keys() ^ after.keys()):
        yield f"{path}: is only {'before' if path in before else 'after'}"
    for path in sorted(before.keys() & after.keys()):
        was, now = numbers(before[path]), numbers(after[path])
        if list(map(len, was)) == list(map(len, now)):
            yield from (f"{path}: {a} is {b}" for a, b in zip(was, now, strict=True) if a != b)
        elif missing := Counter(chain(*was)) - Counter(chain(*now)):
            yield f"{path}: has other columns, and lacks {', '.join(sorted(missing.elements()))}"


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(f"usage: {' '.join(__doc__.splitlines()[0].split(': ')[1:])}")
    found = list(differences(*map(tables, (sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "HEAD"))))
    print("\n".join(found) or "no number of a table is missing or another")
    sys.exit(1 if found else 0)
