"""What the system says of this machine and this process: processor, memory, cores, names, addresses, free disk.

Everything else in the project asks here, by the module's name (`this_machine.cores()`), so that tests can put one
machine in the place of any other (tests/conftest.py).
"""

import os
import platform
import re
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

CPUINFO = Path("/proc/cpuinfo")
BOOT = Path("/proc/sys/kernel/random/boot_id")
INTERFACES = Path("/sys/class/net")
INFINIBAND = Path("/sys/class/infiniband")
NETWORK = Path("/proc/sys/net")
TCP_SETTINGS = (
    "ipv4/tcp_rmem", "ipv4/tcp_wmem", "core/rmem_max", "core/wmem_max", "ipv4/tcp_congestion_control",
    "ipv4/tcp_window_scaling", "ipv4/tcp_sack",
)  # fmt: skip
UNRATED = {"virtio_net", "hv_netvsc", "vmxnet3", "xen_netfront", "vif"}
"""Drivers of virtual machines: the speed that they report is a constant, or the whole host's."""
COPIED_FLOATS, COPIES, COPY_SECONDS = 1 << 24, 5, 0.3
_SPEED_FLAGS = re.compile(r"avx|avx2|fma|f16c|avx_vnni|avx512\w*|amx_\w+|asimd\w*|sve\w*|bf16")


class CPU(NamedTuple):
    """The processor.

    model  its name; None where the system gives none
    flags  its vector and matrix instruction sets, sorted, by the kernel's names; None where it does not list them
    """

    model: str | None
    flags: list[str] | None


class Interface(NamedTuple):
    """A network interface.

    addresses  its IPv4 addresses, then its IPv6 addresses without link-local ones
    running    whether it is up and has a carrier
    mtu        bytes of its largest packet; 0 where the system does not say it
    mbit       megabits per second that its link negotiated; 0 for a virtual interface, or one without a link
    duplex     "full" or "half"; "" where mbit is 0
    """

    addresses: tuple[str, ...]
    running: bool
    mtu: int
    mbit: float
    duplex: str


class FabricPort(NamedTuple):
    """A port of an InfiniBand or RoCE adapter.

    layer  "InfiniBand" or "Ethernet" (RoCE)
    state  "ACTIVE", "DOWN", "INIT", ...
    """

    device: str
    port: int
    gbit: float
    state: str
    layer: str


def cpu() -> CPU:
    """The first processor's."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:  # not Linux, or a sandbox that shows nothing of the processor
        lines = []
    pairs = [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    model = next((value for name, value in pairs if name == "model name"), None)
    flags = next((value for name, value in pairs if name in ("flags", "Features")), None)  # on x86, on ARM
    known = None if flags is None else sorted(filter(_SPEED_FLAGS.fullmatch, flags.split()))
    return CPU(model or platform.processor() or None, known)


def cores() -> int:
    """Cores that this process may use: a container or a launcher may have bound it to some."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else all_cores()


def all_cores() -> int:
    """Cores of the machine, whether or not this process may use them."""
    return psutil.cpu_count() or 1


def memory_bytes() -> int:
    """All memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory_bytes() -> int:
    """Memory that can still be had without swapping."""
    return int(psutil.virtual_memory().available)


def copy_bytes_per_second() -> float:
    """Bytes that a copy reads and writes in a second, the best of some: on the GPU, if there is one.

    Copies for COPY_SECONDS, so that a moment's disturbance does not count, and the machine's load can be read.
    """
    import torch  # which takes seconds, and what else is asked here needs none of it

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    source = torch.ones(COPIED_FLOATS, device=device)
    target, best = torch.empty_like(source), float("inf")
    start, copies = time.perf_counter(), 0
    while copies < COPIES or time.perf_counter() < start + COPY_SECONDS:
        copies += 1
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return 2 * 4 * COPIED_FLOATS / best


def free_disk_bytes(folder: Path) -> int:
    """What its file system has room for. Raises OSError."""
    return shutil.disk_usage(folder).free


def hostname() -> str:
    """This machine's name, or this emulated host's."""
    return socket.gethostname()


def kernel() -> str:
    """The kernel's release."""
    return platform.release()


def boot() -> str:
    """Tells machines apart whatever their names are: processes in containers or network namespaces share a kernel's.

    The host name where the kernel has no number of its boot.
    """
    try:
        return BOOT.read_text().strip()
    except OSError:
        return hostname()


