"""Train under every schedule on an emulated cluster, taking turns: time per step beside its prediction.

wirebench study mg_wfbp run                                     ten settings, into results/schedules
wirebench study mg_wfbp run --parts googlenet_8x10gbit --rows dear --set scheduler.bucket_cap_mb=2 --out FOLDER
wirebench study mg_wfbp report FOLDER                           afterwards: table.md and the figure of one setting

The machine should have nothing else to do. A run that fails is reported and the others go on; exit code 1 then.
"""

from papers.emulated import Turns
from papers.launched import FEW, Timed, Trained
from papers.runner import Part
from papers.speed.parts import SCHEDULES

GOOGLENET = "configs/tables/schedules_googlenet.toml"
PAPERS = ("wfbp", "sync_easgd", "mg_wfbp")
PAPERS_CONFIG = "configs/papers/imagenet_{}_{}.toml"
_NODES = ("1", "1+1", "1+1+1+1", "1+1+1+1+1+1+1+1")
_SCHEDULES = {
    **{name: (f"scheduler.name={name}",) for name in PAPERS},
    # The authors' TensorFlow had parameter servers: every gradient goes to one place and comes back.
    "wfbp on star": ("scheduler.name=wfbp", "collective.name=star"),
}
ON_CLUSTER = {
    "all_reduce": Timed("Fig. 5 (b)", ("ring",), ("60kf", "120kf", "1200kf", "3000kf"), _NODES[1:]),
    "replay": Trained(
        "Fig. 6 and 8, by the authors' own layer times",
        {label: (GOOGLENET, words) for label, words in _SCHEDULES.items()}, ("network.dilation=1",), layouts=_NODES
    ),
    "computing": Trained(
        "Fig. 6, 7 and 8, by networks that compute",
        {
            f"{model} {label}": (PAPERS_CONFIG.format(model, label.partition(" ")[0]), words[1:])
            for model in ("googlenet", "resnet50")
            for label, words in _SCHEDULES.items()
        },
        (*FEW, "data.name=synthetic", "data.image_size=224", "data.num_classes=1000"), layouts=_NODES,
    ),
    "convergence": Trained(
        "section V-B: accuracy after 13 epochs",
        {f"resnet50 {name}": (PAPERS_CONFIG.format("resnet50", name), ()) for name in ("mg_wfbp", "sync_easgd")},
        ("train.epochs=13",), repeats=3, seeds=True, layouts=_NODES[-1:], needs="images",
    ),
}  # fmt: skip
RUNS = Turns(
    SCHEDULES, [Part(340, [])], [Part(3, ["--parts", "googlenet_8x10gbit", "--turns", "1", "--rows", *PAPERS])]
)
flags, run, series = RUNS.flags, RUNS.run, RUNS.series
