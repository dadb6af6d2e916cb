"""wirebench study planner run: what is forecast, and what is run then."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from papers.planner import experiments, forecast
from papers.planner.experiments import CONSTANTS, EXPERIMENTS, FORTY, HOSTS, METHODS, listed
from papers.planner.forecast import FILE, ORDER
from papers.trainings import OwnCluster
from tests.papers import verb
from tests.papers.planner.foretold import record
from wirebench import compressors
from wirebench.compose.resolve import resolve
from wirebench.compressors.zero_one_adam import ZeroOneAdam
from wirebench.config import loader
from wirebench.costmodel.request_sizes import Sizes
from wirebench.gradient.flat import Layer
from wirebench.planner import known, ranges
from wirebench.planner.candidate import WORTHWHILE
from wirebench.planner.compositions import DENSE
from wirebench.planner.resimulated import RATES
from wirebench.record import recorded
from wirebench.simulation.compress_rates import Rates
from wirebench.telemetry import environment
from wirebench.topology import presets, topology_file
from wirebench.topology.rates import parse_rate

run = verb.run("planner")
LISTS = Path(experiments.__file__).parent
PART, CLUSTER = "today/order_100gbit", "ranking/resnet20_2x100mbit"
MACHINE = ranges.written(
    [{"factor": 0.8, "fitted": False}, {"factor": 1.2, "fitted": False}],
    {"processor": {"cores": 2, "message_us": 200, "call_us": 300}, "other_seconds": {"2": 0.002, "8": 0.005}},
)


class Fake(verb.Trains):
    """Stands in for the clusters."""

    def __init__(self) -> None:
        super().__init__(lambda told: record(0.5))

    @property
    def lines(self) -> list[str]:
        """The commands, a line each."""
        return [" ".join(command) for command in self.commands]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A checkout that can sign."""
    monkeypatch.setattr(environment, "git", lambda: {"commit": "0123456789abcdef", "dirty": False})
    return Fake()


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with constants."""
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / ranges.NAME).write_text(MACHINE)
    return tmp_path / "machine"


Fails = Callable[[int, str], None]


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Whether a command failed, at its end, with one line that has these words."""

    def check(code: int, words: str) -> None:
        *_, error = capsys.readouterr().err.splitlines()
        assert code == 2 and words in error and error.startswith("wirebench study planner run: "), error

    return check


def write(tmp_path: Path, *lines: str) -> list[str]:
    path = tmp_path / "list.txt"
    path.write_text("\n".join(["# made up", *lines, ""]))
    return ["--list", str(path), "--out", str(tmp_path / "out")]


@pytest.mark.parametrize(("name", "count"), [("forty", 40), ("sixty", 60), ("hundred", 100)])
def test_what_is_listed_can_be_run_and_is_new(name: str, count: int) -> None:
    names = listed(LISTS / f"{name}.txt").named
    assert len(names) == len(set(names)) == count
    for each in names[::7]:
        listed(LISTS / f"{name}.txt").training(each, each, 0).check()
    others = ("forty", "hundred") if name == "sixty" else ()
    assert not any(set(names) & set(listed(LISTS / f"{other}.txt").named) for other in others)


def test_a_list_is_forecast_before_it_is_run(tmp_path: Path, machine: Path, fake: Fake, fails: Fails) -> None:
    words = write(tmp_path, "2x1gbit-wfbp-topk-native", "8x100mbit-optimal-none-ring")
    assert run([*words, "--machine", str(machine), "--predict-only"], fake) == 0 and not fake.commands
    before = forecast.load(tmp_path / "out")
    assert before is not None and before.commit == "0123456789abcdef"
    assert before.constants == str(machine / ranges.NAME)
    assert before.names == ["2x1gbit-wfbp-topk-native", "8x100mbit-optimal-none-ring"]
    assert all(row.low and row.high and row.low < row.seconds < row.high for row in before.rows)
    assert run(words, fake) == 0, "by the same constants, unsaid"
    assert len(fake.commands) == 2 and "compressor.density=0.01" in fake.lines[0]
    assert run(words, fake) == 0
    assert len(fake.commands) == 2 and forecast.load(tmp_path / "out") == before, "they are there already"
    fails(run([*words, "--machine", str(CONSTANTS)], fake), f"{FILE} rests on {machine / ranges.NAME}, not results/")
    for more in (["--predict-only"], ["--first", "1"], ["--turns", "1"]):
        fails(run([*words, "--again", *more], fake), f"{more[0]}: not with --again: ")
    assert forecast.load(tmp_path / "out") == before
    fails(run(write(tmp_path, "2x1gbit-wfbp-none-native"), fake), "does not forecast 2x1gbit-wfbp-none-native; --out")
    (tmp_path / "out" / FILE).unlink()
    fails(run(words, fake), "has runs, and nothing was forecast before them; --out names another folder")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "names no composition"),
        (["2x1gbit-wfbp-none"], "list.txt:2: needs HOSTSxRATE-SCHEDULER-COMPRESSOR-COLLECTIVE"),
        (["1x1gbit-wfbp-none-ring"], "with 2 or more hosts, got '1x1gbit-wfbp-none-ring'"),
        (["2x1gbit-wfbp-none-ring", "2xfast-wfbp-none-ring"], "list.txt:3: "),
        (["2x1gbit-wfbp-none-ring"] * 2, "list.txt:3: 2x1gbit-wfbp-none-ring stands there twice"),
        (["2x1gbit-wfb-none-ring"], "did you mean 'wfbp'?"),
    ],
)
def test_mistakes_in_a_list_are_one_line(lines: list[str], problem: str, tmp_path: Path, fails: Fails) -> None:
    fails(run(write(tmp_path, *lines), verb.nothing), problem)


