"""Engines: who moves the bytes. One is started per process and knows the ranks that live in it.

- local: all virtual workers in this process
- torch: torch.distributed, one rank per process, started by torchrun (or srun, or mpirun)
- horovod: Horovod, one rank per process, started by horovodrun (or, built with MPI, by mpirun or srun)
"""

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wirebench.comm import store as meeting
from wirebench.comm.base import Communicator
from wirebench.comm.connections import hang_up
from wirebench.comm.hvd import HorovodCommunicator
from wirebench.comm.launch import (
    COMMANDS,
    VIRTUAL_WORKERS,
    Launch,
    cannot_join,
    engine_of,
    has_agent,
    launched,
    meeting_point,
    script,
)
from wirebench.comm.local import LocalHub
from wirebench.comm.metered import Metered, save_counts
from wirebench.comm.peers import (
    Peer,
    any_dead,
    end_stopped,
    first_line,
    introduce,
    leave_word,
    linger,
    missing,
    word_left,
)
from wirebench.comm.torchdist import TorchCommunicator
from wirebench.config.loader import EngineConfig
from wirebench.config.sections import EngineName
from wirebench.errors import PeerLost, UserError
from wirebench.utils import this_machine
from wirebench.utils.heap import keep_freed_memory
from wirebench.utils.own import trainer

MOST_NAMED = 8
"""Ranks that an error names."""
ENGINES = {
    "local": f"virtual workers in this process: {trainer()} CONFIG.toml",
    "torch": f"torch.distributed: {COMMANDS['torch'].format(size=4)} {trainer(launched=True)} CONFIG.toml",
    "horovod": f"Horovod: {COMMANDS['horovod'].format(size=4)} {trainer(launched=True)} CONFIG.toml",
}


@dataclass
class Engine:
    """A started engine.

    ranks          the ranks that live in this process; communicators: theirs, in the same order, counting
    store          key-value store that all processes reach; None on the local engine
    backend        what moves the bytes, for the record: nccl, gloo, mpi or memory
    module         Horovod itself on the horovod engine
    leaves         this rank ends alone and has sent the others the reason
    uncounted      the engine moves gradients past our communicators, so their counts are not the whole traffic
    gone           the peers that `who_is_gone` has found
    """

    name: EngineName
    size: int
    ranks: tuple[int, ...]
    communicators: list[Metered]
    device: torch.device
    threads: int
    peers: list[Peer]
    backend: str
    store: dist.Store | None = None
    module: Any = None
    closers: list[Callable[[], None]] = field(default_factory=list)
    uncounted: bool = False
    leaves: bool = False
    gone: list[Peer] = field(default_factory=list)

    @property
    def distributed(self) -> bool:
        """One rank per process; otherwise all of them live here."""
        return self.name != "local"

    @property
    def is_first(self) -> bool:
        """Rank 0 lives here: this process writes the record."""
        return 0 in self.ranks

    @property
    def ranks_on_this_host(self) -> int:
        """Ranks that share this host's network interface."""
        here = self.peers[self.ranks[0]].host
        return sum(p.host == here for p in self.peers)

    def who_is_gone(self) -> str:
        """The ranks that are gone, as text; '' if unknown. To be called after a failure that all living ranks meet."""
        self.gone = missing(self.peers, self.ranks[0], self.store, functools.partial(hang_up, self.store))
        return ", ".join(map(str, self.gone))

    def say_farewell(self, why: str) -> None:
        """This rank ends alone: the others, which are to fail now, find with `farewell` why. Then let them `linger`."""
        self.leaves = True
        leave_word(self.store, why)
        if self.distributed:
            hang_up(self.store)

    def farewell(self) -> str:
        """After a failure: why another rank has ended, "" without a reason; that rank stops waiting for this one."""
        why = word_left(self.store, self.ranks[0])
        if why and self.distributed:
            hang_up(self.store)  # others may wait for this rank, and not for the one that has left its word
        return why

    def lost_a_neighbour(self) -> bool:
        """Whether another rank's process has ended, as far as this process can see."""
        return any_dead(self.peers, self.ranks[0])

    def linger(self) -> None:
        """After a failure, before this process ends: other ranks may need it to find out who is gone.

        Ranks of this host that a signal has stopped end with it.
        """
        linger(self.peers, self.ranks[0], self.store, self.gone)
        end_stopped(self.peers, self.peers[self.ranks[0]].host)

    def sum_over_ranks(self, values: Sequence[Tensor]) -> Tensor:
        """The sum of all ranks' small tensors; `values` has one for each rank of this process, and does not change."""
        pairs = zip(self.communicators, values, strict=True)
        handles = [communicator.all_reduce(value.clone()) for communicator, value in pairs]
        totals = [handle.wait() for handle in handles]
        return totals[0]

    def close(self) -> None:
        """Leave the job in good order; on an emulated cluster (wirebench cluster), save the bytes sent to each rank."""
        if folder := os.environ.get("WIREBENCH_COUNTS"):
            save_counts(Path(folder), self.peers, self.communicators, complete=not self.uncounted)
        self.detach()

    def detach(self) -> None:
        """Leave the groups of the engine's own; a job that it was attached to keeps its own."""
        for closer in self.closers:
            closer()


