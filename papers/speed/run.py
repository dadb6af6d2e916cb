"""Train on emulated hosts, taking turns: every compressor, the local steps of today, and plain DDP's buckets.

  wirebench study speed run                                   all parts, 4 hours; the machine should do nothing else
  wirebench study speed run --parts vgg16 --rows dense gs_sgd --turns 3
  wirebench study speed run --parts vgg16-100mbit vgg16-1gbit
  wirebench study speed run --parts ddp_caps-resnet110 ddp_caps-resnet18
  wirebench study speed run --parts resnet20 --config FILE --link 10gbit --set network.dilation=10 --out FOLDER
  wirebench study speed report                                afterwards: tables and figures

A run that fails is reported and the others go on; exit code 1 then. Its earlier run, if there is one, stays. A method
that diverges has not failed, and its row reports it.
"""

from papers.emulated import Turns
from papers.runner import Part
from papers.speed.parts import BASELINES, DDP_CAPS, LINKS, LOCAL_STEPS, METHODS, QUICK, QUICK_MORE

_FEW = ["--turns", "1", "--rows", *BASELINES, *QUICK]
RUNS = Turns(
    {**METHODS, **LOCAL_STEPS, **DDP_CAPS},
    [
        Part(120, ["--parts", "vgg16", "resnet20"]),
        Part(20, ["--parts", "vgg16_slow"]),
        Part(40, ["--parts", *(f"vgg16-{link}" for link in LINKS)]),
        Part(40, ["--parts", *LOCAL_STEPS]),
        Part(10, ["--parts", *DDP_CAPS]),
    ],
    [Part(3, ["--parts", "resnet20", *_FEW, *QUICK_MORE]), Part(3, ["--parts", "vgg16", *_FEW])],
)
flags, run, series = RUNS.flags, RUNS.run, RUNS.series