def addresses() -> dict[str, str | None]:
    """The first IPv4 address of each network interface, None for one without."""
    return {
        name: next((str(each.address) for each in known if each.family == socket.AF_INET), None)
        for name, known in psutil.net_if_addrs().items()
    }


def interfaces() -> dict[str, Interface]:
    """The interfaces with an address, in the kernel's order, those with an IPv4 address first.

    Gloo and NCCL list them in this order.
    """
    try:
        stats = psutil.net_if_stats()
    except OSError:  # a sandbox that allows no ioctl
        stats = {}
    found = {}
    for name, known in psutil.net_if_addrs().items():
        four = [str(each.address) for each in known if each.family == socket.AF_INET]
        six = [str(each.address) for each in known if each.family == socket.AF_INET6]
        own = (*four, *(each for each in six if not each.lower().startswith("fe80")))
        mac = next((str(each.address) for each in known if each.family == psutil.AF_LINK), "")
        state = stats.get(name)
        if own:
            cable = _cable(name, mac)
            found[name] = Interface(own, state is None or state.isup, state.mtu if state else 0, *cable)
    return found


def _cable(interface: str, mac: str) -> tuple[float, str]:
    """Megabits per second and duplex of a physical interface; (0.0, "") for any other.

    /sys shows the network namespace in which it was mounted, so the hardware address is compared first.
    """
    folder = INTERFACES / interface
    if _text(folder / "address") not in ("", mac):
        return 0.0, ""
    driver = (folder / "device/driver").resolve().name
    if not ((folder / "device").exists() or (folder / "bonding").exists()) or driver in UNRATED:
        return 0.0, ""
    rate, duplex = max(0.0, link_mbit(interface)), _text(folder / "duplex")
    return (rate, duplex if duplex in ("full", "half") else "") if rate else (0.0, "")


def fabric_ports() -> list[FabricPort]:
    """The ports of all InfiniBand and RoCE adapters, by device and number; [] without one."""
    folders = sorted(INFINIBAND.glob("*/ports/*"), key=lambda each: (each.parts[-3], each.name))
    return [
        FabricPort(
            each.parts[-3], int(each.name), _leading(_text(each / "rate")),
            _text(each / "state").rpartition(": ")[2], _text(each / "link_layer"),
        )
        for each in folders
        if each.name.isdigit()
    ]  # fmt: skip


def tcp_settings() -> dict[str, str]:
    """The kernel's TCP settings by name, those that it shows; words are separated by one space."""
    texts = {name.rpartition("/")[2]: " ".join(_text(NETWORK / name).split()) for name in TCP_SETTINGS}
    return {name: text for name, text in texts.items() if text}


def own_addresses_of(name: str) -> list[str]:
    """The addresses to which a name leads, without those that are not this machine's; [] where it leads nowhere."""
    try:
        known = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(address[0]) for family, _, _, _, address in known if _is_own(family, address)]


def _is_own(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _text(path: Path) -> str:
    """What a file of the kernel says; "" where it says nothing, as `speed` of a virtual interface (EINVAL)."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _leading(text: str) -> float:
    """The number at a text's beginning; 0 without one."""
    match = re.match(r"\d+(\.\d+)?", text)
    return float(match[0]) if match else 0.0


def address_of(name: str) -> str:
    """The IPv4 address to which a host's name leads from here. Raises OSError."""
    return socket.gethostbyname(name)


def link_mbit(interface: str) -> float:
    """The nominal megabits per second of an interface; 0 where the system does not say it, as of a bridge."""
    try:
        return float((INTERFACES / interface / "speed").read_text())
    except (OSError, ValueError):
        return 0.0


def waited_for_a_core(thread: int | None = None) -> float | None:
    """Seconds in which a thread of this process was ready to run and had no core; None where the kernel counts none.

    thread  its number; without one all threads count, together
    """
    threads = Path("/proc/self/task")
    those = list(threads.iterdir()) if thread is None else [threads / str(thread)]
    found = []
    for each in those:
        with suppress(OSError, ValueError, IndexError):  # one that has ended since
            found.append(float((each / "schedstat").read_text().split()[1]) * 1e-9)
    return sum(found) if found else None


def process_age() -> float:
    """Seconds since this process was started, or forked."""
    return max(0.0, time.time() - float(psutil.Process().create_time()))
