"""Constants and defaults that come from papers and from their authors' code: nothing else holds most of them.

Changing one is changing the method: then its source changes here too.
"""

import inspect
from types import ModuleType
from typing import Any

import pytest

from wirebench import compressors
from wirebench.compressors import iwp, oktopk, terngrad
from wirebench.compressors.sketch import base, heavy_hitters
from wirebench.compressors.sparse import importance, thresholds

CONSTANTS: list[tuple[ModuleType, dict[str, Any]]] = [
    # Ok-Topk's code, VGG/allreducer.py: thresholds move by 1.2 % and 0.8 % outside of these shares of k; above 4 k / 3
    # five jumps of 3 %. A rank sends at most 6 k words, 2 (4/3 + 5/3) k.
    (
        oktopk,
        {"FEW": 2 / 3, "LOCAL_MANY": 5 / 4, "MANY": 4 / 3, "LOCAL_FACTOR": 1.012, "GLOBAL_FACTOR": 1.008}
        | {"JUMP_FACTOR": 1.03, "JUMPS": 5, "QUOTA": 5 / 3, "SHOWN": 2},
    ),
    # DGC's code, dgc/compression.py: a sample of 1 %, or of two expected hits; its stride is a multiple of 32 and 1
    # more; below 0.8 k the threshold falls by 0.8, ten times at most.
    (
        thresholds,
        {"SAMPLE_SHARE": 0.01, "STRIDE_STEP": 32, "SAMPLE_HITS": 2, "FEW": 0.8, "LOWER": 0.8, "TRIES": 10}
        # GaussianK's code: below 2 k / 3 it is halved, three times at most.
        | {"GAUSSIAN_FEW": 2 / 3, "GAUSSIAN_LOWER": 0.5, "GAUSSIAN_TRIES": 3}
        # SIDCo, section 2.4: stages of a quarter.
        | {"SIDCO_STAGE": 0.25},
    ),
    (base, {"DENSITY": 0.01}),
    (heavy_hitters, {"LOWER": 0.7, "TRIES": 8}),
    # IWP: 64 times fewer values with the fixed threshold. |w| counts at least 1e-8, where a layer is 0.
    (iwp, {"EXPECTED_SHARE": 1 / 64}),
    (importance, {"FLOOR": 1e-8}),
    (terngrad, {"GATHER_BITS": 2}),
]

