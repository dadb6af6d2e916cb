"""A user's mistake on the command line of a study is one line, and nothing is run."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from papers import cli as study
from tests.papers import verb
from wirebench.utils.cli import run_tool

MISTAKES = """
accuracy run --task digits --steps -1 -> --steps: is positive, or 0 for whole runs, got -1
accuracy run --task digits --seeds 1 1 -> --seeds: one is given twice: 1 1
accuracy run --task digits --density 2 -> --density: lies in (0, 1], got 2
accuracy run --task digits --methods tokp -> --methods: no 'tokp'; there is: dense
accuracy run --task gpt --methods adafactor -> --methods: no 'adafactor'; there is: dense, bf16
accuracy run --task digits --set compressor.name=none -> --set: compressor.name: is what the runs of
accuracy run --task digits --set train.seed=3 -> --set: train.seed: is what the runs of
accuracy run --task digits --set data.pad=1 data.pad=2 -> --set: data.pad: is given twice
accuracy run --task resnet20 resnet -> --data: which folder has the cifar-10-batches-bin of resnet20, resnet?
accuracy run --data nowhere -> --data: nowhere: has no cifar-10-batches-bin
speed run --parts vgg16 --rows gtopp -> --rows: no 'gtopp'; did you mean 'gtopk'?
speed run --parts vgg16 --turns 0 -> --turns: must be positive, got 0
speed run --parts vgg16 --hosts 0 -> --hosts: must be positive, got 0
speed run --parts vgg16 --link fast -> fast
speed run --parts vgg16 --config configs/tables/none.toml -> none.toml: cannot be read
speed run --parts vgg16 --set train.epoch=3 -> train.epoch: no such key
speed run --parts vgg16 --set data.pad=1 --set data.pad=2 -> --set: data.pad: is given twice
speed run --parts vgg16 --set compressor.name=none -> --set: compressor.name: is what the runs of
speed run --parts vgg16 --rows dense DDP --set collective.name=ring -> DDP: scheduler.name: 'native' is
gs_sgd run --launch 'no-such-program -n 4' --data /data -> --launch: no-such-program: is no command
gs_sgd run --launch '' --data /data -> --launch: has no words
gs_sgd run --launch env --data /data --out results/gs-sgd HERE -> lies in the study's own results
gs_sgd run --launch env -> --parts: nothing is left of speed, training, sweep
gs_sgd run --launch env --data /data --machines a -> --machines: --launch has none of {ranks}
gs_sgd run --launch env --rows 'resnet20 topk' -> --rows: no 'resnet20 topk';
gs_sgd run --launch 'env {hosts}' --data /data -> --machines: --launch has something to fill in
gs_sgd run --launch env --data /data --link 1furlong -> 1furlong
gs_sgd run --launch "'open" --data /data -> --launch: "'open": No closing quotation
gs_sgd run --launch 'env {rank}' --data /data -> --launch: {rank}: is none of {ranks}, {hosts}
gs_sgd run --launch 'env {hosts}' --machines a a -> --machines: a: is named twice
gs_sgd run --launch 'env {hosts}' --machines a:2 -> --machines: 'a:2': names alone
gs_sgd run --launch env --set compressor.density=1 -> --set: compressor.density: is what the runs
gs_sgd run --launch env --set output.dir=x -> --set: output.dir: is what the runs
gs_sgd run --launch env --seconds 3 -> --seconds: speed, training, sweep times no all-reduces
flexreduce run --launch env --seconds -3 -> --seconds: must be positive, got -3
flexreduce run --launch env --parts cells --rows ring -> --rows: no 'ring'; these parts
flexreduce run --launch env --parts cells -> --launch: cells has 9 layouts, 2+2, 2+3,
flexreduce run --launch env --parts cells --layouts 2++3 -> 2++3
flexreduce report --link 100mbit -> --link: every file of cells says already
flexreduce report --link fast -> cannot read the rate 'fast'
flexreduce report --colour -> --colour: no such option
flexreduce report --dir nowhere -> nowhere: has neither cells/
flexreduce run --link fast -> cannot read the rate 'fast'
flexreduce run --sizes 4 big -> --sizes: cannot read 'big'
flexreduce run --layouts 5+5 -> --layouts: no '5+5'; there is: 2+2
flexreduce run --turns 2 -> --turns: needs --end-to-end
flexreduce run --end-to-end-layouts 2+3 -> --end-to-end-layouts: needs --end-to-end
flexreduce run --set data.batch_size=32 -> --set: needs --end-to-end
flexreduce run --end-to-end --set collective.name=tree -> --set: collective.name: is what the runs of
flexreduce run --end-to-end --set data.batch=32 -> data.batch
flexreduce run --end-to-end --sizes 4 -> --sizes: is about all-reduces alone
flexreduce run --end-to-end --full -> --full: is about all-reduces alone
flexreduce run --end-to-end --turns 0 -> must be positive
iwp run -> --images and --data: which folder
iwp run --data /nowhere -> /nowhere: has no cifar-10-batches-bin
iwp run --images /nowhere -> --images: /nowhere/train: cannot be read
iwp run DATA --turns 0 -> --turns: must be positive
iwp run DATA --steps -1 -> --steps: is positive
iwp run DATA --link slow -> --link: cannot read the rate 'slow'
iwp run DATA --methods dence -> --methods: no 'dence'; did you mean 'dense'?
iwp run DATA --parts alexnet --methods dense -> --methods: alexnet has none of these
iwp run DATA --hosts 0 -> --hosts: must be positive
iwp run DATA --parts cifar --turns 2 -> --turns: is of the part network, and only cifar would run
flexreduc check -> no study 'flexreduc'; did you mean 'flexreduce'? there is: accuracy
speed chek -> no 'chek' of a study; did you mean 'check'? there is: check, report, run
mine.nothing run -> no package 'mine.nothing' can be imported
speed report nowhere -> nowhere: has no runs METHOD-TURN; measure first
gs_sgd report --runs nowhere -> nowhere: has no MODEL/METHOD-TURN of gs_sgd and a rival
mg_wfbp report x --dir y -> --dir: the report of runs stands in their folder
gs_sgd run --quic -> --quic: no such option; did you mean '--quick'
run gs_sgd --quic -> --quic: no such option; did you mean '--quick'
gs_sgd run --quick --turns 2 -> --turns: not with --quick
gs_sgd run --quick iwp HERE -> unrecognized arguments: iwp
planner run --only rankin -> --only: no 'rankin';
planner run --turns 0 -> --turns: must be positive, got 0
planner run --list x HERE -> --list: needs --out FOLDER
planner run --list none.txt -> none.txt: cannot be read
planner run --only ranking/resnet20_2x100mbit --machine OUT -> outside.json: cannot be read
planner run --only break_even --topology no.toml -> no.toml: cannot be read
planner run --only break_even --topology configs/topologies/2+3_1gbit.toml -> needs one rank a host
planner run --only break_even --topology 1+1 -> has no link speeds
planner run --only break_even --topology 1+1 --measured-at 1 -> --measured-at: cannot read the rate '1'
failures run --parts worlds -> --data: the part worlds needs
accuracy report --out OUT -> has no runs SERIES/TASK/METHOD-SEED; train first
mg_wfbp report OUT -> OUT: has no
iwp report --runs OUT -> OUT: has no runs PART/VARIANT-TURN; measure first
pods report --runs OUT --dir OUT -> has no PART/METHOD-TURN
gs_sgd report --cluster OUT --print -> --cluster: OUT: has no finished run of
iwp report --cluster OUT --print -> --cluster: OUT: has no finished run of
mg_wfbp report --cluster OUT --print -> --cluster: OUT: has no finished run of
"""
"""The words of a command, and what is said of it. OUT is a folder without runs, which `run` gets by --out, but with
HERE; DATA stands for --data and --images, each with its folder.
"""


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    """Flags that name a CIFAR-10, and a folder of images in a class."""
    for folder in ("cifar/cifar-10-batches-bin", "images/train/a", "images/val/a"):
        (tmp_path / folder).mkdir(parents=True)
    return ["--data", str(tmp_path / "cifar"), "--images", str(tmp_path / "images")]


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines())
def test_a_mistake_is_one_line(line: str, tmp_path: Path, data: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command, _, said = line.replace("OUT", str(tmp_path)).partition(" -> ")
    words = [word for each in shlex.split(command) for word in (data if each == "DATA" else [each])]
    if "HERE" in words:
        words.remove("HERE")
    elif words[1] == "run":
        words += ["--out", str(tmp_path / "out")]

    def tool(arguments: Sequence[str]) -> int:
        return study.main(arguments, verb.nothing)

    assert run_tool("wirebench study", tool, words) == 2
    *before, error = capsys.readouterr().err.splitlines()
    assert error.startswith("wirebench study") and said in error
    assert all(each.startswith("left out") for each in before)
