"""The environment variables of each rank: those that torchrun or horovodrun would set on real hosts."""

from collections.abc import Mapping

from wirebench.cluster.network import INTERFACE
from wirebench.cluster.plan import SWITCH_ADDRESS, ClusterPlan, Host
from wirebench.comm.launch_command import LINK_MBIT, TOLD

ENGINES = ("torch", "horovod")
_LAUNCHERS = ("HOROVOD_", "OMPI_COMM_WORLD_", "TORCHELASTIC_")
_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment(
    base: Mapping[str, str], engine: str, plan: ClusterPlan, rank: int, port: int, counts: str, typed: str
) -> dict[str, str]:
    """The environment of a rank.

    base    the caller's environment, which is kept but for a place in another launcher's job
    port    torch: a free port of host 0, where rank 0 will listen; horovod: the port of the rendezvous server
    counts  folder into which the ranks write their byte counts (wirebench.comm.metered)
    typed   the command line that the user typed
    """
    host = next(host for host in plan.hosts if rank in host.ranks)
    # Ranks of one host meet on its loopback interface, as they do without a cluster.
    interface = INTERFACE if len(plan.hosts) > 1 else "lo"
    kept = {key: value for key, value in base.items() if not _said_by_launcher(key)}
    kept.setdefault("OMP_NUM_THREADS", "1")
    kept.pop(LINK_MBIT, None)
    place = _torch(plan, host, rank, port) if engine == "torch" else _horovod(plan, host, rank, port, interface)
    # The system would tell the rate of a virtual cable, if any, and of another namespace's interface.
    rate = {LINK_MBIT: f"{plan.cable_of(host.name).bits_per_second / 1e6:g}"} if interface == INTERFACE else {}
    return {
        **kept,
        **place,
        **rate,
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "WIREBENCH_SHARED_BY": str(plan.size),
        TOLD: typed,
        "WIREBENCH_COUNTS": counts,
    }


def _said_by_launcher(key: str) -> bool:
    """Whether the variable is a rank's place in a launcher's job; settings (HOROVOD_CYCLE_TIME) are not."""
    return key in _TORCH or any(key.startswith(prefix) and key.endswith(_PLACE) for prefix in _LAUNCHERS)


def _torch(plan: ClusterPlan, host: Host, rank: int, port: int) -> dict[str, str]:
    return {
        "MASTER_ADDR": plan.hosts[0].address,
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.size),
        "LOCAL_RANK": str(host.ranks.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(host.ranks)),
    }


def _horovod(plan: ClusterPlan, host: Host, rank: int, port: int, interface: str) -> dict[str, str]:
    local_rank = host.ranks.index(rank)
    # The ranks that have this number on their host; an uneven host has no such rank for the highest numbers.
    across = [other.name for other in plan.hosts if len(other.ranks) > local_rank]
    return {
        "HOROVOD_HOSTNAME": host.name,
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(plan.size),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(len(host.ranks)),
        "HOROVOD_CROSS_RANK": str(across.index(host.name)),
        "HOROVOD_CROSS_SIZE": str(len(across)),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": SWITCH_ADDRESS,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
