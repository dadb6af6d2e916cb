"""A simulated training step as a Chakra trace: its computation by layers, and a collective for every request.

The trace says what the schedule waits for and the times that the simulation found. Another simulator keeps the first
and finds times of its own. Every rank does the same.
"""

from collections.abc import Sequence

from wirebench import collectives
from wirebench.collectives.plan import has_root
from wirebench.exchange.pipeline import TimedSpan
from wirebench.formats.chakra import CommType, NodeType, RankTrace
from wirebench.gradient.schedule import LayerCost
from wirebench.simulation.simulator import Simulated, Stage

COMM_TYPES = {
    "Sum": CommType.ALL_REDUCE,
    "Merge": CommType.ALL_REDUCE,
    "Reduce": CommType.REDUCE,
    "Gather": CommType.ALL_GATHER,
    "Route": CommType.ALL_TO_ALL,
    "reduce-scatter": CommType.REDUCE_SCATTER,
    "all-gather": CommType.ALL_GATHER,
}
"""What a stage of an exchange asks of all ranks. A Merge is an all-reduce of one message that cannot be cut.

A Reduce is one to a root where the collective has a root, as a tree has; on others all of the sum runs, and every rank
has it (RequestExecutor._reduce).
"""


def step_trace(simulated: Simulated, layers: Sequence[LayerCost], ranks: int, collective: str) -> RankTrace:
    """The trace of each of `ranks` ranks; `layers` in backward order, `collective` the name of what serves requests."""
    return _StepBuilder(simulated, [layer.name for layer in layers], ranks, collective).trace


class _StepBuilder:
    """Builds a trace in the order in which a feeder may read it: nodes after those that they wait for."""

    def __init__(self, simulated: Simulated, names: Sequence[str], ranks: int, collective: str) -> None:
        self.trace = RankTrace()
        self._simulated, self._passes, self._names = simulated, simulated.passes, names
        self._ranks, self._collective = ranks, collective
        self._comm_types = dict(COMM_TYPES)
        if not has_root(collectives.build(collective)):
            self._comm_types["Reduce"] = CommType.ALL_REDUCE
        self._sent: list[int] = []
        """The last node of the exchanges so far: one message travels at a time."""
        self._gathered: dict[int, tuple[int, float]] = {}
        """The node that ends a bucket's all-gather of the previous step, and its time, by bucket."""
        for span in simulated.step.spans:
            if span.half == "copy":
                self._all_gather(span)
        backward = self._backward(self._forward())
        for span in simulated.step.spans:
            if span.half != "copy":
                self._exchange(span, backward)
        if self._passes.other:
            end = simulated.step.seconds
            after = [backward[-1], *self._sent]
            self.trace.add(NodeType.COMP_NODE, "update", after, end - self._passes.other, end)

    def _forward(self) -> list[int]:
        bucket_of = [number for number, group in enumerate(self._simulated.groups) for _ in group]
        last: list[int] = []
        now = 0.0
        for layer in reversed(range(len(self._names))):
            waits, gathered = last, self._gathered.get(bucket_of[layer])
            if gathered is not None:
                waits, now = [*last, gathered[0]], max(now, gathered[1])
            begin, now = now, now + self._passes.forward[layer]
            last = [self.trace.add(NodeType.COMP_NODE, f"forward {self._names[layer]}", waits, begin, now)]
        return last

    def _backward(self, last: list[int]) -> list[int]:
        """The nodes of the layers' gradients, in backward order, and one for what comes after the last of them."""
        nodes, begin, now = [], self._simulated.step.backward, 0.0
        ends = [(f"backward {name}", ready) for name, ready in zip(self._names, self._passes.ready, strict=True)]
        if self._passes.backward > self._passes.ready[-1]:
            ends.append(("backward, layers without parameters", self._passes.backward))
        for name, ready in ends:
            last = [self.trace.add(NodeType.COMP_NODE, name, last, begin + now, begin + ready)]
            nodes += last
            now = ready
        return nodes

    def _exchange(self, span: TimedSpan, backward: Sequence[int]) -> None:
        waits = {
            "step": [],
            "gradient": [backward[self._simulated.groups[span.bucket].stop - 1]],
            "backward": [backward[-1]],
        }[self._simulated.starts]
        self._stages(span, [*waits, *self._sent], span.start, copy=False)

    def _all_gather(self, span: TimedSpan) -> None:
        # The simulated step leaves its all-gathers to the next one; this one begins with those of the step before.
        self._stages(span, self._sent, max(0.0, span.start - self._simulated.step.seconds), copy=True)
        if self._sent:
            self._gathered[span.bucket] = self._sent[0], max(0.0, span.end - self._simulated.step.seconds)

    def _stages(self, span: TimedSpan, after: list[int], begin: float, copy: bool) -> None:
        stages = [
            each
            for each in self._simulated.stages[span.bucket]
            if each.copy is copy and (each.name != "compress" or each.seconds)
        ]
        work = sum(each.seconds for each in stages if each.name == "compress")
        # Where cores are shared, compressing takes longer beside the backward pass: what is left of the span.
        longer = (span.end - span.start - sum(each.seconds for each in stages)) / work if work else 0.0
        for stage in stages:
            end = begin + stage.seconds * (1 + longer * (stage.name == "compress"))
            after = [self._stage(f"bucket {span.bucket} {stage.name}", stage, after, begin, end)]
            begin = end
        self._sent = after

    def _stage(self, name: str, stage: Stage, after: Sequence[int], begin: float, end: float) -> int:
        if stage.name == "compress":
            # Said to be of the CPU so that a simulator runs it beside the passes, as the simulated step does.
            return self.trace.add(NodeType.COMP_NODE, name, after, begin, end, is_cpu_op=True)
        # Sizes are those of a rank's input: of an all-gather after a reduce-scatter, its share of the sum.
        num_bytes = stage.num_bytes / self._ranks if stage.name == "all-gather" else stage.num_bytes
        attributes = {"comm_type": int(self._comm_types[stage.name]), "comm_size": round(num_bytes)}
        more = {"request": stage.name, "collective": self._collective}
        return self.trace.add(NodeType.COMM_COLL_NODE, name, after, begin, end, **attributes, **more)
