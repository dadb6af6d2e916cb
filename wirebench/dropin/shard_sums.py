"""FSDP2's reduce-scatter in few bits: all-to-all of quantised shares, which each rank adds up in fp32.

  wirebench.compress_shards(model, compressors.build("quantised_sum", form="int8", feedback=False))

It is the first half of ZeRO++'s quantised sum (arXiv 2306.10209): each rank keeps its share, and nothing is gathered.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.collectives.native import NativeCollective
from wirebench.comm.attach import attach
from wirebench.comm.engine import Engine
from wirebench.dropin.at_exit import close_at_exit
from wirebench.dropin.fsdp_units import Unit, units_of
from wirebench.dropin.replicas import agree, parts_of
from wirebench.dropin.usage import refuse_names, refuse_no_module
from wirebench.errors import UserError
from wirebench.exchange.advance import advance, run
from wirebench.gradient import conformance
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Compressor, Method
from wirebench.topology.tree import Topology

NAME = "compress_shards"


def compress_shards(model: nn.Module, compressor: Compressor, *, timeout_seconds: float = 60.0) -> "ShardSums":
    """Sum a model's gradients over the ranks that share it in few bits; every rank calls it, before training.

    model       its modules are sharded by fully_shard, over one dimension or with another one for replicas
    compressor  compressors.build("quantised_sum", form="int8", feedback=False): one that keeps nothing between steps
    timeout_seconds  after this long without an answer another rank counts as lost
    Raises UserError for a compressor that cannot be a reduce-scatter, and says why.
    """
    refuse_no_module(model)
    refuse_names(compressor=compressor)
    method = conformance.method_of(compressor)
    if method.unshared:
        name, route = conformance.name_of(method), "synchronise" if method.makes_update else "compress_replicas"
        raise UserError(
            f"{NAME}: {name!r} cannot sum shards: {method.unshared}; wirebench.{route} takes it, between replicas"
        )
    if getattr(method, "rounding", "nearest") != "nearest":
        raise UserError(f"{NAME}: rounding=stochastic would draw alike in all pods; build it with rounding=nearest")
    if isinstance(method.inner, Method):
        raise UserError(f"{NAME}: build the compressor without dense_below, warmup or clip: FSDP does not show layers")
    units = units_of(model)
    _refuse_units(units)
    engine = attach(units[0].device, timeout_seconds, units[0].group)
    agree(engine, NAME, parts_of(None, 0, 0, compressor=compressor))
    return ShardSums(engine, units, method)


class ShardSums:
    """The reduce-scatter of one model's modules; `compress_shards` makes one.

    FSDP calls it as `reduce_scatter_tensor` of torch.distributed, on its own stream.
    """

    def __init__(self, engine: Engine, units: Sequence[Unit], compressor: Method) -> None:
        self.engine, self.compressor = engine, compressor
        compressor.prepare(engine.device)
        topology = Topology.of_hosts([peer.host for peer in engine.peers])
        self._server = RequestExecutor(engine.communicators[0], NativeCollective(), topology)
        self._calls = self._sent = self._dense = 0
        self._closed = False
        self._before = [(unit, unit.summed_by) for unit in units]
        for unit in units:
            unit.sum_by(self)
        close_at_exit(self)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for FSDP's input and output."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Write this rank's share of the sum, or of the average, over the group's ranks to `output_tensor`."""
        divisor = _divisor(op, self.engine.size)
        world = ExchangeContext(self.engine.ranks[0], self.engine.size, self._calls)
        (total,) = run([advance(self.compressor.scatter(input_tensor, world), self._server.serve)])
        output_tensor.copy_(total.div_(divisor))
        self._calls += 1
        self._sent += sum(request.wire_bytes for request in self._server.take_log())
        self._dense += (self.engine.size - 1) * output_tensor.nbytes

    def report(self) -> dict[str, Any]:
        """This rank's reduce-scatters so far: their number, the bytes sent, and the bytes of a reduce-scatter of full
        gradients. FSDP's own sends as many by NCCL, and twice as many by Gloo.
        """
        about = {"world_size": self.engine.size, "compressor": conformance.name_of(self.compressor)}
        return {**about, "calls": self._calls, "wire_bytes": self._sent, "dense_bytes": self._dense}

    def close(self) -> None:
        """Give FSDP its own reduce-scatter back, and leave the suite's own process group."""
        if self._closed:
            return
        self._closed = True
        for unit, before in self._before:
            unit.sum_by(before)
        self.engine.detach()


def _refuse_units(units: Sequence[Unit]) -> None:
    """UserError where another `compress_shards` has a module, or where modules are shared by different ranks."""
    ranks = dist.get_process_group_ranks(units[0].group)
    for unit in units:
        if isinstance(unit.summed_by, ShardSums):
            raise UserError(f"{NAME}: {unit.label} has one already; close() that one first")
        if dist.get_process_group_ranks(unit.group) != ranks:
            raise UserError(
                f"{NAME}: {unit.label} and {units[0].label} are sharded over different ranks; sums go over one group, "
                "so shard all modules over one mesh"
            )


def _divisor(op: Any, size: int) -> int:
    """What a sum is divided by for this operation; UserError for another one."""
    if op == dist.ReduceOp.SUM:
        return 1
    if op == dist.ReduceOp.AVG:
        return size
    raise UserError(
        f"{NAME}: FSDP asks for a sum that is multiplied before, as its divide factor has it; call "
        "set_force_sum_reduction_for_comms(True) on each of its modules, so that it divides afterwards"
    )
