"""Build a plan with ip and tc, in the network namespace of the switch."""

import subprocess
from collections.abc import Mapping, Sequence

from wirebench.cluster.plan import PREFIX_BITS, ROOT_SWITCH, SWITCH_ADDRESS, Cable, ClusterPlan
from wirebench.errors import UserError

INTERFACE = "eth0"
JUMBO, ETHERNET = 9_000, 1_500
"""Bytes of a frame: jumbo frames, as clusters use them; with 1,500 headers take 4.4 % of a link."""
QUEUE_BYTES = 2_000_000
"""The most that waits in front of a link before packets are lost; docs/clusters.md has the measurements."""
SWITCH_BURSTS = 2

TCP = {
    # Estimates of the bandwidth (BBR, where it is the kernel's default) fall while a rank waits for another, and a job
    # that is held up a little is then held up more. Reno is the one algorithm that every host may choose.
    "ipv4/tcp_congestion_control": "reno",
    # What one connection may keep in the queue in front of a link, as a network card's own limit does: otherwise
    # every short answer waits behind megabytes.
    "ipv4/tcp_limit_output_bytes": "131072",
}
"""Settings of a host's network stack, below /proc/sys/net."""

HINTS = {
    "qdisc kind is unknown": "the kernel has no tbf: modprobe sch_tbf",
    "Unknown device type": "the kernel has no bridge or no veth: modprobe bridge veth",
}


def largest_packet(plan: ClusterPlan) -> int:
    """Bytes of the largest packets that TCP hands to a link: 0.5 ms worth of the slowest one, within limits.

    The kernel's own, of 64 KB, are longer than what a slow link may send at once. tbf then cuts each into frames, which
    costs a ring 4 % of the rate at 100 Mbit/s and half of it at 1 Gbit/s. So hosts send shorter ones, down to 16 KB,
    and on links below 32 Mbit/s shorter still: 4 ms worth, but two small frames at least.
    """
    return _packet_bytes(min(cable.bits_per_second for cable in plan.cables) / 8)


def _packet_bytes(bytes_per_second: float) -> int:
    usual = min(max(16_384, bytes_per_second * 0.0005), 65_536)
    return round(max(3_000, min(usual, bytes_per_second * 0.004)))


def frame_bytes(packet_bytes: int) -> int:
    """The MTU: on slow links a jumbo frame would be longer than what may be sent at once, and never pass."""
    return JUMBO if packet_bytes >= JUMBO else ETHERNET


def burst_bytes(bytes_per_second: float, packet_bytes: int) -> int:
    """What a host's idle link may send at once."""
    return round(max(packet_bytes * 1.125, bytes_per_second * 0.0005))


def head_start_seconds(bytes_per_second: float) -> float:
    """The burst of an idle link of one rate throughout, in seconds of sending at that rate."""
    return burst_bytes(bytes_per_second, _packet_bytes(bytes_per_second)) / bytes_per_second


def shape(device: str, bits_per_second: float, packet_bytes: int) -> str:
    """The words for tc that hold what leaves `device` to a rate.

    burst  What an idle link may send at once: at a host 0.5 ms worth, and at least one of the largest packets with the
           headers that its parts get. It is a message's head start, but also what a late timer can make up for. A
           switch's port gets twice as much: if it ran slower than the host, if only now and then, its queue would fill
           up behind a single sender until packets are lost. Several senders into one idle port have that head start.
    limit  The queue in front of the link, in bytes whatever the rate, as a real port has them.
    """
    own = burst_bytes(bits_per_second / 8, packet_bytes)
    burst = own if device == INTERFACE else own * SWITCH_BURSTS
    return f"qdisc add dev {device} root tbf rate {round(bits_per_second)}bit burst {burst} limit {QUEUE_BYTES}"


