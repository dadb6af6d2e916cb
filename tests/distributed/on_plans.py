"""What `test_plans.py` runs on every rank of a job: each collective on each layout answers every kind of request.

Exit code 0 and `good` from rank 0, or the traceback of what is wrong.
"""

import functools
import hashlib
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from wirebench import collectives, compressors
from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.collectives.execution.segments import cut, segments
from wirebench.collectives.wire import items_of
from wirebench.comm.engine import Engine, start
from wirebench.comm.launch import end_process
from wirebench.comm.peers import gather_bytes
from wirebench.config.loader import EngineConfig
from wirebench.costmodel.plan_cost import sent_bytes
from wirebench.exchange.advance import run
from wirebench.gradient.requests import Answer, Gather, Merge, Request, Sum
from wirebench.topology.tree import Topology

SEGMENTED = 3_300_001
"""Elements of a float32 sum that is cut into several segments, also where these start in turn."""


def topologies(size: int) -> Iterator[Topology]:
    """One machine; machines of 1 and the rest; two machines whose ranks alternate."""
    yield Topology.flat(size)
    yield Topology.parse(f"1+{size - 1}")
    yield Topology.of_hosts([f"h{rank % 2}" for rank in range(size)])


def serve(server: RequestExecutor, request: Request) -> Answer:
    answer: Answer = run([server.serve(request)])[0]
    return answer


def same_everywhere(engine: Engine, tensor: Tensor) -> bool:
    digest = hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).digest()
    return len(set(gather_bytes(engine.communicators[0], digest))) == 1


@functools.cache
def whole_numbers(rank: int, numel: int) -> Tensor:
    return (((torch.arange(numel) % 251) + 7 * rank) % 13 - 6).float()


@functools.cache
def total(size: int, numel: int) -> Tensor:
    return torch.stack([whole_numbers(rank, numel) for rank in range(size)]).sum(0)


@functools.cache
def rounding(rank: int, numel: int) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(rank))


def sums(engine: Engine, server: RequestExecutor, numel: int) -> None:
    rank, size = engine.ranks[0], engine.size
    whole = serve(server, Sum(whole_numbers(rank, numel).clone()))
    assert isinstance(whole, Tensor)
    assert torch.equal(whole, total(size, numel))
    rounded = serve(server, Sum(rounding(rank, numel).clone()))
    assert isinstance(rounded, Tensor)
    assert same_everywhere(engine, rounded)


def coded_sums(engine: Engine, server: RequestExecutor, topology: Topology) -> None:
    """A sum in a wire format: the same bits everywhere, and the bytes that the plan says."""
    rank = engine.ranks[0]
    for form, within in (("int8", ""), ("mxfp6", "bf16")):
        inside = compressors.wire(within) if within and "Doubling" not in type(server.collective).__name__ else None
        made = collectives.formatted(server.collective, compressors.wire(form), inside)
        coded = RequestExecutor(engine.communicators[0], made, topology)
        numel = 40_001
        total = serve(coded, Sum(rounding(rank, numel).clone()))
        assert isinstance(total, Tensor)
        assert same_everywhere(engine, total)
        wanted = torch.stack([rounding(each, numel) for each in range(engine.size)]).sum(0)
        assert 0 < float((total - wanted).norm() / wanted.norm()) < 0.1
        items = items_of(made, numel)
        plan = made.plan(topology, items.number)
        assert plan is not None
        assert coded.take_log()[0].wire_bytes == sent_bytes(plan, items.num_bytes).get(rank, 0)


def gathers_and_merges(engine: Engine, server: RequestExecutor) -> None:
    rank, size = engine.ranks[0], engine.size
    gathered = serve(server, Gather(torch.full((3 * rank,), rank, dtype=torch.int32)))
    assert isinstance(gathered, list)
    assert [part.tolist() for part in gathered] == [[each] * 3 * each for each in range(size)]
    # The order in which messages are combined shows in this one, and must be the same on every rank.
    merged = serve(server, Merge(torch.tensor([float(rank + 1)]), lambda mine, theirs: mine / 2 + theirs))
    assert isinstance(merged, Tensor)
    assert same_everywhere(engine, merged)
    union = serve(server, Merge(torch.arange(rank + 1) + 100 * rank, lambda a, b: torch.cat([a, b]).sort().values))
    assert isinstance(union, Tensor)
    assert union.tolist() == sorted(i + 100 * each for each in range(size) for i in range(each + 1))


def main() -> int:
    engine = start(EngineConfig(rounds="alltoall" if sys.argv[1:] == ["alltoall"] else "p2p"), fusion_mb=0.0)
    assert len(cut(SEGMENTED, 4, engine.size)) > 3
    assert len(cut(SEGMENTED, 4, engine.size, in_turn=True)) > 6
    in_turn = 0
    for topology in topologies(engine.size):
        for name in collectives.available():
            server = RequestExecutor(engine.communicators[0], collectives.build(name), topology)
            try:
                for numel in (0, 1, 2, 1000):
                    sums(engine, server, numel)
                if topology.layout != str(engine.size):
                    sums(engine, server, SEGMENTED)
                    plan_of = functools.partial(server.collective.plan, topology)
                    in_turn += segments(plan_of, topology, SEGMENTED, 4).apart > 0
                gathers_and_merges(engine, server)
                if name != "native":
                    coded_sums(engine, server, topology)
            except Exception as error:
                raise AssertionError(f"{name} on {topology.layout}") from error
    assert in_turn or engine.size == 2
    if engine.is_first:
        print("good")
    engine.close()
    return 0


if __name__ == "__main__":
    end_process(main())
