"""`--shard` of `wirebench simulate` and `advise`: a model that FSDP shards within pods, exchanged between them."""

import argparse
from collections.abc import Mapping
from typing import Any, NamedTuple

from wirebench import collectives
from wirebench.costmodel.request_cost import Pricer
from wirebench.errors import UserError
from wirebench.exchange.overlapped import Overlapped
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.flat import FLOAT_BYTES
from wirebench.planner.compositions import DENSE, class_of
from wirebench.simulation.sharded import GLOO, NCCL, Backend, ShardedTrace, sharded
from wirebench.simulation.trace import Trace
from wirebench.topology import pods
from wirebench.topology.tree import Topology


class Pods(NamedTuple):
    """Pods of `shards` workers, and what carries FSDP's messages between them."""

    shards: int
    backend: Backend

    @property
    def plain(self) -> str:
        """The schedule of FSDP's own hybrid sharding: a message for each unit, in the backward pass or waited for."""
        return "wfbp" if self.backend.overlaps else "naive"

    def replicas(self, topology: Topology) -> Topology:
        """What a shard's replicas have of the cluster; UserError where such pods do not fit it."""
        return pods.replicas(topology, self.shards)

    def trace(self, trace: Trace, topology: Topology) -> ShardedTrace:
        """The step of a rank of a pod, with what FSDP sends there."""
        within = Pricer(collectives.build("ring"), pods.pod(topology, self.shards))
        return sharded(trace, self.shards, within, self.backend)

    def entry(self, trace: Trace, topology: Topology) -> dict[str, Any]:
        """Bytes that a worker sends in a step, by level, as JSON values: within its pod, and dense between pods."""
        mine, count = self.trace(trace, topology), topology.size // self.shards
        between = 2 * (count - 1) / count * FLOAT_BYTES * mine.numel
        return {
            "workers": self.shards,
            "backend": self.backend.name.lower(),
            "within_bytes": mine.within_bytes,
            "dense_between_bytes": between,
        }

    def words(self, trace: Trace, topology: Topology) -> str:
        """The numbers of `entry` in a line of text."""
        told = self.entry(trace, topology)
        return (
            f"{topology.size // self.shards} pods of {self.shards}: in a step a worker sends "
            f"{told['within_bytes'] / 1e6:.4g} MB of FSDP's within its pod, and "
            f"{told['dense_between_bytes'] / 1e6:.4g} MB of dense gradients between pods; {self.volume}"
        )

    @property
    def volume(self) -> str:
        """A clause: the elements that FSDP sends within a pod, of N parameters on S workers."""
        why = ", since its reduce-scatter is an all-reduce" if self.backend is GLOO else ""
        return f"FSDP on {self.backend.name} sends {self.backend.volume} elements{why}"


def add_shard(parser: argparse.ArgumentParser) -> None:
    """The option."""
    parser.add_argument("--shard", type=int, metavar="N", help="workers of a pod, which FSDP shards the model over")


def pods_of(options: argparse.Namespace, on_gpu: bool) -> Pods | None:
    """What --shard asks for; None without it. GPUs talk by NCCL, CPUs by Gloo."""
    return None if options.shard is None else Pods(options.shard, NCCL if on_gpu else GLOO)


def misfit(scheduler: Scheduler, compressor: str) -> str:
    """Why a schedule does not go with a model that FSDP shards: a clause whose subject it is; "" where it does."""
    driver = scheduler.driver
    if driver.own_weights:
        return ""
    if not issubclass(driver, Overlapped) or driver.halves:
        return "does not only merge gradients, and with --shard FSDP does all else"
    if class_of(compressor).makes_update and driver.starts != "backward":
        return f"overlaps the backward pass, and with --shard {compressor!r} makes its updates after it"
    return ""


def refuse_schedules(tried: Mapping[str, Scheduler], compressor: str = DENSE) -> None:
    """UserError for a schedule that does not go with --shard."""
    for name, scheduler in tried.items():
        if reason := misfit(scheduler, compressor):
            raise UserError(f"--schedulers: {name!r} {reason}")
