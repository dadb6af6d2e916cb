"""What goes with what: compressors against requests, collectives and schedulers, and what drivers accept.

Every compressor exchanges two steps of a small model between five virtual workers, on every collective. Nothing is
declared but what cannot be seen: the last four columns. Each driver of schedules is asked about every compressor and
every collective.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wirebench import collectives, compressors, schedulers
from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.comm.local import LocalHub
from wirebench.comm.metered import Metered
from wirebench.exchange.advance import advance, run
from wirebench.exchange.driver import Driver, Parts
from wirebench.gradient.conformance import DENSE
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Keeps
from wirebench.gradient.flat import Bucket, Layer
from wirebench.topology.tree import Topology

HEAD = (
    "compressor", "requests of a step", "summable", "collectives that change its result", "schedulers that cut",
    "what is not sent", "momentum", "state", "dense by default", "its paper's collective",
)  # fmt: skip
DRIVEN = (
    "schedulers", "what travels", "compressors", "collectives", "its default", "`optimizer.clip`",
    "`output.health_every`", "`synchronise`",
)  # fmt: skip
KEPT: dict[Keeps, str] = {
    "exactly": "kept",
    "rounded": "kept, rounded",
    "partly": "kept in part",
    "sketched": "kept in its sketch",
    "nothing": "-",
}
SIZE, STEPS = 5, 2
SHAPES = ((40, 64), (64,), (32, 8, 3, 3), (10, 128))
OPTIONS = {"density": 0.01, "threshold": 3.0, "kappa": 1, "freeze_step": 1}
ROUNDING = 1e-4
"""Sums in another order differ by less, as a share of the largest entry."""


class Behaviour(NamedTuple):
    """What a compressor did: its results by step, its last step's requests, its state as a multiple of the gradient.

    with_values  those requests that carry values of the gradient, not only scales, masks and indices
    """

    results: list[Tensor]
    kinds: list[str]
    with_values: set[str]
    state: float


def matrix() -> str:
    """The compressors' table as Markdown."""
    return _table(HEAD, [row(name) for name in compressors.available()])


def drivers() -> str:
    """The schedulers' table as Markdown: a line for each driver, as it answers."""
    named: dict[type[Driver], list[str]] = {}
    for name in schedulers.available():
        named.setdefault(schedulers.PLUGINS.load(name).driver, []).append(name)
    return _table(DRIVEN, [_driven(driver, names) for driver, names in named.items()])


def _driven(driver: type[Driver], names: Sequence[str]) -> list[str]:
    def accepts(compressor: str = DENSE, collective: str = driver.collective, **more: Any) -> bool:
        parts = Parts(compressors.build(compressor), collectives.build(collective), **more)
        return driver.accepts(parts) is None

    def fitting(kind: str, available: Sequence[str]) -> str:
        fit = [name for name in available if accepts(**{kind: name})]
        others = [name for name in available if name not in fit]
        few = ", ".join(f"`{name}`" for name in min(fit, others, key=len))
        return "all" if not others else few if len(fit) < len(others) else f"all but {few}"

    own_loop = "yes" if accepts(own_loop=True, optimizer=False) else "with `optimizer=`, without `scaler=`"
    return [
        ", ".join(f"`{name}`" for name in names),
        driver.exchanges,
        fitting("compressor", compressors.available()),
        fitting("collective", collectives.available()),
        f"`{driver.collective}`",
        "yes" if accepts(clip=1.0) else "no",
        "yes" if accepts(health_every=1) else "no",
        own_loop if accepts(own_loop=True) else "no",
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def row(name: str) -> list[str]:
    """One compressor's line."""
    known = compressors.PLUGINS.options(name)
    options: dict[str, Any] = {key: value for key, value in OPTIONS.items() if key in known}
    method = compressors.build(name, **options)
    seen = {collective: watch(name, options, collective) for collective in collectives.available()}
    reference = seen["native"]
    change = [c for c, other in seen.items() if not _alike(reference.results, other.results)]
    kinds = reference.kinds
    return [
        f"`{name}`",
        ", ".join(kinds),
        "yes" if reference.with_values == {"Sum"} else "no",
        ", ".join(change) or "none",
        f"refused: {method.whole_model}" if method.whole_model else "all",
        KEPT[method.keeps],
        "its own" if method.owns_momentum else "the optimizer's",
        f"{reference.state:.2g} d" if reference.state >= 0.005 else "-",
        "one-dimensional tensors" if method.dense_below else "-",
        method.collective or "-",
    ]


def watch(name: str, options: dict[str, Any], collective: str) -> Behaviour:
    """Exchange STEPS steps of whole numbers on this collective."""
    topology, chosen = Topology.flat(SIZE), collectives.build(collective)
    servers = [RequestExecutor(Metered(c), chosen, topology) for c in LocalHub(SIZE).communicators]
    ranks = [compressors.build(name, **options) for _ in range(SIZE)]
    layers = _layers()
    parameters = torch.randn(layers[-1].stop, generator=torch.Generator().manual_seed(0))
    results = []
    for step in range(STEPS):
        exchanges = []
        for rank, compressor in enumerate(ranks):
            rng = torch.Generator().manual_seed(SIZE * step + rank)
            grad = torch.randint(-9, 10, (layers[-1].stop,), generator=rng).float()
            bucket = Bucket(0, grad, parameters, layers)
            exchanges.append(compressor.exchange(bucket, ExchangeContext(rank, SIZE, step)))
        logs = [server.take_log() for server in servers]
        results.append(run([advance(e, s.serve) for e, s in zip(exchanges, servers, strict=True)])[0].clone())
    logs = [server.take_log() for server in servers]
    state = sum(tensor.nbytes for tensor in ranks[0].state_dict().values()) / (4 * layers[-1].stop)
    with_values = {served.kind for served in logs[0] if served.value_bytes}
    return Behaviour(results, [served.kind for served in logs[0]], with_values, state)


def _layers() -> tuple[Layer, ...]:
    layers, start = [], 0
    for number, shape in enumerate(SHAPES):
        numel = torch.Size(shape).numel()
        layers.append(Layer(f"layer{number}", start, start + numel, len(shape), shape[0]))
        start += numel
    return tuple(layers)


def _alike(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    scale = max(result.abs().max().item() for result in first)
    return all((a - b).abs().max().item() <= ROUNDING * scale for a, b in zip(first, second, strict=True))
