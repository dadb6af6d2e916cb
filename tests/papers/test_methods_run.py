"""Runs that take turns on emulated hosts: what is started, and what is kept of it."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from papers.emulated import trainings
from papers.gs_sgd.variants import variants
from papers.runner import RESULTS, ROOT
from papers.series import options_of
from papers.speed.parts import BASELINES, DDP_CAPS, GS_SGD, LOCAL_STEPS, METHODS, SCHEDULES
from tests.flexreduce import run_record
from tests.papers import verb
from tests.papers.records import write
from wirebench import compressors
from wirebench.cluster.signals import Interrupted
from wirebench.compose.resolve import refuse_cut, resolve
from wirebench.config import loader
from wirebench.record import recorded

PARTS = {**METHODS, **GS_SGD, **SCHEDULES, **LOCAL_STEPS, **DDP_CAPS}


def record(name: str, seconds: float, wire: float = 1e6, nic: float = 1.02e6) -> dict:
    """A run of this compressor, four workers."""
    made = run_record("2+2")
    made["config"]["name"] = "methods-vgg16"
    made["config"]["model"] = {"name": "replay", "trace": "vgg16_cifar_gtx1080ti"}
    made["config"]["compressor"] = {"name": name}
    made["config"]["network"] = {"dilation": 10.0}
    made["step_seconds"] = {"median": seconds, "p10": 0.9 * seconds, "p90": 1.2 * seconds}
    made["phases"] = {name: 0.01 for name in made["phases"]} | {"compress": 0.1, "exchange_exposed": 0.3}
    made["bytes_per_step"] = {
        "payload": 5e5, "dense": 4e6, "wire": wire, "wire_mean": 0.9 * wire, "wire_max": wire, "nic": nic,
        "nic_headers": 1e4,
    }  # fmt: skip
    made["compressor_state"] = 2.0
    return made


def made(told: Mapping[str, str]) -> dict[str, Any]:
    """The record of a run of the command's compressor, with a folder beside it."""
    (Path(told["output.dir"]) / "tb").mkdir()
    return record(told["compressor.name"], 0.5)


def run(out: Path, *arguments: str, code: int = 0) -> tuple[int, verb.Trains]:
    fake = verb.Trains(made, code)
    return verb.run("speed")(["--parts", "vgg16", "--out", str(out), *arguments], fake), fake


def test_every_compressor_has_a_row_and_the_baselines_stand_first() -> None:
    rows = METHODS["vgg16"].rows
    assert list(rows)[: len(BASELINES)] == list(BASELINES)
    assert set(rows) == {*BASELINES, *compressors.available(), *variants(0.01)} - {"none"}
    shared = GS_SGD["vgg16"].rows.keys() & rows.keys()
    assert shared and all(GS_SGD["vgg16"].rows[label] == rows[label] for label in shared)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("part", "label"), [(part, label) for part in PARTS for label in PARTS[part].rows], ids=lambda name: name
)
def test_every_row_is_a_composition_that_makes_sense(part: str, label: str) -> None:
    options = options_of("speed", ["--turns", "1", "--rows", "dense"])
    options.rows = [label]
    [training] = trainings(PARTS[part], options)
    settings = resolve(loader.load(ROOT / training.config, list(training.overrides)))
    refuse_cut(settings, [range(0, 3)])


def test_what_is_committed_is_what_the_list_makes() -> None:
    """Every run of the list that is there was made with the same words, and no other one is there."""
    options, planned = options_of("speed", []), set()
    for part in PARTS.values():
        for each in trainings(part, options):
            each.is_there(RESULTS / part.folder)
            planned.add(RESULTS / part.folder / each.folder)
    for folder in {(RESULTS / part.folder) for part in PARTS.values()}:
        assert {run.folder for run in recorded.below(folder)} <= planned


