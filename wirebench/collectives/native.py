"""The engine's own collectives: NCCL's, Gloo's, MPI's or Horovod's. The default, and the peer of every plan."""

from wirebench.collectives.plan import Collective
from wirebench.collectives.rounds import ClusterShape
from wirebench.topology.tree import Topology


class NativeCollective:
    """No plan: requests become the engine's all-reduce and all-gather calls."""

    def plan(self, topology: Topology, items: int) -> None:
        """Return None: the engine's own all-reduce needs no plan."""
        return None

    def rounds(self, shape: ClusterShape) -> None:
        """Return None, as `plan` does."""
        return None


def is_engines_own(collective: Collective) -> bool:
    """Whether the engine's own all-reduce serves sums, and not a plan of ours."""
    return isinstance(collective, NativeCollective)
