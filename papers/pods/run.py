"""Train a GPT in two pods of two hosts, with every suitable method between them: steps per second, bytes, loss.

wirebench study pods run                       all parts, 2.7 hours; the machine should do nothing else
wirebench study pods run --parts 20x --rows dense int4 sparseloco
wirebench study pods run --parts 5x --link "10gbit;40mbit" --out FOLDER
wirebench study pods report                    afterwards: tables and verdicts

Parts 5x and 20x have links between pods on which the dense exchange takes about 5 and 20 times as long as a step
computes on two cores of an AMD EPYC; the table says how long it took. On another machine --link gives other rates, the
hosts' first. The part `loss` trains all steps on fast links, with three seeds.
"""

from papers.emulated import Turns
from papers.pods.parts import PARTS
from papers.runner import Part

_FEW = ["--turns", "1", "--rows", "dense", "int4", "sparseloco", "no exchange"]
_SHORT = ["--set", "model.depth=1", "model.width=64", "data.length=32", "model.context=32"]
RUNS = Turns(
    PARTS,
    [Part(50, ["--parts", "20x"]), Part(35, ["--parts", "5x"]), Part(75, ["--parts", "loss"])],
    [Part(3, ["--parts", "20x", *_FEW, *_SHORT]), Part(3, ["--parts", "loss", *_FEW[:-1], *_SHORT])],
)
flags, run, series = RUNS.flags, RUNS.run, RUNS.series
