"""Chakra traces: the bytes, by a reader of protobuf's wire format; plans that replay; steps whose times add up."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.simulation.test_simulator import GOOGLENET, SMALL, simulator
from wirebench import collectives, schedulers
from wirebench.cli.planning import simulate, topology
from wirebench.formats.chakra import CommType, NodeType, RankTrace
from wirebench.formats.chakra_plan import plan_traces
from wirebench.formats.chakra_step import step_trace
from wirebench.topology.processor import IDLE, Processor
from wirebench.topology.tree import Topology

SEND, RECEIVE = NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE
VARINT, BYTES = 0, 2
INT32, INT64, BOOL, STRING = 7, 9, 27, 29
"""Numbers of an attribute's values in et_def.proto, version 0.0.4."""


class Read(NamedTuple):
    """A node, as et_def.proto numbers its fields."""

    id: int
    name: str
    kind: int
    after: list[int]
    begin: int
    micros: int
    attributes: dict[str, tuple[int, Any]]

    def value(self, name: str) -> Any:
        return self.attributes[name][1]


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == BYTES:
            yield key >> 3, data[at : at + value]
            at += value
        else:
            assert key & 7 == VARINT
            yield key >> 3, value


def messages(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        length, at = varint(data, at)
        found.append(data[at : at + length])
        at += length
    return found


def node(data: bytes) -> Read:
    known: dict[int, Any] = {1: 0, 6: 0, 7: 0}
    after, attributes = [], {}
    for number, value in fields(data):
        if number == 5:
            rest, at = value, 0
            while at < len(rest):
                one, at = varint(rest, at)
                after.append(one)
        elif number == 10:
            (_, name), *values = fields(value)
            [(kind, content)] = values
            attributes[name.decode()] = kind, content.decode() if kind == STRING else content
        else:
            known[number] = value
    kind, name = known[2].decode().split(" ", 1)
    assert kind == NodeType(known[3]).name, "Chakra's timeline_visualizer tells types by names"
    return Read(known[1], name, known[3], after, known[6], known[7], attributes)


def read(trace: RankTrace) -> list[Read]:
    head, *nodes = messages(trace.encoded({"about": "x"}))
    assert dict(fields(head))[1] == b"0.0.4"
    return [node(each) for each in nodes]


def test_a_node_is_written_as_the_schema_numbers_its_fields():
    trace = RankTrace()
    first = trace.add(NodeType.COMP_NODE, "a", [], 0.5, 0.75)
    trace.add(NodeType.COMM_COLL_NODE, "b", [first, first], comm_type=0, comm_size=2**40, comm_src=3, request="Sum")
    one, two = read(trace)
    assert one == Read(0, "a", 4, [], 500_000, 250_000, {"is_cpu_op": (BOOL, 0)})
    assert (two.id, two.kind, two.after) == (1, 7, [0])
    assert two.attributes == {
        "is_cpu_op": (BOOL, 0), "comm_type": (INT64, 0), "comm_size": (INT64, 2**40), "comm_src": (INT32, 3),
        "request": (STRING, "Sum"),
    }  # fmt: skip


def replay(traces: list[list[Read]]) -> None:
    """Run every rank's nodes when those before them are done, a receive after its send; all of them have to run."""
    done: set[tuple[int, int]] = set()
    sent: set[int] = set()
    waiting = deque((rank, each) for rank, nodes in enumerate(traces) for each in nodes)
    idle = 0
    while waiting and idle <= len(waiting):
        rank, each = waiting.popleft()
        ready = all((rank, before) in done for before in each.after)
        if ready and (each.kind != RECEIVE or each.value("comm_tag") in sent):
            if each.kind == SEND:
                sent.add(each.value("comm_tag"))
            done.add((rank, each.id))
            idle = 0
        else:
            waiting.append((rank, each))
            idle += 1
    assert not waiting


@pytest.mark.parametrize("name", [name for name in collectives.available() if name != "native"])
@pytest.mark.parametrize("layout", ["2+3", "4"])
def test_a_plans_messages_meet_and_none_waits_for_ever(name, layout):
    tree, items = Topology.parse(layout), 1000
    plan = collectives.build(name).plan(tree, items)
    assert plan is not None
    traces = [read(trace) for trace in plan_traces(plan, tree, 4)]
    replay(traces)
    ends: dict[int, dict[int, Read]] = {SEND: {}, RECEIVE: {}}
    for rank, nodes in enumerate(traces):
        for each in nodes:
            side = each.value("comm_src") if each.kind == SEND else each.value("comm_dst")
            assert side == rank
            assert ends[each.kind].setdefault(each.value("comm_tag"), each) is each, "a tag is of one message"
    assert ends[SEND].keys() == ends[RECEIVE].keys()
    for tag, out in ends[SEND].items():
        assert out.attributes == ends[RECEIVE][tag].attributes
    sent = [sum(each.value("comm_size") for each in nodes if each.kind == SEND) for nodes in traces]
    assert sent == [4 * plan.sent_items(rank) for rank in tree.ranks]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ["wfbp", "sync_easgd", "mg_wfbp", "dear", "fused"])