def start(section: EngineConfig, fusion_mb: float | None) -> Engine:
    """Start the engine that the config names, or that the launcher's environment shows.

    fusion_mb  Horovod's tensor fusion threshold in MiB; None leaves Horovod's default, 0 switches fusion off
    Raises UserError where the engine is not installed or not launched, PeerLost where the other ranks do not come.
    """
    keep_freed_memory()
    launch = launched()
    name = engine_of(section.name, section.workers, launch)
    if name == "local":
        return _start_local(section)
    device = _device(section, launch)
    threads = _set_threads(section, launch.sharing)
    try:
        if name == "torch":
            return _start_torch(section, launch, device, threads)
        return _start_horovod(section, launch, device, fusion_mb)
    except (RuntimeError, ValueError, OSError) as error:
        if isinstance(error, PeerLost | UserError):
            raise
        raise PeerLost(f"the {name} engine could not start: {first_line(error)}") from error


def _start_local(section: EngineConfig) -> Engine:
    size = section.workers or VIRTUAL_WORKERS
    # As many threads as each of `size` processes would have: the same arithmetic, to the bit.
    device, threads = _device(section, None), _set_threads(section, size)
    peer = (this_machine.hostname(), os.getpid())
    peers = [Peer(rank, *peer) for rank in range(size)]
    communicators = [Metered(communicator) for communicator in LocalHub(size).communicators]
    return Engine("local", size, tuple(range(size)), communicators, device, threads, peers, "memory")


def _start_torch(section: EngineConfig, launch: Launch, device: torch.device, threads: int) -> Engine:
    address = meeting_point(launch)
    assert address is not None, "engine_of() takes torch only with a meeting point"
    place = meeting.StorePlace(*address, meeting.word_of_job(launch.launcher))
    wait, one_host = section.timeout_seconds, launch.local_size == launch.size
    if has_agent():
        store = meeting.join(place, wait)
        store = dist.PrefixStore(meeting.name_of_reunion(store, launch.rank, launch.size, wait), store)
        store = meeting.by_rank_0(store, launch.rank, meeting.own_address(one_host), one_host, wait)
    elif launch.rank == 0:
        store = meeting.keep(place, meeting.listen_for(place, one_host), wait)
    else:
        store = meeting.join(place, wait)
    _join(section, launch, device, store, place)
    inner = TorchCommunicator(staged=_staged(launch, device))
    communicator = Metered(inner)
    backend = "nccl" if device.type == "cuda" and not inner.staged else "gloo"
    peers = introduce(communicator)
    return Engine(
        "torch", launch.size, (launch.rank,), [communicator], device, threads, peers, backend, store,
        closers=[dist.destroy_process_group],
    )  # fmt: skip


def _start_horovod(section: EngineConfig, launch: Launch, device: torch.device, fusion_mb: float | None) -> Engine:
    if fusion_mb is not None:
        os.environ["HOROVOD_FUSION_THRESHOLD"] = str(int(fusion_mb * 2**20))
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(max(1, int(section.timeout_seconds))))
    # Horovod's own optimizer waits without a limit, but for this one.
    os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, int(section.timeout_seconds / 2))))
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(max(2, int(section.timeout_seconds))))
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise UserError(
            f"engine.name: horovod cannot be loaded ({first_line(error)}); `make setup` in a clone builds it"
        ) from error
    if launch.launcher != "horovodrun" and launch.size != 1 and not hvd.mpi_built():
        raise cannot_join(launch, "horovod was built without MPI")
    if launch.launcher == "horovodrun" and not hvd.gloo_built():
        raise UserError(
            f"engine: horovodrun started these ranks to meet by Gloo, which horovod was built without here; start "
            f"{COMMANDS['horovod'].format(size=launch.size).replace('horovodrun', 'horovodrun --mpi')} {script()}"
        )
    hvd.init()
    if hvd.size() != launch.size:
        raise cannot_join(launch, f"Horovod's MPI found {hvd.size()} of them")
    engine = horovod_engine(hvd, section, launch, device)
    engine.closers.append(hvd.shutdown)
    return engine