def build(plan: ClusterPlan, holders: Mapping[str, int]) -> None:
    """Lay all cables and start all interfaces; `holders`: a process number in each host's namespaces, by host.

    Called in the switch's namespace. Raises UserError with what ip or tc said.
    """
    packet_bytes = largest_packet(plan)
    mtu = frame_bytes(packet_bytes)
    addresses = {host.name: host.address for host in plan.hosts}
    _ip(["link set lo up", *(line for switch in plan.switches for line in _switch(switch, mtu))])
    _ip([f"address add {SWITCH_ADDRESS}/{PREFIX_BITS} dev {ROOT_SWITCH}"])
    for cable in plan.cables:
        pid = holders.get(cable.child)
        lower = INTERFACE if pid else uplink_of(cable.child)
        away = f" netns {pid}" if pid else ""
        _ip([f"link add {port(cable)} type veth peer name {lower}{away}", *_start(port(cable), mtu, cable.parent)])
        _tc([shape(port(cable), cable.bits_per_second, packet_bytes)])
        if pid is None:
            _ip(_start(lower, mtu, cable.child))
            _tc([shape(lower, cable.bits_per_second, packet_bytes)])
        else:
            inside = ("nsenter", f"--target={pid}", "--net")
            address = f"address add {addresses[cable.child]}/{PREFIX_BITS} dev {lower}"
            packets = f"link set {lower} gso_max_size {packet_bytes}"
            _ip(["link set lo up", address, packets, *_start(lower, mtu)], inside)
            _tc([shape(lower, cable.bits_per_second, packet_bytes)], inside)
            _set(TCP, inside)


def plug(plan: ClusterPlan, host: str, inside: Sequence[str], *, out: bool = False) -> None:
    """Plug a host's cable in at its switch, or pull it out; `inside`: words that enter the switch's namespace."""
    _ip([f"link set {port(plan.cable_of(host))} {'down' if out else 'up'}"], inside)


def throttle(plan: ClusterPlan, host: str, share: float, switch: Sequence[str], inside: Sequence[str]) -> None:
    """Hold a host's link to a share of its rate, both ways; `switch`, `inside`: words that enter these namespaces."""
    cable, packet_bytes = plan.cable_of(host), largest_packet(plan)
    for device, words in ((port(cable), switch), (INTERFACE, inside)):
        shaped = shape(device, cable.bits_per_second * share, packet_bytes)
        _tc([shaped.replace("qdisc add", "qdisc change")], words)


def port(cable: Cable) -> str:
    """The interface at the upper end of a cable."""
    return port_of(cable.child)


def port_of(child: str) -> str:
    """The interface of a switch to which the cable of a host or of a lower switch leads."""
    return f"to-{child}"


def uplink_of(switch: str) -> str:
    """The interface of a switch below the root that leads up."""
    return f"up-{switch}"


def _switch(name: str, mtu: int) -> list[str]:
    # No spanning tree, which would hold ports back for 30 s, and nothing that sends packets of its own.
    return [f"link add {name} type bridge stp_state 0 forward_delay 0 mcast_snooping 0", *_start(name, mtu)]


def _start(device: str, mtu: int, bridge: str = "") -> list[str]:
    # Without IPv6 addresses, which announce themselves: the counters see the job's traffic only.
    master = [f"link set {device} master {bridge}"] if bridge else []
    return [f"link set {device} addrgenmode none mtu {mtu}", *master, f"link set {device} up"]


def _set(settings: Mapping[str, str], inside: Sequence[str]) -> None:
    script = "\n".join(f"echo {value} > /proc/sys/net/{path}" for path, value in settings.items())
    done = subprocess.run([*inside, "sh", "-e", "-c", script], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"the network cannot be built: {' '.join(done.stderr.split())}")


def _ip(lines: Sequence[str], inside: Sequence[str] = ()) -> None:
    _batch("ip", lines, inside)


def _tc(lines: Sequence[str], inside: Sequence[str] = ()) -> None:
    _batch("tc", lines, inside)


def _batch(tool: str, lines: Sequence[str], inside: Sequence[str]) -> None:
    done = subprocess.run([*inside, tool, "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True)
    if done.returncode:
        said = " ".join(done.stderr.split())
        hint = next((hint for text, hint in HINTS.items() if text in said), "")
        raise UserError(f"the network cannot be built: {tool}: {said}{'; ' if hint else ''}{hint}")