@pytest.mark.parametrize("compressor", ["none", "topk", "gs_sgd"])
@pytest.mark.parametrize("processor", [IDLE, Processor(cores=2.0, gradient_seconds_per_byte=1e-8)])
def test_a_steps_nodes_take_the_simulated_times_in_the_simulated_order(name, compressor, processor):
    made = simulator(SMALL, 4, compressor, compressing=lambda numel: 1e-8 * numel, processor=processor)
    found = made.step(schedulers.build(name))
    nodes = read(step_trace(found, made.costs(), 4, "ring"))
    for each in nodes:
        assert all(before < each.id for before in each.after), "a feeder reads what a node waits for before it"
        # Begin and end are rounded to microseconds.
        assert all(nodes[before].begin + nodes[before].micros <= each.begin + 1 for before in each.after)
    exchange = [each for each in nodes if each.name.startswith("bucket")]
    assert sum(each.micros for each in exchange) == pytest.approx(
        1e6 * sum(span.end - span.start for span in found.step.spans), abs=len(exchange)
    )
    passes = [each for each in nodes if each.name.startswith(("forward", "backward"))]
    assert sum(each.micros for each in passes) == pytest.approx(
        1e6 * (sum(found.passes.forward) + found.passes.backward), abs=len(passes)
    )
    ends: list[int] = []
    for each in nodes:
        ends.append(max((ends[before] for before in each.after), default=0) + each.micros)
    # ASTRA-sim keeps what nodes wait for, and finds when they begin.
    assert max(ends) == pytest.approx(1e6 * found.step.seconds, abs=len(nodes))
    asked = [each for each in exchange if each.kind == NodeType.COMM_COLL_NODE and "all-gather" not in each.name]
    assert not any(each.value("is_cpu_op") for each in asked), "ASTRA-sim refuses messages of the CPU"
    assert sum(each.value("comm_size") for each in asked) == pytest.approx(found.num_bytes, abs=len(asked))


@pytest.mark.parametrize(
    ("collective", "kind"), [("tree", CommType.REDUCE), ("ring", CommType.ALL_REDUCE), ("native", CommType.ALL_REDUCE)]
)
def test_a_reduce_has_a_root_where_its_collective_has_one(collective, kind):
    made = simulator(SMALL, 4, "gs_sgd")
    nodes = read(step_trace(made.step(schedulers.build("wfbp")), made.costs(), 4, collective))
    asked = [each for each in nodes if each.kind == NodeType.COMM_COLL_NODE]
    assert {each.value("comm_type") for each in asked if each.value("request") == "Reduce"} == {kind}


def test_one_message_after_the_backward_pass_waits_for_all_of_it():
    made = simulator(GOOGLENET)
    nodes = read(step_trace(made.step(schedulers.build("sync_easgd")), made.costs(), 4, "ring"))
    [message] = [each for each in nodes if each.kind == NodeType.COMM_COLL_NODE]
    last = max(each.id for each in nodes if each.name.startswith("backward"))
    assert message.after == [last]
    assert message.value("collective") == "ring"


def test_the_verbs_write_a_file_for_every_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plans = ["2+3", "--collective", "ring", "tree", "--items", "100", "--chakra", str(tmp_path / "plans")]
    assert topology.main(plans) == 0
    names = sorted(path.name for path in (tmp_path / "plans").iterdir())
    assert names == sorted(f"{name}.{rank}.et" for name in ("ring", "tree") for rank in range(5))
    step = ["--trace", "vgg16_v100", "--workers", "2", "--gbit", "10", "--schedulers", "wfbp", "--collective", "ring"]
    assert simulate.main([*step, "--chakra", str(tmp_path / "step")]) == 0
    first, second = (tmp_path / f"step/step.{rank}.et" for rank in range(2))
    assert first.read_bytes() == second.read_bytes()
    assert "written" in capsys.readouterr().out
