"""Steps between pods as the planner predicts them: measured without an exchange between pods, with a simulated one."""

from typing import Any, NamedTuple

import torch

from papers.pods.parts import DENSE
from papers.rows import Row
from wirebench import collectives, compressors, models, schedulers
from wirebench.cluster.network import head_start_seconds
from wirebench.costmodel.request_cost import Pricer
from wirebench.planner.compositions import compressing, sizes_with
from wirebench.planner.resimulated import plugin_of
from wirebench.record.notes import NotedRun
from wirebench.simulation.compress_rates import Rates
from wirebench.simulation.sharded import GLOO, NCCL, ShardedTrace, sharded
from wirebench.simulation.simulator import Simulator
from wirebench.simulation.trace import Trace, TraceLayer
from wirebench.topology import pods
from wirebench.topology.presets import ALONE as OWN
from wirebench.topology.processor import Processor
from wirebench.topology.rates import parse_rate
from wirebench.topology.tree import Link, Topology

BYTES = 256
"""Classes of a model of bytes."""


class Predicted(NamedTuple):
    """Seconds of a step, and bytes that a rank sends in it by level: within its pod and between pods."""

    seconds: float
    within: float
    between: float


def predicted(row: Row, alone: Row, shards: int) -> Predicted | None:
    """What is predicted of a row's steps; None where it is not known how long the compressor works.

    alone  the row of pods that train without an exchange between them, whose steps have FSDP's messages in them
    """
    run, rates = row.runs[0], Rates.shipped(on_gpu=False)
    config = run.record["config"]
    name, options = plugin_of(config["compressor"], "dense_below", "warmup")
    if name != "none" and not rates.knows(name):
        return None
    whole = emulated(run)
    topology, model = pods.replicas(whole, shards), step_of(run, alone, shards)
    sizes = sizes_with(name, options, topology.size, config["compressor"]["dense_below"])
    method = rates, name, sizes, model, rates.bytes_per_second
    collective, own = plugin_of(config["collective"], "wire", "wire_within")
    pricer = Pricer(collectives.build(collective, **own), topology)
    worked, decoded = compressing(*method, topology.processor)
    simulator = Simulator(model, sizes, worked, pricer, decoded)
    schedule, of_schedule = _schedule(row.label, config)
    found = simulator.step(schedulers.build(schedule, **of_schedule))
    return Predicted(found.step.seconds, model.within_bytes, found.wire_bytes)


def _schedule(label: str, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The schedule that is simulated. FSDP's own waits for each message on a CPU; updates are made after the pass."""
    if label == DENSE:
        return "naive", {}
    if compressors.class_of(config["compressor"]["name"]).makes_update:
        return "single", {}
    return plugin_of(config["scheduler"], "profile")


def emulated(run: NotedRun) -> Topology:
    """The emulated cluster of a run, with the cores that all its hosts share."""
    rates = [parse_rate(each) / 8 for each in run.note["link"].split(";")]
    links = [Link(0.0, rate, head_start_seconds=head_start_seconds(rate)) for rate in rates]
    topology = Topology.parse(run.note["layout"], [OWN, *links])
    return Topology(topology.root, processor=Processor(cores=float(run.record["environment"]["cpu"]["cores"])))


def step_of(run: NotedRun, alone: Row, shards: int) -> ShardedTrace:
    """A rank's step without its exchange: of the model's layers by their elements, as long as `alone` took.

    What FSDP sends is in that time, so its messages are priced at nothing here.
    """
    model = run.record["config"]["model"]
    options = {key: value for key, value in model.items() if key != "name"}
    with torch.device("meta"):
        parameters = dict(models.build(model["name"], BYTES, (), **options).named_parameters())
    numel = sum(each.numel() for each in parameters.values())
    forward, backward = (alone.median("phases", name) or 0.0 for name in ("forward", "backward"))
    shares = {name: each.numel() / numel for name, each in parameters.items()}
    layers = tuple(
        TraceLayer(name, each.numel(), forward * shares[name], backward * shares[name], tuple(each.shape))
        for name, each in parameters.items()
    )
    batch = run.record["config"]["data"]["batch_size"]
    trace = Trace(model["name"], model["name"], run.machine, batch, False, "of a run", torch.__version__, layers)
    free = Pricer(collectives.build("ring"), Topology.flat(shards, Link(0.0, 1e15)))
    found = sharded(trace, shards, free, NCCL if run.has("backend") == "nccl" else GLOO)
    other = sum(alone.median("phases", name) or 0.0 for name in ("data", "update"))
    return ShardedTrace(**{**vars(found), "passes": found.passes._replace(other=other)})
