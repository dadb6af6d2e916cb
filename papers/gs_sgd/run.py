"""Train with the gs-SGD paper's three methods on 4 emulated hosts, taking turns, on each of its models.

wirebench study gs_sgd run                   VGG-16 and ResNet-20, 4 hosts, 1 Gbit/s, into results/gs-sgd
wirebench study gs_sgd run --parts vgg16 --turns 1
wirebench study gs_sgd report                afterwards: the paper's Table II beside what was measured

The methods as printed run at 0.4 % and 0.1 % too: where the paper's warm-up ends, and what DGC and gTop-k have. The
study `speed` has the list of all runs on emulated hosts, and trains with every compressor.
"""

from collections.abc import Callable, Mapping

from papers.emulated import Turns
from papers.gs_sgd.variants import DENSE_OF, READINGS, on_cluster, sweep
from papers.launched import FEW, Trained
from papers.runner import Part
from papers.speed.parts import GS_SGD
from papers.trainings import Composition

MODELS = ("vgg16", "resnet20")
FOUR = ("1+1+1+1",)


def _of_both(rows: Callable[[str], Mapping[str, Composition]]) -> dict[str, Composition]:
    """Rows of both networks, the network first in their labels."""
    return {f"{model} {label}": row for model in MODELS for label, row in rows(model).items()}


def _dense(model: str) -> dict[str, Composition]:
    return {"dense": (DENSE_OF[model], ())}


ON_CLUSTER = {
    "speed": Trained(
        "Table II, Fig. 4 and 5, at densities of 1 %, 0.4 % and 0.1 %",
        _of_both(lambda model: {**_dense(model), **on_cluster(model)}
                 | {label: row for share in READINGS for label, row in on_cluster(model, share).items()}),
        (*FEW, "compressor.warmup=[]"), layouts=FOUR, needs="data",
    ),
    "training": Trained(
        "Fig. 2 and 3",
        _of_both(lambda model: {**_dense(model), **on_cluster(model)}),
        repeats=3, seeds=True, layouts=FOUR, needs="data",
    ),
    "sweep": Trained("Fig. 6 and 7", _of_both(sweep), repeats=3, seeds=True, layouts=FOUR, needs="data"),
}  # fmt: skip


RUNS = Turns(GS_SGD, [Part(38, [])], [Part(6, ["--turns", "1", "--set", "train.max_steps=14", "train.warmup_steps=6"])])
flags, run, series = RUNS.flags, RUNS.run, RUNS.series