@pytest.mark.slow
def test_the_ten_best_are_ranked_first_and_then_run(tmp_path: Path, fake: Fake) -> None:
    """By expected steps; dense before what gains less than a hundredth, what was never trained last."""
    words = ["--only", CLUSTER, "--turns", "2", "--out", str(tmp_path)]
    assert run(words, fake) == 0
    before = forecast.load(tmp_path / CLUSTER)
    assert before is not None and len(set(before.names)) == len(before.names) == experiments.COUNT
    assert before.constants == "results/prediction/outside.json" and len(fake.commands) == 20
    for row, command in zip([*before.rows, *before.rows], fake.lines, strict=True):
        assert f"scheduler.name={row.composed.scheduler} compressor.name={row.composed.compressor} " in command
        assert f"collective.name={row.composed.collective} " in command and "--hosts 2 --link 100mbit" in command
    names = {run.folder.name for run in recorded.directly_below(tmp_path / CLUSTER)}
    assert names == {f"{name}-{turn}" for name in before.names for turn in (0, 1)}
    assert run(words, fake) == 0 and len(fake.commands) == 20
    assert forecast.load(tmp_path / CLUSTER) == before, "the ranking is that before the runs"
    trained = known.load(images=True, numel=269_722).known

    def place(row: forecast.Expected) -> tuple[bool, float]:
        expected = ((row.low or 0) + 4 * row.seconds + (row.high or 0)) / 6
        ended = trained.get(row.composed.compressor)
        dense = WORTHWHILE if row.composed.compressor == DENSE else 1
        return ended is None or ended.points is None, float(f"{expected * dense:.3g}")  # of numbers of four digits

    places = list(map(place, before.rows))
    assert places == sorted(places)


