"""Whatever a file or a setting holds: the work is done, or one clear line says why not, with exit code 2.

`python -m tests.fuzz.test_fuzz KIND NUMBER` runs one case again and shows what it says.
"""

import random
import sys
import tempfile
from pathlib import Path

import pytest

from tests.distributed.launch import CONFIG, here
from tests.fuzz.cases import MAKERS
from tests.fuzz.child import Ended, run

FEW = 2
"""Of each kind, by day."""
DIVERGED = 3


def make_shared(folder: Path) -> Path:
    """A finished run with two checkpoints."""
    arguments = [CONFIG, f"output.dir={folder / 'run'}", "train.max_steps=6", "train.keep=2"]
    assert here(2, arguments) == 0
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shared(tmp_path_factory.mktemp("shared"))


def play(kind: str, number: int, shared: Path, folder: Path) -> Ended:
    """Run one case: the same files and the same words each time."""
    maker, _ = MAKERS[kind]
    work = folder / f"{kind}-{number}"
    work.mkdir()
    case = maker(random.Random(f"{kind} {number}"), work, shared)
    return run(case.program, case.words, work)


def verdict(ended: Ended) -> str:
    """What is wrong with an end; '' where nothing is."""
    if ended.code is None:
        return "it does not end"
    if "Traceback" in ended.err + ended.out:
        return "it ends in a traceback"
    lines = [line for line in ended.err.splitlines() if line.startswith(("error: ", "wirebench "))]
    if ended.code == 2:
        return "" if len(lines) == 1 and len(lines[0]) < 1000 else "it does not say why in one line"
    return "" if ended.code in (0, DIVERGED) else f"it ends with exit code {ended.code}"


@pytest.mark.parametrize("kind", MAKERS)
def test_a_few_of_each_kind_end_well(kind: str, shared: Path, tmp_path: Path) -> None:
    for number in range(FEW):
        ended = play(kind, number, shared, tmp_path)
        assert not verdict(ended), f"{kind} {number}: {verdict(ended)}\n{ended}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", MAKERS)
def test_a_thousand_cases_end_well(kind: str, shared: Path, tmp_path: Path) -> None:
    ends = {number: play(kind, number, shared, tmp_path) for number in range(MAKERS[kind][1])}
    bad = {number: verdict(ended) for number, ended in ends.items() if verdict(ended)}
    assert not bad, bad


def test_there_are_a_thousand() -> None:
    assert sum(count for _, count in MAKERS.values()) >= 1000


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        made = make_shared(Path(name))
        for each in sys.argv[2:] or range(MAKERS[sys.argv[1]][1]):
            end = play(sys.argv[1], int(each), made, Path(name))
            if sys.argv[2:] or verdict(end):
                said = f"{end.out[-1500:]}{end.err[-3000:]}"
                print(f"{sys.argv[1]} {each}: {verdict(end) or 'well'}: code {end.code}\n{said}", flush=True)
