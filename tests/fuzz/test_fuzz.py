"""Whatever a file or a setting holds: the work is done, or one clear line says why not, with exit code 2.

`python -m tests.fuzz.test_fuzz KIND NUMBER` runs one case again and shows what it says.
"""

import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.distributed.ends import losses, record
from tests.distributed.launch import CONFIG, here
from tests.fuzz.cases import MAKERS, WHOLE, Case
from tests.fuzz.child import Ended, run

FEW = 1
"""Of each kind, by day."""
DIVERGED = 3


def make_shared(folder: Path) -> Path:
    """A finished run with two checkpoints, and the same run without a break to where others take it."""
    arguments = [CONFIG, f"output.dir={folder / 'run'}", "train.max_steps=6", "train.keep=2"]
    assert here(2, arguments) == 0
    assert here(2, [*WHOLE, f"output.dir={folder / 'whole'}"]) == 0
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shared(tmp_path_factory.mktemp("shared"))


class Played(NamedTuple):
    """A case that was run, and what is wrong with its end; "" where nothing is."""

    ended: Ended
    wrong: str


def play(kind: str, number: int, shared: Path, folder: Path) -> Played:
    """Run one case: the same files and the same words each time."""
    maker, _ = MAKERS[kind]
    work = folder / f"{kind}-{number}"
    work.mkdir()
    case = maker(random.Random(f"{kind} {number}"), work, shared)
    ended = run(case.program, case.words, work)
    played = Played(ended, verdict(case, ended))
    shutil.rmtree(work)  # data sets are large
    return played


def verdict(case: Case, ended: Ended) -> str:
    """What is wrong with an end; "" where nothing is."""
    if ended.code is None:
        return "it does not end"
    if "Traceback" in ended.err + ended.out:
        return "it ends in a traceback"
    lines = [line for line in ended.err.splitlines() if line.startswith(("error: ", "wirebench "))]
    if ended.code == 2:
        return "" if len(lines) == 1 and len(lines[0]) < 1000 else "it does not say why in one line"
    if ended.code == 0:
        return _not_done(case)
    return "" if ended.code == DIVERGED and case.program == "train" else f"it ends with exit code {ended.code}"


def _not_done(case: Case) -> str:
    """What a run that says that it went well has not done; "" where nothing."""
    if case.run is None:
        return ""
    if not (case.run / "record.json").exists() or record(case.run)["status"] != "finished":
        return "it has no record of a finished run"
    if case.whole is not None and losses(case.run) != losses(case.whole):
        return "it does not end as the unbroken run"
    return ""


@pytest.mark.parametrize("kind", MAKERS)
def test_a_few_of_each_kind_end_well(kind: str, shared: Path, tmp_path: Path) -> None:
    for number in range(FEW):
        played = play(kind, number, shared, tmp_path)
        assert not played.wrong, f"{kind} {number}: {played}"


@pytest.mark.weekly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", MAKERS)
def test_a_thousand_cases_end_well(kind: str, shared: Path, tmp_path: Path) -> None:
    wrong = {number: play(kind, number, shared, tmp_path).wrong for number in range(MAKERS[kind][1])}
    bad = {number: what for number, what in wrong.items() if what}
    assert not bad, bad


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        made = make_shared(Path(name))
        for each in sys.argv[2:] or range(MAKERS[sys.argv[1]][1]):
            end, wrong = play(sys.argv[1], int(each), made, Path(name))
            if sys.argv[2:] or wrong:
                said = f"{end.out[-1500:]}{end.err[-3000:]}"
                print(f"{sys.argv[1]} {each}: {wrong or 'well'}: code {end.code}\n{said}", flush=True)
