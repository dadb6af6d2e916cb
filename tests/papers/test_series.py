"""Every study's runs: the commands that they give can be run as they are.

Nothing is measured. Commands go through the verbs' own command lines here, down to each training: sizes are read,
configs and compositions resolve for their number of workers, steps suffice for what is counted, and files that are read
are there or made before.
"""

import argparse
import dataclasses
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from papers import cli as study
from papers.failures import hosts
from papers.planner import experiments, forecast
from papers.runner import ROOT, Command, shown
from papers.study import Study, available
from wirebench import collectives, data, models
from wirebench.bench import checkpoint, overhead
from wirebench.bench import collectives as bench_collectives
from wirebench.bench import compressors as bench_compressors
from wirebench.bench import pods as bench_pods
from wirebench.cli.jobs import chaos, cluster
from wirebench.compose.resolve import refuse_cut, refuse_workers, resolve, scheduler_of
from wirebench.config import loader
from wirebench.config.loader import Config
from wirebench.data import Shard
from wirebench.errors import UserError
from wirebench.gradient.schedule import LayerCost
from wirebench.profiling.calibration import PROFILING_STEPS, SETTLING_STEPS, VALIDATION_STEPS
from wirebench.telemetry import environment
from wirebench.topology.tree import Topology

ALIKE = re.compile(r"(output\.dir|train\.seed)=\S+")
Words = list[str]
CPU = torch.device("cpu")


@dataclasses.dataclass
class Place:
    """Where a command runs.

    folder   for what it writes
    layout   ranks of each machine, as Topology.parse reads it; "": what it says itself
    written  what the commands before it write
    """

    folder: Path
    layout: str = ""
    written: set[Path] = dataclasses.field(default_factory=set)

    def read(self, path: Path | str) -> None:
        """A command reads this file or folder."""
        assert (ROOT / path).exists() or Path(path) in self.written, f"{path} is read, but nobody writes it"


def check(words: Words, place: Place) -> None:
    """Go through a command as a study, a cluster or a launcher starts it: up to the longest name that has a check."""
    program, *rest = words
    if program == "horovodrun":
        place = dataclasses.replace(place, layout=rest[rest.index("-np") + 1])
        program, *rest = rest[next(number for number, word in enumerate(rest) if Path(word).name == "python") :]
    names = [" ".join([Path(program).name, *rest[:count]]) for count in (2, 1)]
    known = next((name for name in names if name in TOOLS), None)
    assert known, f"{names[0]} has no check here"
    TOOLS[known](rest[known.count(" ") :], place)


def check_training(words: Words, place: Place) -> None:
    """train.py's: the composition, the workers, the steps."""
    check_composition(resolve(loader.load(ROOT / words[0], words[1:])), place)


def check_composition(settings: Config, place: Place) -> None:
    """As many workers as there will be train it, and some steps count."""
    topology = Topology.parse(place.layout or str(settings.engine.workers))
    refuse_workers(dataclasses.replace(settings, engine=dataclasses.replace(settings.engine, workers=topology.size)))
    layers, shard = layers_and_shard(settings, topology.size)
    scheduler = scheduler_of(settings)
    groups = scheduler.partition(layers, lambda numel: 0.0)
    refuse_cut(settings, groups)
    collectives.build(settings.collective.name, **settings.collective.options).plan(
        topology, max(sum(layers[place].numel for place in group) for group in groups)
    )
    steps = settings.train.max_steps or settings.train.epochs * shard.steps_per_epoch
    learning = SETTLING_STEPS + PROFILING_STEPS + VALIDATION_STEPS if scheduler.needs_profile else 0
    assert steps > max(settings.train.warmup_steps, learning), "no step counts"


_known: dict[Any, Any] = {}


def layers_and_shard(settings: Config, size: int) -> tuple[list[LayerCost], Shard]:
    """The model's layers in backward order, and the share of the data, which need not be there, of one of `size`."""
    key = repr((settings.model, settings.data, size))
    if key not in _known:
        dataset: Any = SimpleNamespace(train_size=50_000, test_size=10_000, num_classes=10, image_shape=(3, 32, 32))
        if settings.data.name != "cifar10":
            dataset = data.build(settings.data.name, settings.data.root, **settings.data.options)
        with torch.device("meta"):
            model = models.build(
                settings.model.name, dataset.num_classes, dataset.image_shape, **settings.model.options
            )
        layers = [LayerCost(name, parameter.numel()) for name, parameter in model.named_parameters()]
        _known[key] = layers[::-1], Shard(dataset, 0, size, settings.data.batch_size, 0, 0, CPU)
    return _known[key]


def check_sides(tool: Any, steps_of: Callable[[Any], int]) -> Callable[[Words, Place], None]:
    """Of a tool that compares two sides: an epoch is as long as what it measures, `steps_of` its options."""

    def check(words: Words, place: Place) -> None:
        options = tool.parse(words)
        given = resolve(tool.settings(options, place.folder, options.processes))
        check_composition(given, dataclasses.replace(place, layout=str(options.processes)))
        _, shard = layers_and_shard(given, options.processes)
        assert shard.steps_per_epoch >= steps_of(options)
        place.written.add(Path(options.json))

    return check