def test_counted_steps_of_local_steps_are_whole_rounds_within_an_epoch() -> None:
    """A dense run takes three minutes at most: a step takes 4 x 69 ms, and 7/4 of 47 MB at the rate of its link."""
    for part in LOCAL_STEPS.values():
        for each in trainings(part, options_of("speed", ["--turns", "1"])):
            settings = resolve(loader.load(ROOT / each.config, list(each.overrides)))
            every = settings.scheduler.options.get("every", 1)
            assert settings.train.warmup_steps % every == settings.train.max_steps % every == 0, each.label
            assert settings.train.max_steps * settings.data.batch_size * 8 < settings.data.options["train_size"]
            if each.label == "dense":
                assert settings.train.max_steps * (0.28 + 7 / 4 * 46.8e6 * 8 / 25e6) < 180


def test_places_are_those_of_the_parts_or_of_the_call(tmp_path: Path) -> None:
    started: Counter[tuple[str, str]] = Counter()

    def launch(command: list[str]) -> int:
        started[command[command.index("--hosts") + 1], command[command.index("--link") + 1]] += 1
        return 1

    local = ["--parts", *LOCAL_STEPS, "vgg16-3gbit", "--out", str(tmp_path), "--turns", "1"]
    assert verb.run("speed")(local, launch) == 1
    assert started == {("8", "25mbit"): 2, ("8", "200mbit"): 2, ("4", "3gbit"): 5}
    words = ["--parts", "googlenet_8x10gbit", "--out", str(tmp_path), "--hosts", "2", "--link", "3gbit"]
    assert verb.run("mg_wfbp")([*words, "--rows", "wfbp", "--turns", "2"], launch) == 1
    assert started["2", "3gbit"] == 2


def test_methods_take_turns_and_only_what_is_needed_is_kept(tmp_path: Path) -> None:
    code, fake = run(
        tmp_path, "--rows", "dense", "gs_sgd", "--turns", "2", "--link", "200mbit", "--set", "train.seed=1"
    )
    assert code == 0
    assert [word.rpartition("/")[2] for command in fake.commands for word in command if "output.dir" in word] == [
        ".dense-0.part", ".gs_sgd-0.part", ".dense-1.part", ".gs_sgd-1.part",
    ]  # fmt: skip
    for command in fake.commands:
        assert command[command.index("--link") + 1] == "200mbit"
        assert "train.seed=1" in command
    assert sorted(path.name for path in (tmp_path / "vgg16").iterdir()) == [recorded.SHARED, recorded.RUNS]
    there = {run.folder.name: run for run in recorded.below(tmp_path)}
    assert list(there) == ["dense-0", "dense-1", "gs_sgd-0", "gs_sgd-1"] and not there["dense-0"].files
    assert f"output.dir={tmp_path}/vgg16/gs_sgd-1" in there["gs_sgd-1"].note["launch"]


def test_a_run_that_fails_costs_the_earlier_one_nothing(tmp_path: Path) -> None:
    old = put(tmp_path / "vgg16", "gtopk", 0, record("gtopk", 0.1))
    assert run(tmp_path, "--rows", "gtopk", "--turns", "1", "--again", code=1)[0] == 1
    assert recorded.read(old)["step_seconds"]["median"] == 0.1
    assert run(tmp_path, "--rows", "gtopk", "--turns", "1", "--again")[0] == 0
    [again] = recorded.below(tmp_path)
    assert again.record["step_seconds"]["median"] == 0.5


def test_a_stop_leaves_nothing_half_done(tmp_path: Path) -> None:
    old = put(tmp_path / "vgg16", "gtopk", 0, record("gtopk", 0.1))

    def stopped(command: list[str]) -> int:
        verb.Trains(made)(command)
        raise Interrupted(2)

    arguments = ["--parts", "vgg16", "--out", str(tmp_path), "--rows", "gtopk", "topk", "--again"]
    assert verb.run("speed")(arguments, stopped) == 130
    assert list((tmp_path / "vgg16").iterdir()) == [old]


def put(folder: Path, label: str, turn: int, made: dict, **more: object) -> Path:
    return write(folder / f"{label}-{turn}", made, **{"hosts": 4, "link": "1gbit", **more})