CORRECTED = {"momentum": 0.9, "nesterov": False, "clip": 0.0, "masking": True}
"""DGC's momentum correction: factor masking is the paper's, clipping is off in its code's configs."""
SKETCHED = (
    CORRECTED
    | {"density": 0.01, "k": 0, "rows": 5, "columns": 0, "ratio": 0.0}
    | {"fill": "random", "p1": 0.0, "p2": 1, "broadcast": "sketch", "reseed": False}
    | {"columns_per_entry": 4.0, "agree": "majority"}
)
DEFAULTS: dict[str, dict[str, Any]] = {
    "acp_sgd": {"rank": 4, "min_compression_rate": 1.0, "error_feedback": True, "start_step": 0},
    "clt_k": {"density": 0.001, "beta": 1.0, "selection": "exact"},
    "dgc": CORRECTED | {"density": 0.001, "selection": "sampled"},  # compress_ratio
    # The cells that an update touches are cleared: the subtraction is commented out in the code.
    "fetch_sgd": {"density": 0.01, "k": 0, "rows": 5, "columns": 0, "momentum": 0.9, "clear": "cells"},
    # Not the paper's rule: what learns, by the study accuracy.
    "gs_sgd": SKETCHED
    | {"rows": 3, "fill": "estimate", "p1": 0.5, "p2": 4, "agree": "all", "broadcast": "indices", "reseed": True},
    # Its code, compress.py, and section 4 of its paper.
    "chunk_topk": {"chunk": 4096, "k": 64, "beta": 0.95},
    # LoCo's error feedback with ZeRO++'s int4; DeepSpeed's quantiser has groups of 256 and more.
    "quantised_sum": {"form": "int4", "chunk": 256, "group": 0, "feedback": True, "rounding": "nearest", "rotate": 0},
    # Its code, demo.py.
    "demo": {"chunk": 64, "k": 32, "beta": 0.999},
    # Its code: mu, and the betas of the vectors' Lion; the rank is its README's for 3 billion parameters.
    "dion": {"rank_fraction": 0.25, "mu": 0.95, "beta1": 0.9, "beta2": 0.95, "orthonormal": False},
    "lion_sign": {"beta1": 0.9, "beta2": 0.99},
    # DeepSpeed's zoadam.py: var_update_scaler, var_freeze_step, local_step_scaler, local_step_clipper.
    "zero_one_adam": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    | {"kappa": 16, "freeze_step": 100_000, "double_every": 32_678, "longest": 16},
    # Its code: 5 x 500,000 for k = 50,000; p2 = 4; no threshold, no random fill; biases beside the sketch.
    "sketched_sgd": SKETCHED | {"columns_per_entry": 10.0, "fill": "estimate", "p2": 4, "broadcast": "indices"},
    "gtopk": {"density": 0.001, "conserve": False, "selection": "exact"},
    # Thresholds of the paper's section IV; one voter or several is left open, as are rho and epsilon.
    "iwp": CORRECTED
    | {"masking": False}
    | {"mode": "fixed", "threshold": 0.05, "schedule": (0.005, 0.01, 0.05, 0.1), "schedule_epochs": (5, 30, 60)}
    | {"beta": 0.25, "limit": 4.0, "voters": 2, "draw": "layer", "rho": 0.05, "epsilon": 0.01, "masks": "bits"},
    # Its code: exact thresholds every 32 steps, new regions every 64; BERT's density.
    "oktopk": {"density": 0.01, "reevaluate_every": 32, "rebalance_every": 64, "dense_steps": 0},
    # The rate is the authors' and PyTorch's, the rank the paper's for ResNet-18; PyTorch's is 1.
    "powersgd": {"rank": 2, "warm_start": True, "error_feedback": True, "min_compression_rate": 2.0, "start_step": 0},
    "qsgd": {"bits": 4, "levels": 0, "chunk": 512, "norm": "max"},  # d' = 512 with 4 bits
    "randomk": {"density": 0.001, "error_feedback": True},
    "signsgd": {"form": "mean", "feedback": True, "scale": "mean"},
    "terngrad": {"clip_factor": 2.5, "form": "sum"},  # bingrad_common.py; equation 12
    "topk": {"density": 0.001, "selection": "exact"},
}
DENSE_BELOW = {"dgc": 1, "iwp": 1, "sketched_sgd": 1}  # parameters of more than one dimension are compressed
DENSE_BELOW |= {"signsgd": 1, "terngrad": 1}  # their papers say nothing of it; by the study accuracy
COLLECTIVES = {name: "tree" for name in ("gs_sgd", "gtopk", "iblt")} | {"iwp": "ring"}
COLLECTIVES |= {name: "star" for name in ("sketched_sgd", "fetch_sgd")}


KEEPS: list[tuple[str, dict[str, Any], str, str]] = [
    ("randomk", {}, "exactly", "density"),
    ("randomk", {"error_feedback": False}, "nothing", ""),
    ("clt_k", {}, "exactly", "density"),
    ("clt_k", {"beta": 0.5}, "rounded", "density"),
    ("int8", {"feedback": False}, "nothing", ""),
    ("signsgd", {"feedback": False}, "nothing", ""),
    ("fetch_sgd", {}, "sketched", "density"),
]
"""By method and options what it says of what it does not send, and the option that bounds it."""


@pytest.mark.parametrize(("name", "options", "keeps", "bounded_by"), KEEPS)
def test_what_is_kept_is_said(name: str, options: dict[str, Any], keeps: str, bounded_by: str) -> None:
    method = compressors.build(name, **options)
    assert (method.keeps, method.bounded_by) == (keeps, bounded_by)


@pytest.mark.parametrize(("module", "wanted"), CONSTANTS, ids=lambda each: getattr(each, "__name__", ""))
def test_constants(module: ModuleType, wanted: dict[str, Any]) -> None:
    assert {name: getattr(module, name) for name in wanted} == wanted


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name: str) -> None:
    found = {key: each.default for key, each in inspect.signature(compressors.PLUGINS.load(name)).parameters.items()}
    assert {key: found[key] for key in DEFAULTS[name]} == DEFAULTS[name]


@pytest.mark.parametrize("name", compressors.available())
def test_what_papers_send_dense_and_on_what_they_run(name: str) -> None:
    paper = compressors.PLUGINS.load(name)
    assert compressors.dense_below_of(name) == DENSE_BELOW.get(name, 0)
    assert getattr(paper, "collective", "") == COLLECTIVES.get(name, "")
