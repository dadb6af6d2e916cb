"""A collective's plan as Chakra traces: every message is a node of its sender and a node of its receiver.

A rank begins a round when it has sent and received everything of its round before, as in a run
(collectives/execution/executor.py). ASTRA-sim takes such files as a collective algorithm of the user's own.
"""

from wirebench.collectives.plan import Message, Plan, messages, sizes
from wirebench.formats.chakra import NodeType, RankTrace
from wirebench.topology.tree import Topology


def plan_traces(plan: Plan, topology: Topology, item_bytes: int) -> list[RankTrace]:
    """A trace for each rank. Where the topology says how long adding takes, what a rank adds is a COMP_NODE."""
    traces = [RankTrace() for _ in topology.ranks]
    before: list[list[int]] = [[] for _ in traces]
    tag, size = 0, sizes(plan, item_bytes)
    for phase, rounds in (("reduce", plan.reduce), ("copy", plan.copy)):
        for number, transfers in enumerate(rounds):
            now: list[list[int]] = [[] for _ in traces]
            for message in messages(transfers):
                common = {
                    "comm_size": int(size(message, phase == "reduce")),
                    "comm_src": message.src, "comm_dst": message.dst, "comm_tag": tag,
                }  # fmt: skip
                tag += 1
                for kind, rank, verb in (
                    (NodeType.COMM_SEND_NODE, message.src, f"to {message.dst}"),
                    (NodeType.COMM_RECV_NODE, message.dst, f"from {message.src}"),
                ):
                    name = f"{plan.name} {phase} {number} {verb}"
                    now[rank].append(traces[rank].add(kind, name, before[rank], **common))
                seconds = _added(message, phase) * item_bytes * topology.reduce_seconds_per_byte
                if seconds:
                    arrived = now[message.dst][-1:]
                    add = traces[message.dst].add(NodeType.COMP_NODE, f"add {phase} {number}", arrived, end=seconds)
                    now[message.dst].append(add)
            before = [these or those for these, those in zip(now, before, strict=True)]
    return traces


def _added(message: Message, phase: str) -> int:
    return sum(part.stop - part.start for part in message.parts if phase == "reduce" and not part.fresh)
