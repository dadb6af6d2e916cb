"""The methods of 2022 to 2026 beside the classics: every method's settings for a language model and a small ResNet."""

from papers.accuracy.classics import WARMUP
from wirebench.compose.resolve import PLAIN_SGD

DENSE, HALF, QUARTER, EIGHTH = "dense", "dense half", "dense quarter", "dense eighth"
SHORTER = (HALF, QUARTER, EIGHTH)
"""Dense training on fewer tokens, its rate cooled to 0 by then: what a method's time is compared with."""
LARGER = ("dense accumulation=2", "dense accumulation=4")
"""Dense training on all tokens, with gradients of several backward passes added up: it exchanges a half, a quarter
as often."""
OTHER_DENSE = (*SHORTER, *LARGER)
FORM = ("epochs", "steps", "batch size")
"""Settings in which other forms of dense training differ from all else."""
OWN = ("learning rate", *FORM)
"""Settings in which a task's own runs may differ."""
STEPS = {"gpt": 420, "resnet": 3120}
"""By task the steps of a whole run: a multiple of the local steps, so that its last step exchanges."""

_DENSITY = "compressor.density=0.01"
_WARMUP = f"compressor.warmup={[share for share in WARMUP if share > 0.01]}"
"""By epochs, as in the classics' tasks; the GPT has one epoch, and is compressed from the first step on."""
_OUTER = ("scheduler.name=outer", "scheduler.every=30")
PLAIN_OUTER = (*_OUTER, "scheduler.rate=1", "scheduler.momentum=0", "scheduler.nesterov=false")
STREAMING = (*_OUTER, "scheduler.fragments=3", "scheduler.delay=5", "scheduler.keep=0.5")
SPARSE = ("compressor.name=chunk_topk", *PLAIN_OUTER)

_MUON = ("optimizer.name=muon", "optimizer.nesterov=true", "optimizer.momentum=0.95")
"""Its author's momentum, which is Dion's mu; the AdamW beside it has it for beta1."""
_MUONS_RATE, _MULOCOS_RATE = (
    (f"optimizer.lr={rate}", f"optimizer.weight_decay={0.1 * 0.002 / rate:.4g}") for rate in (0.006, 0.018)
)
"""Three and nine times AdamW's: with AdamW's both learn far less. A step shrinks weights as much as AdamW's."""

_ANYWHERE: dict[str, tuple[str, ...]] = {
    DENSE: ("compressor.name=none",),
    "bf16": ("compressor.name=bf16",),
    "topk": ("compressor.name=topk", _DENSITY),
    "powersgd": ("compressor.name=powersgd",),
    "quantised_sum": ("compressor.name=quantised_sum",),
    "diloco": ("compressor.name=none", *_OUTER),
    "diloco momentum=0.5": ("compressor.name=none", *_OUTER, "scheduler.momentum=0.5"),
    "local_sgd": ("compressor.name=none", *PLAIN_OUTER),
    "sparseloco": SPARSE,
    "streaming_diloco": ("compressor.name=none", *STREAMING),
}
"""Local steps with the same settings beside any optimizer."""

_PARTS_OF_SPARSELOCO: dict[str, tuple[str, ...]] = {
    "sparseloco k=512": (*SPARSE, "compressor.k=512"),
    "sparseloco k=4096": (*SPARSE, "compressor.k=4096"),
    "sparseloco topk": ("compressor.name=topk", "compressor.density=0.015625", *PLAIN_OUTER),
    "sparseloco every=10": (*SPARSE, "scheduler.every=10"),
    "sparseloco every=2": (*SPARSE, "scheduler.every=2"),
    "sparseloco every=2 beta=1": (*SPARSE, "scheduler.every=2", "compressor.beta=1"),
    "local_sgd every=2": ("compressor.name=none", *PLAIN_OUTER, "scheduler.every=2"),
    "topk of steps": ("compressor.name=topk", _DENSITY, *PLAIN_OUTER, "scheduler.every=1"),
}
"""What a loss of SparseLoCo's comes from. A run of 14 rounds brings 64 of 4,096 entries 14 times, and no parameter
often: the row of 512 has a share that such a run can live on. The row of 4,096 leaves nothing out, so its only loss
is of values of two bits. `topk` has as many entries in full, without a decay. `every=10` makes three times as many
rounds, `every=2` fifteen times as many. There a worker sends a 144th of the bytes of dense training, and an entry
waits for 64 rounds: a decay of 0.95 forgets most of it by then, and `beta=1` nothing. `local_sgd every=2` makes as
many rounds and sends all. `topk of steps` sends as many entries as `topk`, of AdamW's steps and not of its
gradients. Beside an optimizer that divides by a gradient's size it matters which entries stay in the residual."""

OTHERS_OF_DION = {
    "dion rank_fraction=0.5": ("compressor.rank_fraction=0.5",),
    "dion rank_fraction=1": ("compressor.rank_fraction=1",),
    "dion orthonormal": ("compressor.orthonormal=true",),
}
"""Its default is a quarter of the rank. At full rank it sends more than dense training, and comes near Muon's update,
of which dense training has a row. `orthonormal` has Orth-Dion's factor, of a quarter too.
"""


