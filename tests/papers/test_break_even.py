"""wirebench study break_even: what would be run, and its report on records whose answers are known."""

import argparse
import dataclasses
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from papers.break_even.figures import figure
from papers.break_even.report import findings, match
from papers.break_even.run import CONFIG, MEASURED_RATES, memory
from papers.break_even.sides import FILE, Predicted, Side, load, save
from tests import charts
from tests.papers import verb
from tests.papers.test_methods_run import put, record
from tests.papers.test_mg_wfbp_runs import rows
from wirebench.figures import colours
from wirebench.record import recorded
from wirebench.simulation.compress_rates import Rates
from wirebench.telemetry import environment
from wirebench.topology import presets, topology_file
from wirebench.topology.rates import parse_rate
from wirebench.utils import this_machine

pytestmark = pytest.mark.sampled(5)

GIVEN = {"trace": "made_up", "density": None}
ROOT = Path(__file__).resolve().parents[2]
run, report = verb.run("break_even"), verb.report("break_even")


class Fake:
    """Stands in for the clusters: writes a record for every command."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str]) -> int:
        self.commands.append(command)
        folder = Path(next(word for word in command if word.startswith("output.dir=")).partition("=")[2])
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps(record("none", 0.5)))
        return 0


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    """Three hosts whose links carry 0.9 Gbit/s."""
    path = tmp_path / "hosts.toml"
    network = presets.Network(1e-4, 0.9e9 / 8, "made up")
    topology_file.save(presets.cluster(network, 3), path, "made up", fit={})
    return path


def test_both_compositions_run_on_both_sides(tmp_path: Path, topology: Path) -> None:
    fake, out = Fake(), tmp_path / "out"
    words = ["--topology", str(topology), "--measured-at", "1gbit", "--out", str(out), "--turns", "1"]
    assert run([*words, "--compressors", "topk", "--density", "0.05"], fake) == 0
    (below, above), given = load(out)
    assert given["trace"] == "vgg16_cifar_epyc" and given["memory_told_by"] == "probe"
    assert given["memory_bytes_per_second"] == round(this_machine.copy_bytes_per_second())
    assert (below.factor, above.factor) == (0.85, 1.15) and below.pays and not above.pays
    # A link that was shaped to 1 Gbit/s carried 0.9.
    for side in (below, above):
        assert parse_rate(side.link) / 1e9 == pytest.approx(side.factor * side.break_even_gbit / 0.9, rel=1e-5)
    gains = [side.dense["seconds"] / side.lossy["seconds"] for side in (below, above)]
    assert gains[0] > 1 / 0.99 > gains[1], "it pays below, and not above"
    runs = [[word for word in command if "=" in word and "output" not in word] for command in fake.commands]
    assert len(runs) == 4 and len({next(w for w in c if w.endswith("kbit")) for c in fake.commands}) == 2
    assert runs[0][0] == "compressor.name=none" and f"scheduler.name={below.dense['scheduler']}" in runs[0]
    assert runs[1][:2] == ["compressor.name=topk", "compressor.density=0.05"]
    assert f"collective.name={below.lossy['collective']}" in runs[1]
    assert report([str(out)]) == 0


def test_on_the_machine_of_the_rates_their_own_copies_count(monkeypatch) -> None:
    """Elsewhere a probe says how fast memory copies; a name alone, such as "AMD EPYC", makes no machine the same."""
    rates = Rates(MEASURED_RATES)
    measured_on = rates.cpu
    monkeypatch.setattr(this_machine, "copy_bytes_per_second", lambda: 3e10)
    monkeypatch.setattr(environment, "cpu", lambda: {**measured_on, "memory_mb": 1})
    assert memory(rates) == (rates.bytes_per_second, "rates") and 1e9 < rates.bytes_per_second < 3e10
    for other in ({"model": "another"}, {"flags": ["avx512f"]}, {"cores": 64}):
        monkeypatch.setattr(environment, "cpu", lambda other=other: {**measured_on, **other})
        assert memory(rates) == (3e10, "probe"), other
    rates.cpu = {}
    assert memory(rates) == (3e10, "probe"), "an older file does not say where it was measured"


def side(factor: float) -> Side:
    plain = {"scheduler": "optimal", "collective": "ring", "seconds": 1.0}
    return Side("topk", 2.0, factor, f"{2 * factor:g}gbit", plain, {**plain, "seconds": 0.95})


def measured(folder: Path, each: Side, dense: float, lossy: float) -> None:
    turned(folder, each, (dense, lossy), (dense, lossy))


def turned(folder: Path, each: Side, *turns: tuple[float, float]) -> None:
    """Records of the side, with these seconds of the dense and of the compressed step of each turn."""
    for turn, both in enumerate(turns):
        for which, seconds in zip(("dense", "lossy"), both, strict=True):
            made: dict[str, Any] = record("none", seconds)
            made["config"]["model"] = {"name": "replay", "trace": "made_up"}
            put(folder, each.folder(which, turn)[:-2], turn, made)
            note = folder / each.folder(which, turn) / "note.json"
            note.write_text(json.dumps({**json.loads(note.read_text()), "link": each.link}))


def test_a_side_counts_where_it_pays_as_predicted_and_the_crossing_lies_between(tmp_path: Path) -> None:
    sides = [side(0.5), side(2.0)]
    measured(tmp_path, sides[0], 1.0, 0.95)
    measured(tmp_path, sides[1], 1.0, 1.03)
    save(tmp_path, Predicted(sides, GIVEN))
    assert report([str(tmp_path)]) == 0
    text = (tmp_path / "table.md").read_text()
    assert "2 of 2 sides are as predicted." in text
    table = rows(text, "compressor")
    assert [(cells[1], cells[7], cells[8], cells[9]) for cells in table] == [
        ("1 Gbit/s", "+5.3 % [+5.3 to +5.3]", "+5.3 %", "yes"),
        ("4 Gbit/s", "-2.9 % [-2.9 to -2.9]", "+5.3 %", "yes"),
    ]  # fmt: skip
    # The margin falls from 0.04 at 1 Gbit/s to -0.04 at 4: it vanishes half way between their logarithms.
    assert rows(text, "compressor | pays below, by the planner")[-1] == ["topk", "2 Gbit/s", "2 Gbit/s", "1.00"]
    assert (tmp_path / "break_even.svg").read_bytes().startswith(b"<svg")


def test_the_figure_has_both_sides_with_the_spread_of_their_turns(tmp_path: Path) -> None:
    each = side(0.5)
    turned(tmp_path, each, (1.0, 0.95), (1.0, 0.97), (1.0, 1.01))
    runs = recorded.noted(tmp_path, {"hosts": int, "link": str, "launch": str})
    drawn = figure(match([each, side(2.0)], runs), runs)
    charts.check(drawn)
    shown = charts.lines(drawn)
    logs = [-math.log(each) for each in (0.95, 0.97, 1.01)]
    middle, half = statistics.mean(logs), stats.t.isf(0.025, 2) * stats.sem(logs)
    for name, log in (("measured", middle), ("predicted", -math.log(0.95))):
        assert shown[name][0] == [0.5]
        assert shown[name][1] == pytest.approx([100 * math.expm1(log)])
    [spread] = charts.of(drawn, "rule")[:1]
    ends = (100 * math.expm1(middle - half), 100 * math.expm1(middle + half))
    assert (spread["low"], spread["high"]) == pytest.approx(ends)
    assert {row["colour"] for row in charts.of(drawn, "line") if row["name"] == "measured"} == {colours.method("topk")}
    assert charts.axes(drawn, "y") == {"faster than dense, %"} and charts.titles(drawn) == ["topk"]
    assert "3 turns, geometric means" in charts.note(drawn) and "commit" in charts.note(drawn)


def test_what_does_not_pay_where_it_should_is_said(tmp_path: Path) -> None:
    measured(tmp_path, side(0.5), 1.0, 0.995)
    save(tmp_path, Predicted([side(0.5), side(2.0)], GIVEN))
    assert report([str(tmp_path)]) == 0
    text = (tmp_path / "table.md").read_text()
    assert "0 of 1 sides are as predicted." in text and "not between these rates" in text


def test_turns_that_disagree_confirm_nothing(tmp_path: Path) -> None:
    each = side(0.5)
    turned(tmp_path, each, (1.0, 0.95), (1.0, 0.97), (1.0, 1.01))
    save(tmp_path, Predicted([each], GIVEN))
    assert report([str(tmp_path)]) == 0
    [cells] = rows((tmp_path / "table.md").read_text(), "compressor")[:1]
    assert cells[7] == "+2.4 % [-5.2 to +10.7]" and cells[9] == "not decidable"


def test_a_finding_names_the_rules_that_either_composition_breaks(tmp_path: Path) -> None:
    each, busy = side(0.5), {"hostname": "a", "ranks": [0, 1, 2, 3], "cores": 2, "load_average": [0.5, 4.0]}
    for turn in range(5):
        for which, seconds in (("dense", 1.0), ("lossy", 0.9)):
            found = record("none", seconds)
            found["config"]["model"] = {"name": "replay", "trace": "made_up"}
            found["load"] = [{**busy, "others_cores": 1.0 if (which, turn) == ("lossy", 4) else 0.1, "steal": 0.0}]
            put(tmp_path, each.folder(which, turn)[:-2], turn, found, link=each.link)
    save(tmp_path, Predicted([each], GIVEN))
    [of_both] = findings(argparse.Namespace(folders=[tmp_path]))
    assert "load" in of_both.rules and not any(rule.startswith("turns") for rule in of_both.rules)
    assert len(of_both.records) == 10


def test_a_prediction_that_is_damaged_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured(tmp_path, side(0.5), 1.0, 0.9)
    broken = dataclasses.replace(side(0.5), dense={**side(0.5).dense, "seconds": 0})
    save(tmp_path, Predicted([broken], GIVEN))
    assert report([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "is not what `wirebench study break_even run` writes: 0 is not positive" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compressors", "topk", "--topology", "no.toml"], "no.toml: cannot be read"),
        (["--compressors", "topk", "--topology", "configs/topologies/2+3_1gbit.toml"], "needs one rank a host"),
        (["--compressors", "topk", "--topology", "1+1"], "has no link speeds"),
        (["--compressors", "tpk"], "--compressors: no 'tpk'; did you mean 'topk'?"),
        (["--compressors", "topk", "--factors", "0"], "--factors: needs a number from"),
        (["--compressors", "topk", "--measured-at", "1"], "--measured-at: cannot read the rate '1'"),
        (["--compressors", "topk", "--config", "configs/smoke.toml"], "names no trace to be replayed"),
        (["--compressors", "fp16", "--density", "0.05"], "--density: 'fp16': none has one"),
        (["--compressors", "topk", "--config", "SLOWED"], "needs the trace's 32 images and no dilation"),
        (
            ["--compressors", "threshold"],
            "--compressors: 'threshold': of noise it sends nothing; what it sends depends",
        ),
        (["--compressors", "topk", "--factors", "1e-6"], "--factors 1e-06: the link of 'topk': '"),
        (["--compressors", "terngrad", "--turns", "0"], "--turns: must be positive"),
    ],
)
def test_mistakes_are_one_line(tmp_path, topology, arguments, words, capsys) -> None:
    slowed = tmp_path / "slowed.toml"
    slowed.write_text((ROOT / CONFIG).read_text() + "\n[network]\ndilation = 2.0\n")
    arguments = [str(slowed) if word == "SLOWED" else word for word in arguments]
    usual = ["--topology", str(topology), "--measured-at", "1gbit", "--out", str(tmp_path / "out")]
    assert run([*usual, *arguments], Fake()) == 2
    error = capsys.readouterr().err
    assert error.startswith("wirebench study break_even run: ") and error.count("\n") == 1 and words in error
    assert not list((tmp_path / "out").glob("*"))


def test_a_folder_without_runs_is_one_line(tmp_path, capsys) -> None:
    assert report([str(tmp_path)]) == 2
    assert (
        "predicted.json: cannot be read: No such file or directory; `wirebench study break_even run` writes it"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("damage", [{"factor": "q"}, {"dense": {}}, {"lossy": None}])
def test_a_damaged_prediction_is_one_line(tmp_path, damage, capsys) -> None:
    (tmp_path / FILE).write_text(json.dumps([{**dataclasses.asdict(side(0.5)), **damage}]))
    assert report([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "is not what `wirebench study break_even run` writes" in error and error.count("\n") == 1