def horovod_engine(
    hvd: Any, section: EngineConfig, launch: Launch, device: torch.device, beside: Communicator | None = None
) -> Engine:
    """The engine of a Horovod job that is initialised.

    beside  runs the rounds of plans; None: where section.rounds asks for one, it joins torch.distributed for that
    """
    # Rank 0 listens before it publishes the address, so that no other process can take the port; Horovod broadcasts the
    # job's word to all ranks.
    place, server = (
        meeting.listen(meeting.own_address(hvd.local_size() == hvd.size())) if hvd.rank() == 0 else (None, None)
    )
    place, rounds = hvd.broadcast_object((place, section.rounds), name="wirebench.store")
    if section.rounds != rounds:
        # Said here: ranks that disagree on this one would never meet to compare their configs.
        raise UserError(f"engine.rounds: is {rounds!r} on rank 0 but {section.rounds!r} on rank {hvd.rank()}")
    wait = section.timeout_seconds
    store = meeting.join(place, wait) if server is None else meeting.keep(place, server, wait)
    closers: list[Callable[[], None]] = []
    if rounds == "p2p" and beside is None:
        _join(section, launch, device, store, place)
        beside = TorchCommunicator(staged=_staged(launch, device))
        closers.append(dist.destroy_process_group)
    communicator = Metered(HorovodCommunicator(hvd, beside, section.timeout_seconds))
    nccl = device.type == "cuda" and hvd.nccl_built()
    backend = "nccl" if nccl else "mpi" if hvd.mpi_enabled() else "gloo"
    return Engine(
        "horovod", hvd.size(), (hvd.rank(),), [communicator], device, torch.get_num_threads(),
        introduce(communicator), backend, store, hvd, closers=closers,
    )  # fmt: skip


def _join(
    section: EngineConfig, launch: Launch, device: torch.device, store: dist.Store, place: meeting.StorePlace
) -> None:
    """Join the default process group, whose members find each other through the store at `place`.

    Raises PeerLost, which names the ranks that do not come.
    """
    if launch.local_size == launch.size:
        # Host names need not resolve where all ranks share one host.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    elif "HOROVOD_GLOO_IFACE" in os.environ:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", os.environ["HOROVOD_GLOO_IFACE"])
    timeout = timedelta(seconds=section.timeout_seconds)
    backend = "gloo" if device.type == "cpu" or _staged(launch, device) else "cpu:gloo,cuda:nccl"
    here = dist.PrefixStore("wirebench/here", store)
    here.set(str(launch.rank), "")
    try:
        dist.init_process_group(backend, store=store, rank=launch.rank, world_size=launch.size, timeout=timeout)
    except RuntimeError as error:
        if absent := _absent(here, launch.size):
            raise PeerLost(
                f"{absent} of {launch.size} did not come within {section.timeout_seconds:g} s "
                f"(engine.timeout_seconds) to the store of rank 0 at {place.address}"
            ) from error
        raise
    if "nccl" in backend:
        # NCCL wants every rank in a group's first call, and the first round of a tree leaves some out.
        dist.all_reduce(torch.zeros(1, device=device))


def _absent(here: dist.Store, size: int) -> str:
    """The ranks that have not signed in at the store; "" if all have, or if the store is gone, too."""
    try:
        absent = [str(rank) for rank in range(size) if not here.check([str(rank)])]
    except RuntimeError:
        return ""
    names = ", ".join(absent[:MOST_NAMED]) + f" and {len(absent) - MOST_NAMED} more" * (len(absent) > MOST_NAMED)
    return f"rank{'s' * (len(absent) > 1)} {names}" if absent else ""


def _device(section: EngineConfig, launch: Launch | None) -> torch.device:
    if section.device == "cuda" and not torch.cuda.is_available():
        raise UserError("engine.device: 'cuda', but no GPU can be used here")
    if section.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", launch.local_rank % torch.cuda.device_count() if launch else 0)
    torch.cuda.set_device(device)
    return device


def _staged(launch: Launch, device: torch.device) -> bool:
    """Several ranks share a GPU, which NCCL does not allow: their tensors travel through the host."""
    return device.type == "cuda" and launch.local_size > torch.cuda.device_count()


def _set_threads(section: EngineConfig, sharing: int) -> int:
    """Processes that each take all cores of a shared machine slow each other down many times over."""
    threads = section.threads or max(1, this_machine.cores() // sharing)
    torch.set_num_threads(threads)
    return threads