def test_both_compositions_run_on_both_sides(
    tmp_path: Path, fake: Fake, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, name = tmp_path / "hosts.toml", "break_even/vgg16_epyc"
    topology_file.save(presets.cluster(presets.Network(1e-4, 0.9e9 / 8, "made up"), 3), path, "made up", fit={})
    monkeypatch.setitem(EXPERIMENTS, name, experiments.Sides(experiments.VGG_SLOW, (), ("topk",)))
    words = ["--only", name, "--out", str(tmp_path), "--turns", "1", "--topology", str(path)]
    assert run(words, fake) == 0
    before = forecast.load(tmp_path / name)
    assert before is not None and before.names == [
        f"topk-{factor}-{which}" for factor in ("0.85", "1.15") for which in ("dense", "lossy")
    ]
    limit = before.given["break_even_gbit"]["topk"]
    # A link that was shaped to 1 Gbit/s carried 0.9.
    for row, factor in zip(before.rows, (0.85, 0.85, 1.15, 1.15), strict=True):
        assert parse_rate(row.composed.link) / 1e9 == pytest.approx(factor * limit / 0.9, rel=1e-5)
    below, above = (dense.seconds / lossy.seconds for dense, lossy in (before.rows[:2], before.rows[2:]))
    assert below > 1 / 0.99 > above, "it pays below, and not above"
    assert len(fake.commands) == 4 and "compressor.name=none" in fake.lines[0]
    assert "compressor.name=topk" in fake.lines[1] and "density" not in fake.lines[1], "its own density"
    assert f"collective.name={before.rows[1].composed.collective}" in fake.lines[1]
    fails(
        run([*words[:-2], "--topology", str(CONSTANTS)], fake),
        f"--topology: {tmp_path / name / FILE} rests on {path}, ",
    )
    fails(run([*words, "--measured-at", "2gbit"], fake), "rests on 1gbit, not 2gbit; --again")
    assert verb.report("planner")([str(tmp_path / name)]) == 2, "the stand-in's runs are of other links"


def settings(part: str, label: str) -> dict[str, Any]:
    """The run's config, as its record has it."""
    training = EXPERIMENTS[part].training(label, "", 0)
    training.check()
    return loader.to_dict(resolve(loader.load(experiments.ROOT / training.config, list(training.overrides))))


@pytest.mark.parametrize(("part", "gbit"), [("today/order_1gbit", 1.0), (PART, 100.0)])
def test_everything_is_slowed_down_alike_and_counted_in_whole_rounds(part: str, gbit: float) -> None:
    for label in METHODS:
        config, place = settings(part, label), EXPERIMENTS[part].training(label, "", 0).place
        assert isinstance(place, OwnCluster)
        assert parse_rate(place.link) / 1e9 * config["network"]["dilation"] == pytest.approx(gbit)
        every, train = config["scheduler"].get("every", 1), config["train"]
        assert not config["compressor"]["warmup"], "counted steps have the density of all others"
        assert train["warmup_steps"] % every == (train["max_steps"] - train["warmup_steps"]) % every == 0, label
        assert train["max_steps"] * config["data"]["batch_size"] * HOSTS < config["data"]["train_size"]


def test_zero_one_adam_sends_one_bit_in_every_counted_step() -> None:
    """As the planner has it: no dense step among those that are counted, and none without an exchange."""
    config = settings(PART, "zero_one_adam")
    options = {
        key: value for key, value in config["compressor"].items() if key not in ("name", "dense_below", "warmup")
    }
    method = compressors.build("zero_one_adam", **options)
    assert isinstance(method, ZeroOneAdam)
    counted = range(config["train"]["warmup_steps"], config["train"]["max_steps"])
    assert not any(method.intervals.is_dense(step) for step in counted)
    assert all(method.intervals.around(step) == (step, 1) for step in counted)
    asked = Sizes(lambda: compressors.build("zero_one_adam", **options), HOSTS).of([Layer("weight", 0, 4096, 2, 64)])
    assert sum(each.num_bytes for each in asked) < 4096 * 4 / 8


def test_methods_are_forecast_before_the_first_run(
    tmp_path: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--only", PART, "--turns", "1", "--first", "2", "--out", str(tmp_path)]
    assert run(words, fake) == 0
    before = forecast.load(tmp_path / PART)
    assert before is not None and before.kind == ORDER and set(before.names) == METHODS.keys()
    timed = {"rates": f"results/prediction/{RATES}", "rates_utc": Rates(CONSTANTS / RATES).utc}
    assert before.given == timed and timed["rates_utc"]
    expected = [(row.low or 0) + 4 * row.seconds + (row.high or 0) for row in before.rows]
    assert expected == sorted(expected) and before.names[0] == "streaming_diloco"
    assert len(fake.commands) == 2 and "--hosts 4 --link 1gbit" in fake.lines[0]
    folder = tmp_path / "untimed"
    folder.mkdir()
    (folder / ranges.NAME).write_text(MACHINE)
    header, *cells = (CONSTANTS / RATES).read_text().splitlines()
    (folder / RATES).write_text("\n".join([header, *(cell for cell in cells if '"demo' not in cell)]))
    more = ["--machine", str(folder), "--predict-only", "--out", str(tmp_path / "other")]
    assert run([*words[:4], *more], verb.nothing) == 0
    assert "demo: is not forecast: how long 'demo' compresses was not measured" in capsys.readouterr().err
    made = forecast.load(tmp_path / "other" / PART)
    assert made is not None and "demo" not in made.names


def test_the_forty_are_run_without_a_forecast(tmp_path: Path, fake: Fake) -> None:
    assert run(["--only", FORTY, "--first", "2", "--out", str(tmp_path)], fake) == 0
    assert len(fake.commands) == 2 and not (tmp_path / FORTY / FILE).exists()
    assert {each.folder.name for each in recorded.directly_below(tmp_path / FORTY)} == {
        "2x100mbit-wfbp-none-native", "2x100mbit-mg_wfbp-none-ring"
    }  # fmt: skip


def test_a_changed_checkout_says_so(tmp_path: Path, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "git", lambda: {"commit": "0123456789abcdef", "dirty": True})
    words = write(tmp_path, "2x1gbit-wfbp-none-ring")
    assert run([*words, "--machine", str(machine), "--predict-only"], verb.nothing) == 0
    before = forecast.load(tmp_path / "out")
    assert before is not None and before.made.startswith("by commit 0123456789 and changes at ")


@pytest.mark.slow
def test_the_committed_runs_are_those_of_the_experiments() -> None:
    for words in ([], *(["--list", str(LISTS / f"{name}.txt"), "--out", f"results/prediction-{count}"]
                        for name, count in (("sixty", 60), ("hundred", 100)))):  # fmt: skip
        assert run(words, verb.nothing) == 0
