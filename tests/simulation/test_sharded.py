"""A sharded model: what FSDP sends, what it waits for, and what is left for the exchange between pods."""

from dataclasses import replace

import pytest

from tests.costmodel.test_request_sizes import make_of
from wirebench import collectives, schedulers
from wirebench.costmodel.request_cost import Pricer
from wirebench.costmodel.request_sizes import Sizes
from wirebench.simulation.sharded import GLOO, NCCL, Backend, ShardedTrace, sharded
from wirebench.simulation.simulator import Simulator, free, layers_of, passes_of
from wirebench.simulation.trace import Trace, TraceLayer
from wirebench.topology import pods
from wirebench.topology.tree import Link, Topology

MODEL = Trace(
    "small", "made up", "none", 8, False, "by hand", "none",
    (
        TraceLayer("embedding.weight", 1000, 0.001, 0.002, (100, 10)),
        TraceLayer("blocks.0.weight", 5000, 0.010, 0.020, (50, 100)),
        TraceLayer("blocks.0.bias", 51, 0.0, 0.0),
        TraceLayer("blocks.1.weight", 6000, 0.010, 0.020, (60, 100)),
        TraceLayer("head.weight", 300, 0.003, 0.004, (3, 100)),
    ),
)  # fmt: skip
WHOLE = Topology.parse("2+2", [Link(0.0, 1e6), Link(0.0, 1e5)])
"""A gather of b bytes of each of two ranks takes b / 1e6 seconds, and so does the sum of 2 b."""


def shards(backend: Backend, trace: Trace = MODEL, topology: Topology = WHOLE) -> ShardedTrace:
    return sharded(trace, 2, Pricer(collectives.build("ring"), pods.pod(topology, 2)), backend)


def test_layers_are_shards_and_units_are_members_of_lists() -> None:
    found = shards(GLOO)
    layers = [(layer.name, layer.stop - layer.start, layer.rows) for layer in layers_of(found)]
    assert layers == [
        ("blocks.1.weight", 3000, 30), ("blocks.0.bias", 26, 26), ("blocks.0.weight", 2500, 25),
        ("head.weight", 200, 2), ("embedding.weight", 500, 50),
    ]  # fmt: skip
    assert found.units == (range(1), range(1, 3), range(3, 5))
    # Half of each unit's 4 bytes a parameter for each gather; the rest of the model is gathered once. A reduce-scatter
    # sends as much, and as Gloo's all-reduce twice as much.
    assert found.within_bytes == 2 * (4 * (5051 + 6000) + 3 * 1300)
    assert shards(NCCL).within_bytes == 2 * (3 * (5051 + 6000) + 2 * 1300)
    assert found.numel == 6226


def test_on_a_cpu_every_message_is_waited_for() -> None:
    """Gathers of 2 bytes a parameter, twice, and Gloo's sum of 4: the rest of the model is gathered once."""
    passes = passes_of(shards(GLOO))
    parts = {"rest": 2 * 1300e-6, "0": 2 * 5051e-6, "1": 2 * 6000e-6}
    assert sum(passes.forward) == pytest.approx(0.024 + sum(parts.values()), rel=1e-3)
    one = 0.004 + parts["1"] + 0.020 + 2 * parts["1"]
    zero = one + parts["0"] + 0.020 + 2 * parts["0"]
    rest = zero + 0.002 + 2 * parts["rest"]
    assert passes.ready == pytest.approx((one, zero, zero, rest, rest), rel=1e-3)
    assert passes.backward == pytest.approx(rest, rel=1e-3)


def test_on_a_gpu_messages_run_beside_the_computation() -> None:
    passes = passes_of(shards(NCCL))
    # The rest is waited for, and of the first block what the embedding does not hide; block 1 is hidden.
    assert sum(passes.forward) == pytest.approx(0.0026 + 0.010102 + 0.020 + 0.003 + max(0.012 - 0.010, 0), rel=1e-3)
    # Block 1 is gathered beside the head, block 0 beside block 1, whose sum then runs beside block 0.
    end_one = 0.012 + 0.020
    assert passes.ready[0] == pytest.approx(end_one + 0.012, rel=1e-3)
    assert passes.ready[1] == pytest.approx(max(end_one + 0.020, end_one + 0.012) + 0.010102, rel=1e-3)
    assert passes.ready[-1] == pytest.approx(passes.ready[1] + 0.0026, rel=1e-3)


def test_free_messages_leave_the_computation_as_it_is() -> None:
    fast = Topology.parse("2+2", [Link(0.0, 1e15), Link(0.0, 1e5)])
    for backend in (GLOO, NCCL):
        passes = passes_of(shards(backend, topology=fast))
        assert passes.seconds == pytest.approx(MODEL.forward_seconds + MODEL.backward_seconds, rel=1e-6)


def test_messages_between_pods_are_of_units() -> None:
    """Of a schedule that merges nothing one for each unit, of `single` one; each starts when its unit is reduced."""
    model, topology = shards(GLOO), pods.replicas(WHOLE, 2)
    pricer, sizes = Pricer(collectives.build("ring"), topology), Sizes(make_of("none"), 2, 0)
    simulator = Simulator(model, sizes, free, pricer)
    by_unit = simulator.step(schedulers.build("wfbp"))
    assert by_unit.groups == model.units and sum(by_unit.elements) == model.numel
    assert by_unit.wire_bytes == 4 * model.numel
    single = simulator.step(schedulers.build("single"))
    assert single.groups == (range(5),)
    # Both shards' 4 bytes a parameter cross the link of 100 kB/s, after the last unit is reduced.
    assert single.step.exposed == pytest.approx(4 * model.numel / 5e4, rel=5e-3)
    assert simulator.step(schedulers.build("optimal")).step.seconds <= by_unit.step.seconds < single.step.seconds
    assert by_unit.step.spans[0].ready == pytest.approx(sum(model.passes.forward) + model.passes.ready[0])


def test_one_rank_is_no_pod_to_wait_for() -> None:
    alone = sharded(MODEL, 1, Pricer(collectives.build("ring"), pods.pod(WHOLE, 1)), GLOO)
    assert alone.within_bytes == 0 and alone.numel == MODEL.numel
    assert alone.passes.seconds == pytest.approx(MODEL.forward_seconds + MODEL.backward_seconds)
    assert replace(alone).passes == alone.passes