def _updates(
    rates: dict[str, float], decay: float, clip: float, more: dict[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Methods that return updates, with plain SGD at rates of their own.

    On the GPT both Adams have a third of AdamW's rate, Lion's signs and DeMo's about half of it (Lion's authors advise
    a third to a tenth, with which it learns less here), and Dion its authors' 0.01; on the ResNet the Adams have 0.015,
    Lion's signs 0.009, DeMo's 0.027 (with 0.001 it learns far less), and Dion 0.06. rates.py tries others. Dense
    training has the rates of the task's config, and the GPT's largest norm of a gradient: each worker's own here, of
    the average there.

    decay  by which a step shrinks the weights at the highest rate, the same as of dense training: rate x weight decay
    """
    names = {"onebit_adam": "zero_one_adam", **dict.fromkeys(OTHERS_OF_DION, "dion")}
    return {
        label: (
            f"compressor.name={names.get(label, label)}", *PLAIN_SGD, f"optimizer.clip={clip:g}",
            f"optimizer.lr={rate:g}", f"optimizer.weight_decay={decay / rate:.4g}", *more.get(label, ()),
        )
        for label, rate in rates.items()
    }  # fmt: skip


def other_dense(steps: int, batch: int, tokens: int) -> dict[str, tuple[str, ...]]:
    """Other forms of a language model's dense training of `steps` steps.

    batch  a worker's sequences of a step; tokens: of a step of all workers
    Shorter ones have a half, a quarter and an eighth of the tokens, and a sequence more, in which the cuts shift. The
    rate rises over as many steps as in the whole run, a twentieth. That is a choice; one seed with 5 % of their own
    steps ended higher.
    """
    shorter = {label: steps // 2**power for power, label in enumerate(SHORTER, 1)}
    return {
        **{
            label: ("compressor.name=none", f"data.train_bytes={some * tokens + 128}",
                    f"optimizer.warmup_epochs={0.05 * steps / some:g}")
            for label, some in shorter.items()
        },
        **{
            label: ("compressor.name=none", f"data.batch_size={batch * times}", f"train.accumulation={times}",
                    f"optimizer.warmup_epochs={0.05 * times:g}")
            for label, times in zip(LARGER, (2, 4), strict=True)
        },
    }  # fmt: skip


def adams(steps: int) -> dict[str, tuple[str, ...]]:
    """0/1 Adam and 1-bit Adam in a run of `steps` steps: the authors' constants are for hundreds of times as many.

    The variance is frozen after a fifth of the run, and 1-bit Adam's after its 15 %, all of them dense (its authors'
    23,000 of 152,000 steps of BERT). Then 0/1 Adam's intervals double after every fifth of the run. Both betas are
    the authors': a variance that is frozen early has to be of a long memory.
    """
    fifth, dense = steps // 5, round(0.15 * steps)
    zero_one = {"kappa": max(fifth // 20, 1), "freeze_step": fifth, "double_every": fifth, "longest": 16}
    onebit = {"kappa": dense, "freeze_step": dense, "longest": 1}
    return {
        label: tuple(f"compressor.{key}={value}" for key, value in options.items())
        for label, options in (("zero_one_adam", zero_one), ("onebit_adam", onebit))
    }


SETTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "gpt": {
        **_ANYWHERE,
        **other_dense(STEPS["gpt"], 8, 4 * 8 * 128),
        **_PARTS_OF_SPARSELOCO,
        "muon": ("compressor.name=none", *_MUON, *_MUONS_RATE),
        "muloco momentum=0.5": ("compressor.name=none", *_MUON, *_MULOCOS_RATE, *_OUTER, "scheduler.momentum=0.5"),
        # The two that AdamW's training loses least with for their bytes: 0.4 % with 7.75 times fewer, 13 % with 144.
        "muon quantised_sum": ("compressor.name=quantised_sum", *_MUON, *_MUONS_RATE),
        "muon sparseloco every=2 beta=1": (*SPARSE, "scheduler.every=2", "compressor.beta=1", *_MUON, *_MUONS_RATE),
        # Beside AdamW a method leaves the momentum to it. DGC without its own is top-k, which has a row.
        "gs_sgd momentum=0": ("compressor.name=gs_sgd", _DENSITY, "compressor.momentum=0"),
        **_updates(
            {"demo": 1e-3, "dion": 0.01, **dict.fromkeys(OTHERS_OF_DION, 0.01), "lion_sign": 9e-4}
            | {"zero_one_adam": 6.7e-4, "onebit_adam": 6.7e-4},
            2e-3 * 0.1,
            1.0,
            {**OTHERS_OF_DION, **adams(STEPS["gpt"])},
        ),
    },
    "resnet": {
        **_ANYWHERE,
        HALF: ("compressor.name=none", "train.epochs=4", "train.max_steps=1560"),
        QUARTER: ("compressor.name=none", "train.epochs=2", "train.max_steps=780"),
        EIGHTH: ("compressor.name=none", "train.epochs=1", "train.max_steps=390"),
        "topk": ("compressor.name=topk", _DENSITY, _WARMUP),
        "dgc": ("compressor.name=dgc", _DENSITY, _WARMUP),
        "gs_sgd": ("compressor.name=gs_sgd", _DENSITY, _WARMUP),
        **_updates(
            {"demo": 0.027, "dion": 0.06, "lion_sign": 9e-3, "zero_one_adam": 0.015, "onebit_adam": 0.015},
            0.3 * 5e-4,
            0.0,
            adams(STEPS["resnet"]),
        ),
    },
}
"""By task and label what is laid over the task's config."""

QUICK = (DENSE, "sparseloco")
"""Methods of a study of two minutes."""
