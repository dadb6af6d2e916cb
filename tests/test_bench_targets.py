"""Every `make bench-*` target: the commands that it gives, as the Makefile gives them, can be run as they are.

Nothing is measured. A target's programs are replaced by one that notes how it is called; what was noted goes through
the tools' own command lines here, down to each training: sizes are read, configs and compositions resolve for their
number of workers, steps suffice for what is counted, and files that are read are there or made before.
"""

import argparse
import dataclasses
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import models
from resolve import refuse_cut, refuse_workers, resolve, scheduler_of
from scripts import (
    _break_even,
    bench_break_even,
    bench_collectives,
    bench_compressors,
    bench_flexreduce,
    bench_input,
    bench_methods,
    bench_overhead,
    bench_prediction,
    bench_schedules,
    break_even_report,
    cluster,
    convergence,
    errors,
    fit_network,
    flexreduce_report,
    methods_report,
    mgwfbp_report,
    plot_collectives,
    schedules_report,
)
from scripts._break_even import Side
from wirebench import collectives, config, data, rehearsal
from wirebench.config import Config
from wirebench.data import Shard
from wirebench.schedule import LayerCost
from wirebench.topology import Topology

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.findall(r"^(bench-[a-z-]+):.*## ", MAKEFILE, re.MULTILINE)
PROGRAMS = ("python", "horovodrun", "torchrun", "wirebench")
NOTING = """#!/bin/sh
printf '%s\\0' "$(basename "$0")" "$@" >> "$NOTES"
printf '\\n' >> "$NOTES"
"""
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


def commands(target: str, folder: Path) -> list[Words]:
    """What `make TARGET` calls: program and words."""
    folder.joinpath("bin").mkdir()
    for name in PROGRAMS:
        program = folder / "bin" / name
        program.write_text(NOTING)
        program.chmod(0o755)
    # Of a make that runs the tests nothing may be inherited.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    environment["NOTES"] = str(folder / "notes")
    given = [f"VENV={folder / 'bin'}", f"RESULTS={folder / 'results'}", "--old-file=setup"]
    command = ["make", "--silent", *given, target]
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, made.stderr
    lines = (folder / "notes").read_text().split("\0\n")
    return [line.split("\0") for line in lines if line]


def check(words: Words, place: Place) -> None:
    """Go through a command as `make`, a cluster or a launcher starts it."""
    program, *rest = words
    if program == "horovodrun":
        place = dataclasses.replace(place, layout=rest[rest.index("-np") + 1])
        rest = rest[next(number for number, word in enumerate(rest) if Path(word).name == "python") + 1 :]
    tool, *rest = rest
    assert tool in TOOLS, f"{tool} has no check here"
    TOOLS[tool](rest, place)


def check_training(words: Words, place: Place) -> None:
    """train.py's: the composition, the workers, the steps."""
    check_composition(resolve(config.load(ROOT / words[0], words[1:])), place)


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
    learning = rehearsal.SETTLE + rehearsal.LEARN + rehearsal.TRY if scheduler.needs_profile else 0
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


def check_overhead(words: Words, place: Place) -> None:
    """An epoch is as long as all turns of a side."""
    options = bench_overhead.parse(words)
    given = resolve(bench_overhead.settings(options, place.folder, options.processes))
    check_composition(given, dataclasses.replace(place, layout=str(options.processes)))
    _, shard = layers_and_shard(given, options.processes)
    assert shard.steps_per_epoch >= bench_overhead.steps_of_a_side(options)
    place.written.add(Path(options.json))


def check_cluster(words: Words, place: Place) -> None:
    """What is run on its ranks."""
    cut = words.index("--")
    plan = cluster._plan(cluster._parser().parse_args(words[:cut]))
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


def check_fit(words: Words, place: Place) -> None:
    """Cells are there; what is written is noted."""
    options = fit_network.parse(words)
    for path in [*options.cells, options.judge]:
        place.read(path or ROOT)
    place.written.add(Path(options.out or ROOT))


def check_convergence(words: Words, place: Place) -> None:
    """All its trainings."""
    options = convergence._parser().parse_args([*words, "--out", str(place.folder / "out")])
    for task in convergence.tasks(options):
        check(convergence._command(options, task), place)