def check_pods(words: Words, place: Place) -> None:
    """The composition goes with shards, its workers are pods, and some steps count."""
    options = bench_pods._parser().parse_args(words)
    settings = resolve(loader.load(ROOT / options.config, options.overrides))
    bench_pods.refuse(settings)
    assert not Topology.parse(place.layout).size % options.shard
    check_composition(settings, place)


def check_cluster(words: Words, place: Place) -> None:
    """What is run on its ranks."""
    cut = words.index("--")
    plan = cluster._plan(cluster._parse(words[:cut]))
    check(words[cut + 1 :], dataclasses.replace(place, layout=plan.layout))


def check_collectives(words: Words, place: Place) -> None:
    """Every size of every collective has a plan on the layout."""
    options, topology = bench_collectives.parse(words), Topology.parse(place.layout)
    for size in map(bench_collectives.parse_size, options.sizes):
        for name in options.collectives:
            collectives.build(name).plan(topology, size)
    place.read(options.topology or ROOT)
    place.written.add(Path(options.json))


def check_compressors(words: Words, place: Place) -> None:
    """Every contender can be made, every size read."""
    options = bench_compressors._parser().parse_args(words)
    bench_compressors._check(options)
    for size in options.sizes:
        bench_compressors.parse_size(size)
    for contender in bench_compressors.choose(options.compressors, options.density, options.rivals):
        contender.make()


def check_study(words: Words, place: Place) -> None:
    """What a report or a planner reads is there; so is what the runs need that are launched."""
    name, action, *rest = words
    running, study_of = action == "run", Study(name)
    parser = argparse.ArgumentParser()
    (study_of.runs if running else study_of.report).flags(parser)
    options, _ = parser.parse_known_args(rest)
    given = vars(options)
    keys = ("topology", "config") if running else ("folder", "runs", "out", "dir")
    for path in [*given.get("folders", []), *(given[key] for key in keys if isinstance(given.get(key), Path))]:
        place.read(path)
    if running:
        check_launched([*words, "--out", str(place.folder / f"out-{len(place.written)}")], place)
        place.written |= {given["out"]} - {None}


def check_launched(words: Words, place: Place) -> None:
    """Every run of a study, none of which is made."""
    noted: list[Command] = []

    def launch(command: Command) -> int:
        noted.append(command)
        return 1

    assert study.main(words, launch) == 1, "every run failed, and none of its flags was wrong"
    assert noted
    # All turns and seeds are alike, but for where they go.
    for line in {ALIKE.sub(r"\1=0", shown(command)) for command in noted}:
        check(shlex.split(line), place)


TOOLS: dict[str, Callable[[Words, Place], Any]] = {
    "python train.py": check_training,
    "python -m papers.failures.hosts": lambda words, _: hosts.parse(words),
    "wirebench chaos": lambda words, _: chaos._parse(words),
    "wirebench cluster": check_cluster,
    "wirebench study": check_study,
    "wirebench bench checkpoint": check_sides(
        checkpoint, lambda options: options.warmup + 2 * options.turns * options.every
    ),
    "wirebench bench collectives": check_collectives,
    "wirebench bench compressors": check_compressors,
    "wirebench bench overhead": check_sides(overhead, overhead.steps_of_a_side),
    "wirebench bench pods": check_pods,
}
"""What checks the words that follow, by what a command begins with."""


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the planner ranks takes seconds; here it is made up."""
    monkeypatch.setattr(environment, "git", lambda: {"commit": "c0ffee", "dirty": False})
    best = tuple(forecast.Expected(f"2x1gbit-optimal-{name}-native", 1.0) for name in ("none", "topk"))
    made = forecast.Forecast(forecast.BEST, best, "", "c0ffee")
    monkeypatch.setattr(experiments.TenBest, "forecast", lambda *_: made)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", available())
def test_the_runs_behind_the_tables_can_be_made(name: str, quick: bool, tmp_path: Path) -> None:
    """A short version has fewer runs, not others."""
    (tmp_path / "cifar-10-batches-bin").mkdir()
    place = Place(tmp_path)
    for part in Study(name).runs.series(quick):
        assert part.minutes > 0
        if "{images}" not in part.words:  # a run's images are only there while it runs: tests/papers/iwp
            check_study([name, "run", *(str(tmp_path) if word == "{data}" else word for word in part.words)], place)


def test_only_the_named_studies_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []
    monkeypatch.setattr(study, "run_all", lambda quick, inputs, launch, names: noted.append(names))
    assert study.main(["run", "gs_sgd", "iwp"], lambda command: 1) == 0 and noted == [["gs_sgd", "iwp"]]
    with pytest.raises(UserError, match="no study 'gs_sdg'"):
        study.make_all(["gs_sdg"], lambda command: 1)


@pytest.mark.parametrize("words", [["--batch", "7", "--processes", "3", "--turns", "50"], ["--model", "resnet50"]])
def test_overheads_epoch_is_as_long_as_what_is_asked_for(words: Words, tmp_path: Path) -> None:
    check(["wirebench", "bench", "overhead", *words, "--json", "ratio.json"], Place(tmp_path))
