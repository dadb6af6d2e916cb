"""wirebench study ranking: what the planner ranks is run, and its first choice is held against the rest."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from papers.accuracy import known as trained
from papers.ranking import ranked
from papers.ranking.measured import Measured
from papers.ranking.ranked import FILE, Ranked, Ranking
from papers.ranking.report import figure, findings
from papers.ranking.run import CLUSTERS
from tests import charts
from tests.papers import verb
from tests.papers.test_break_even import Fake
from tests.papers.test_methods_run import put, record
from tests.papers.test_mg_wfbp_runs import rows
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.planner import ranges
from wirebench.planner.advice import WORTHWHILE
from wirebench.planner.compositions import DENSE
from wirebench.planner.resimulated import FromOutside, rates_of
from wirebench.record import recorded
from wirebench.telemetry import environment

pytestmark = pytest.mark.sampled(3)

run, report = verb.run("ranking"), verb.report("ranking")
BEST = (
    Ranked("optimal", "topk", "native", 0.100, 0.09, 0.12),
    Ranked("wfbp", "none", "ring", 0.101, 0.09, 0.12),
    Ranked("dear", "fp16", "ring", 0.102, 0.09, 0.12),
)
CLUSTER = "resnet20_2x100mbit"


@pytest.mark.slow
def test_the_ten_best_are_ranked_first_and_then_run(tmp_path: Path) -> None:
    fake, words = Fake(), ["--clusters", CLUSTER, "--turns", "2", "--out", str(tmp_path)]
    assert run(words, fake) == 0
    ranking = ranked.load(tmp_path / CLUSTER)
    assert len(ranking.best) == len({each.label for each in ranking.best}) == ranked.COUNT
    assert ranking.machine == "results/prediction/outside.json"
    assert all(each.low <= each.seconds <= each.high for each in ranking.best)
    launched = [" ".join(command) for command in fake.commands]
    assert len(launched) == 20
    for each, command in zip([*ranking.best, *ranking.best], launched, strict=True):
        assert f"scheduler.name={each.scheduler} compressor.name={each.compressor} " in command
        assert f"collective.name={each.collective} " in command and "--hosts 2 --link 100mbit" in command
    names = {note.folder.name for note in recorded.noted(tmp_path / CLUSTER, {"label": str})}
    assert len(names) == 20 and {name[-2:] for name in names} == {"-0", "-1"}
    before = (tmp_path / CLUSTER / FILE).read_bytes()
    assert run(words, again := Fake()) == 0 and not again.commands
    assert (tmp_path / CLUSTER / FILE).read_bytes() == before, "the ranking is that before the runs"


@pytest.mark.slow
def test_the_order_is_the_planners(monkeypatch: pytest.MonkeyPatch) -> None:
    """By expected steps; dense before what gains less than a hundredth, what was never trained last.

    On the machine of the committed rates: how many of the best steps are as long as another depends on its memory.
    """
    cluster, known, machine = CLUSTERS["vgg16_4x500mbit"], trained.of_classics(), ranges.machine()
    rates = rates_of(ranges.SHIPPED.parent)
    monkeypatch.setattr(environment, "cpu", lambda: rates.cpu)
    best = ranked.rank(cluster, ranges.SHIPPED).best

    def place(each: Ranked) -> tuple[bool, float]:
        expected = (each.low + 4 * each.seconds + each.high) / 6 * (WORTHWHILE if each.compressor == DENSE else 1)
        ended = known.known.get(each.compressor)
        return ended is None or ended.points is None, float(f"{expected:.3g}")  # of numbers of four digits

    places = list(map(place, best))
    assert places == sorted(places) and len(set(places)) > ranked.COUNT / 2
    config = loader.load(ranked.ROOT / cluster.config, list(best[0].on(cluster).overrides))
    outside = FromOutside(loader.to_dict(resolve(config)), cluster.hosts, cluster.link, 0.0, rates)
    assert best[0].low < outside.seconds(machine.processor) < best[0].high


def measured(folder: Path, *seconds: Sequence[float], utc: str = "2026-11-25T00:00:00+00:00") -> Path:
    """Runs of BEST with these steps in each turn, where there are any, that began at `utc`."""
    folder.mkdir()
    ranked.save(folder, Ranking(BEST, "c0ffee" * 7, False, "2026-11-25T00:00:00+00:00", "outside.json", False))
    for each, turns in zip(BEST, seconds, strict=False):
        for turn, step in enumerate(turns):
            made: dict[str, Any] = record("none", step)
            made["environment"]["utc"] = utc
            put(folder, each.label, turn, made)
    return folder


RIVALS = ((0.11, 0.11, 0.11, 0.11, 0.11), (0.13, 0.13, 0.13, 0.13, 0.13))


@pytest.mark.parametrize(
    ("first", "rivals", "state", "here"),
    [
        ([0.10] * 5, RIVALS, "reproduced", "1.00x, the shortest"),
        ([0.112] * 5, RIVALS, "reproduced", "1.018x [1.018 to 1.018] of wfbp, none, ring"),
        ([0.121] * 5, RIVALS, "not reproduced", "1.100x [1.100 to 1.100] of wfbp, none, ring"),
        ([0.10, 0.111, 0.112, 0.115, 0.12], RIVALS, "not decidable", "1.013x [0.931 to 1.101] of wfbp, none, ring"),
        ([0.10] * 5, RIVALS[:1], "not decidable", "1.00x, the shortest"),
        ([], RIVALS, "not run here", "no time"),
    ],
)
def test_the_first_choice_is_held_against_the_shortest(
    tmp_path: Path, first: list[float], rivals: Sequence[Sequence[float]], state: str, here: str
) -> None:
    folder = measured(tmp_path / CLUSTER, first, *rivals)
    [found] = findings(argparse.Namespace(folders=[folder]))
    assert (found.verdict.state, found.here) == (state, here)
    ran = [bool(first), *map(bool, rivals), False, False][:3]
    assert len(found.records) == 5 * sum(ran), "the verdict rests on all ten"
    assert report([str(folder)]) == 0
    text = (folder / "table.md").read_text()
    table = rows(text, "planner's place")
    assert [(cells[0], cells[1], cells[2]) for cells in table] == [
        (str(place), each.label, f"{1e3 * each.seconds:.1f}") for place, each in enumerate(BEST, 1)
    ]
    assert [cells[4] != "-" for cells in table] == ran
    assert here in text and "by commit c0ffeec0ff at" in text and "Kendall's tau of places and steps is " in text
    for each, there in zip(BEST, ran, strict=True):
        assert (f"Without a time since the ranking: {each.label}." in text) is not there
    drawn = figure(Measured(folder))
    charts.check(drawn)
    assert "medians of 5 turns" in charts.note(drawn)


def test_a_prediction_has_no_loading_and_no_update(tmp_path: Path) -> None:
    folder = measured(tmp_path / CLUSTER, [0.120], [0.13], [0.14])
    assert report([str(folder)]) == 0
    first = rows((folder / "table.md").read_text(), "planner's place")[0]
    assert first[5] == "+0.0 %", "of 120 ms two phases of 10 ms are left out"


def test_what_ran_before_the_ranking_or_diverged_does_not_count(tmp_path: Path) -> None:
    folder = measured(tmp_path / CLUSTER, [0.1, 0.1], [0.09, 0.11], [0.13, 0.13])
    for path in folder.glob("wfbp*-0/record.json"):
        earlier = json.loads(path.read_text())
        earlier["environment"]["utc"] = "2026-11-24T23:59:59+00:00"
        path.write_text(json.dumps(earlier))
    for path in folder.glob("dear*-1/record.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "diverged"}))
    found = Measured(folder)
    assert [(row.label, len(row.runs)) for row in found.rows] == [(BEST[0].label, 2), (BEST[1].label, 1)]
    assert found.missing == [BEST[2].label] and found.shortest.label == BEST[0].label


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(code: int, words: str) -> None:
        error = capsys.readouterr().err
        assert code == 2 and words in error and error.count("\n") == 1, error

    out = ["--out", str(tmp_path)]
    fails(run(["--clusters", "resnet20_2x100mbi", *out], verb.nothing), "did you mean 'resnet20_2x100mbit'?")
    fails(run(["--turns", "0", *out], verb.nothing), "--turns: must be positive, got 0")
    folder = measured(tmp_path / CLUSTER, [0.1], [0.1], utc="2026-11-24T00:00:00+00:00")
    fails(report([str(folder)]), "has no run with a counted step that began after its ranking")
    other = ["--clusters", CLUSTER, "--machine", "another.json", *out]
    fails(run(other, verb.nothing), "was ranked with outside.json; --again ranks and runs all of it anew")
    (folder / FILE).write_text(json.dumps({"best": [{"scheduler": "wfbp"}]}))
    fails(report([str(folder)]), "is not what `wirebench study ranking run` writes: ")
    (folder / FILE).unlink()
    fails(report([str(folder)]), "cannot be read: No such file or directory")
    fails(run(["--clusters", CLUSTER, *out], verb.nothing), "has runs, and nothing was ranked before them")
