"""Train a GPT in two pods of two hosts, with every suitable method between them: steps per second, bytes, loss.

wirebench study pods run                       all parts, an hour; the machine should do nothing else
wirebench study pods run --parts 20x --turns 1 --rows dense "no exchange" --out FOLDER
wirebench study pods run --parts 20x --rows dense int4 sparseloco "no exchange"
wirebench study pods run --parts 5x --link "10gbit;40mbit" --out FOLDER
wirebench study pods report                    afterwards: tables and verdicts

Parts 5x and 20x have links between pods on which the dense exchange takes about 5 and 20 times as long as a step
computes on two cores of an AMD EPYC. Each part ends with a line that says how many times the computing it was, and
which --link would give the wanted time, the hosts' rate first. The second command above asks for it in two minutes.
Times have five turns. The part `loss` trains all steps on fast links, with three seeds.
"""

import argparse
import sys

from papers.emulated import Turns, folder_of
from papers.pods.parts import PARTS, TIMES
from papers.pods.report import load, ratio_words
from papers.runner import Launch, Part

_FEW = ["--turns", "1", "--rows", "dense", "int4", "sparseloco", "no exchange"]
_SHORT = ["--set", "model.depth=1", "model.width=64", "data.length=32", "model.context=32"]
RUNS = Turns(
    PARTS,
    [Part(21, ["--parts", "20x"]), Part(8, ["--parts", "5x"]), Part(40, ["--parts", "loss"])],
    [Part(3, ["--parts", "20x", *_FEW, *_SHORT]), Part(3, ["--parts", "loss", *_FEW[:-1], *_SHORT])],
)
flags, series = RUNS.flags, RUNS.series


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """Make the runs that are not there yet, and say of each part whether its links are what it is about."""
    failed = RUNS.run(options, launch)
    for name in options.parts:
        if name in TIMES and (rows := load(folder_of(PARTS[name], options))):
            print(f"{name}: {ratio_words(name, rows)}", file=sys.stderr)
    return failed