def launching(main: Callable[[Sequence[str], Any], int]) -> Callable[[Words, Place], None]:
    """Of a tool that launches one training after the other: all of these."""

    def check_launched(words: Words, place: Place) -> None:
        out = place.folder / f"out-{len(place.written)}"
        noted: list[Words] = []

        def launch(command: Words) -> int:
            noted.append(command)
            return 1

        assert main([*words, "--out", str(out)], launch) == 1, "the launched are said to have failed"
        assert noted
        # All turns are alike, but for where they go.
        for command in {tuple(word for word in each if not word.startswith("output.dir=")) for each in noted}:
            check(list(command), place)
        if "--out" in words:
            place.written.add(Path(words[words.index("--out") + 1]))

    return check_launched


def reading(parser: argparse.ArgumentParser) -> Callable[[Words, Place], None]:
    """Of a tool that reads what others wrote: it is there."""

    def check_read(words: Words, place: Place) -> None:
        options = vars(parser.parse_args(words))
        for path in [*options.get("files", []), options.get("dir"), options.get("folder")]:
            place.read(path or ROOT)

    return check_read


TOOLS: dict[str, Callable[[Words, Place], Any]] = {
    "train.py": check_training,
    "scripts/cluster.py": check_cluster,
    "scripts/convergence.py": check_convergence,
    "scripts/fit_network.py": check_fit,
    "scripts/bench_break_even.py": launching(bench_break_even.main),
    "scripts/bench_collectives.py": check_collectives,
    "scripts/bench_compressors.py": check_compressors,
    "scripts/bench_flexreduce.py": launching(bench_flexreduce.main),
    "scripts/bench_input.py": lambda words, _: bench_input.arguments(words),
    "scripts/bench_methods.py": launching(bench_methods.main),
    "scripts/bench_overhead.py": check_overhead,
    "scripts/bench_prediction.py": launching(bench_prediction.main),
    "scripts/bench_schedules.py": launching(bench_schedules.main),
    "scripts/break_even_report.py": reading(break_even_report._parser()),
    "scripts/errors.py": reading(errors._parser()),
    "scripts/flexreduce_report.py": reading(flexreduce_report._parser()),
    "scripts/methods_report.py": reading(methods_report._parser()),
    "scripts/mgwfbp_report.py": reading(mgwfbp_report._parser()),
    "scripts/plot_collectives.py": reading(plot_collectives._parser()),
    "scripts/schedules_report.py": reading(schedules_report._parser()),
}
"""What checks the words of each tool, by what a command calls it."""


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the planner finds depends on this machine's memory; here both compositions of a side are made up."""

    def sides(_adviser: Any, names: Sequence[str], factors: Sequence[float], _bits_per_gbit: float) -> list[Side]:
        best = {"scheduler": "optimal", "collective": "ring", "seconds": 1.0}
        return [Side(name, 2.0, factor, "900mbit", best, best) for name in names for factor in factors]

    monkeypatch.setattr(_break_even, "sides", sides)
    monkeypatch.setattr(bench_break_even, "copy_bytes_per_second", lambda: 1e10)


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_target_calls_can_be_run(target: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    called = commands(target, tmp_path)
    assert called
    for words in called:
        check(words, place)


def test_every_target_that_is_named_anywhere_is_documented() -> None:
    assert len(TARGETS) >= 13
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("results/**/*.md")]
    named = {name for page in pages for name in re.findall(r"make (bench-[a-z-]+)", page.read_text(encoding="utf-8"))}
    assert named <= set(TARGETS)


@pytest.mark.parametrize("words", [["--batch", "7", "--processes", "3", "--turns", "50"], ["--model", "resnet50"]])
def test_overheads_epoch_is_as_long_as_what_is_asked_for(words: Words, tmp_path: Path) -> None:
    check_overhead([*words, "--json", "ratio.json"], Place(tmp_path))


@pytest.mark.parametrize("words", [["--turns", "1"], ["--steps", "0"], ["--warmup", "0"], ["--batch", "-1"]])
def test_overhead_without_a_spread_or_a_step_is_a_mistake(words: Words, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_overhead.parse(words)
    assert "at least" in capsys.readouterr().err
