"""What is wrong with the links between hosts, each in a line with its mend and its cost. Nothing here asks anybody.

The cost is how many times as long an all-reduce takes. Where a cause and what it slows down are both found, the cause
comes first: it costs at least as much.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from wirebench.doctor import choices
from wirebench.doctor.answers import Facts
from wirebench.doctor.compare import STOPS, HostFinding, Way, shared_by_most
from wirebench.doctor.sums import SumTimes
from wirebench.doctor.wire import LinkTimes
from wirebench.topology.rates import show_rate

SLOW_SHARE = 0.6
"""A way is slow that carries less than this share of the fastest one, or of the same link's other direction."""
OF_NOMINAL = 0.8
"""A way is slow that carries less than this share of what it should; headers take 6 %."""
ONE_CONNECTION = 10e9
"""Bits per second that one TCP connection fills: above this neither a link's rate nor the fastest way's is expected."""
OF_NORMAL = 0.6
"""An all-reduce is slow whose bus bandwidth is less than this share of the normal one."""
BUSY = 0.8
"""The processor, not the link, limits a process that is this busy, or all cores that hosts share."""
DISTURBED = 0.1
"""A measurement counts as disturbed whose sender had no core for a larger share of the time."""
LEAST_MTU = 1280
"""Every link of IPv6 carries this; tunnels and overlays leave more."""
LEAST_WINDOW = 65_536
"""Bytes of the largest TCP buffer below which no system comes: the default is some millions."""
DEFAULT_BUFFER = 6_291_456
USUAL_BUFFERS = {"tcp_rmem": "4096 131072 {}", "tcp_wmem": "4096 16384 {}"}
"""Bytes of a connection's buffer: least, first and largest."""
FASTER = 2.0
"""Another network is worth a line that is this many times as fast."""
WORTH_A_LINE = 1.02
ALL = "all hosts"
PER_PACKET, ON_THE_WIRE = 20 + 32, 38
"""Headers of IPv4 and TCP with time stamps; and Ethernet's preamble, header, check sum and gap."""
OWN = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_HOSTID", "NCCL_DEBUG", "NCCL_DEBUG_FILE"}
"""Variables that may differ between hosts."""
DETOURS = {"NCCL_P2P_DISABLE": "host memory", "NCCL_SHM_DISABLE": "the network"}
"""What GPUs of a host may exchange through where a variable is set."""
ALIKE = {
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_SOCKET_FAMILY", "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_CROSS_NIC",
}  # fmt: skip
"""Variables with which a job does not start, or hangs, where they differ."""
FABRIC_OFF: Mapping[str, Callable[[str], bool]] = {
    "NCCL_IB_DISABLE": lambda value: value not in ("", "0"),
    "NCCL_NET": lambda value: value.lower() == "socket",
}
"""With which values of a variable NCCL uses no InfiniBand."""


class Seen(NamedTuple):
    """What was found out about the links.

    facts      by host
    ways       what was timed, by way
    interface  the one that --interface names
    nominal    bits per second that each link should carry; None without --link
    slots      ranks by host, of those for which the list of hosts says it
    """

    facts: Mapping[str, Facts]
    ways: Mapping[Way, LinkTimes]
    interface: str | None = None
    nominal: float | None = None
    slots: Mapping[str, int] = {}

    def reached_by(self, host: str) -> str:
        """The interface by which a host reaches the others; "" where it is not known."""
        if self.interface:
            return self.interface
        own = [each.source for (src, _), each in self.ways.items() if src == host]
        names = {choices.interface_of(self.facts[host], source) for source in own}
        return names.pop() if len(names) == 1 else ""

    def used(self, host: str) -> str:
        """The interface by which it reaches the others, or would by Gloo; "" where it is not known."""
        taken = choices.gloo(self.facts[host]).first
        return self.reached_by(host) or ("" if taken == "lo" else taken)

    def link(self, host: str) -> Mapping[str, Any]:
        """The facts of the interface that a host uses; {} where they are not known."""
        known: Mapping[str, Any] = self.facts[host].get("links", {}).get(self.used(host), {})
        return known

    def line_rate(self, way: Way) -> float:
        """Bits per second of the slower of a way's two interfaces; 0 where one has none."""
        return min(1e6 * self.link(host).get("mbit", 0) for host in way)

    def least_buffer(self, host: str) -> int:
        """Bytes of the smaller of its two largest TCP buffers; the default where they are not known."""
        settings = self.facts[host].get("tcp", {})
        return min(_last_number(settings.get(name, "")) or DEFAULT_BUFFER for name in USUAL_BUFFERS)

    @property
    def best(self) -> float:
        """Bits per second of the fastest way; 0 without one."""
        return max((8 * each.bytes_per_second for each in self.ways.values()), default=0.0)

    @property
    def usual(self) -> float:
        """Bits per second that every way should carry, by the fastest one."""
        return min(self.best, ONE_CONNECTION)

    def wanted(self, way: Way) -> float:
        """Bits per second that a connection should carry: what is asked for, negotiated or carried by the fastest."""
        line = self.line_rate(way)
        return max(self.nominal or 0.0, self.usual, line if line <= ONE_CONNECTION else 0.0)

    def round_trip(self, way: Way) -> float:
        """Seconds of a byte there and back; both directions time the same, and what disturbs one adds to it."""
        return min(self.ways[each].round_trip for each in (way, way[::-1]) if each in self.ways)

    def in_flight(self, host: str) -> float:
        """Bytes that the fullest connection of a host has on the way at once, if it carries what it should."""
        ways = [way for way in self.ways if host in way]
        return max((self.wanted(way) / 8 * self.round_trip(way) for way in ways), default=0.0)

    def disturbed(self, way: Way) -> str:
        """Which end of a way other programs kept from sending, in words; "" for none."""
        for host in way:
            share = max((each.waited for (src, _), each in self.ways.items() if src == host), default=0.0)
            if share > DISTURBED:
                return f"disturbed: {host} had no core {share:.0%} of the time"
        return ""

    def slowdown(self, host: str) -> float:
        """By how much the slowest way from or to a host is slower than it should be."""
        ways = [way for way in self.ways if host in way and self.ways[way].bytes_per_second]
        return max((self.wanted(way) / 8 / self.ways[way].bytes_per_second for way in ways), default=1.0)


def judge(seen: Seen) -> list[HostFinding]:
    """What facts and timed ways show, causes before what they slow down."""
    causes = [*interfaces(seen), *fabric(seen), *variables(seen), *cables(seen), *packets(seen), *tcp(seen)]
    return [*causes, *slow(seen)]


def interfaces(seen: Seen) -> Iterator[HostFinding]:
    """Hosts on which Gloo or NCCL takes an interface that leads to no other host, or to a slower network."""
    facts = {host: known for host, known in seen.facts.items() if "links" in known}
    alone = [host for host, known in facts.items() if not choices.usable(known)]
    if len(facts) > 1 and seen.interface != "lo":
        for host in alone:
            mend = "see `ip address` there: it needs one that is up and has an address"
            yield HostFinding(host, "network: it has no interface but lo", mend, STOPS)
        facts = {host: known for host, known in facts.items() if host not in alone}
    for backend, choose in (("Gloo", choices.gloo), ("NCCL", choices.nccl)):
        variable = f"{backend.upper()}_SOCKET_IFNAME"
        taken = {
            host: choose(known)
            for host, known in facts.items()
            if backend == "Gloo" or known.get("gpus") or known.get("variables", {}).get(variable)
        }
        for host, choice in taken.items():
            if wrong := _wrong_choice(seen, host, backend, taken):
                right = seen.reached_by(host) or next(iter(choices.usable(facts[host])), "NAME")
                told = facts[host].get("variables", {}).get(variable)
                if not choice.names and told:
                    has = ", ".join(facts[host]["links"]) or "none"
                    wrong = f"{variable}={told}: no such interface is up there, it has {has}", STOPS
                horovod = f" (horovodrun: --network-interface {right})" if backend == "Gloo" else ""
                yield HostFinding(host, wrong[0], f"export {variable}={right}{horovod}", wrong[1])
    yield from _faster_network(seen)


def _wrong_choice(
    seen: Seen, host: str, backend: str, taken: Mapping[str, choices.Interfaces]
) -> tuple[str, float] | None:
    """Why the interface that a back end takes on a host is wrong, and the cost; None where it is right."""
    choice, right = taken[host], seen.reached_by(host)
    if not choice.names:
        return f"{backend} finds no interface ({choice.why})", STOPS
    if len(seen.facts) < 2 or choice.first == right:
        return None
    takes = f"{backend} takes {choice.first} ({choice.why})"
    if choice.first == "lo":
        return f"{takes}, which leads to no other host", STOPS
    links, others = seen.facts[host]["links"], [known for name, known in seen.facts.items() if name != host]
    address = links[choice.first]["addresses"][0]
    if any(choices.interface_of(known, address) for known in others):
        return f"{takes}: other hosts have its address {address}, too, so it leads to none of them", STOPS
    if seen.interface:
        return f"{takes}, not {seen.interface}", STOPS
    most = Counter(each.first for each in taken.values()).most_common(1)[0][0]
    if right and choice.first != most:
        return f"{takes}, the hosts reach each other by {right}", STOPS
    rates = [links[name]["mbit"] for name in (right, choice.first) if name in links]
    if len(rates) == 2 and all(rates) and rates[0] > rates[1]:
        return f"{takes}: {_mbit(rates[1])}, {right} has {_mbit(rates[0])}", rates[0] / rates[1]
    return None


def _faster_network(seen: Seen) -> Iterator[HostFinding]:
    """A network that all hosts are on, and that is faster than the one that they use."""
    if seen.interface or len(seen.facts) < 2:
        return
    used = max(seen.link(host).get("mbit", 0) for host in seen.facts)
    rates = [
        {name: link["mbit"] for name, link in known.get("links", {}).items() if link["running"]}
        for known in seen.facts.values()
    ]
    common = {name: min(each.get(name, 0) for each in rates) for name in rates[0]}
    name, rate = max(common.items(), key=lambda item: item[1], default=("", 0))
    if used and rate >= FASTER * used:
        first = next(iter(seen.facts))
        what = f"network: {seen.used(first)} has {_mbit(used)}, {name} has {_mbit(rate)} on all hosts"
        mend = f"export GLOO_SOCKET_IFNAME={name} NCCL_SOCKET_IFNAME={name}, and try --interface {name}"
        yield HostFinding(first, what, mend, rate / used)


def fabric(seen: Seen) -> Iterator[HostFinding]:
    """InfiniBand and RoCE ports that are down, slower than on most hosts, or switched off by a variable."""
    ports = {
        host: {(each["device"], each["port"]): each for each in known.get("fabric", ())}
        for host, known in seen.facts.items()
    }
    for host, known in seen.facts.items():
        told = known.get("variables", {})
        active = [each for each in ports[host].values() if each["state"] == "ACTIVE"]
        for key, port in ports[host].items():
            others = [each[key] for other, each in ports.items() if other != host and key in each]
            name = f"{port['device']} port {port['port']}"
            most = statistics.median_high([each["gbit"] for each in others]) if others else 0.0
            if port["state"] != "ACTIVE" and any(each["state"] == "ACTIVE" for each in others):
                like = next(other for other in ports if ports[other].get(key, {}).get("state") == "ACTIVE")
                what = f"{name}: {port['state']}, {like} has ACTIVE"
                mend = "see its cable and switch port (ibstat), and the subnet manager"
                yield HostFinding(host, what, mend, _over(most * 1e9, seen.best))
            elif port["gbit"] < most:
                what = f"{name}: {port['gbit']:g} Gbit/s, others have {most:g}"
                yield HostFinding(host, what, "see its cable and switch port (ibstat)", most / max(port["gbit"], 0.1))
        if not active or not known.get("gpus"):
            continue
        best = max(1e9 * each["gbit"] for each in active)
        off = next((name for name, is_off in FABRIC_OFF.items() if is_off(told.get(name, ""))), None)
        takes = choices.matcher(told.get("NCCL_IB_HCA", ""))
        if off:
            what = f"{off}={told[off]}: NCCL leaves {active[0]['device']} ({bits(best)}) alone"
            yield HostFinding(host, what, f"unset {off}", _over(best, seen.best))
        elif told.get("NCCL_IB_HCA") and not any(takes(each["device"]) for each in active):
            what = f"NCCL_IB_HCA: {told['NCCL_IB_HCA']}: names no active port"
            names = ",".join(dict.fromkeys(each["device"] for each in active))
            yield HostFinding(host, what, f"export NCCL_IB_HCA={names}, or unset it", _over(best, seen.best))


def variables(seen: Seen) -> Iterator[HostFinding]:
    """Variables of NCCL and Gloo that differ between hosts, or that cost speed wherever they are set."""
    told = {host: known.get("variables", {}) for host, known in seen.facts.items()}
    for name in sorted({name for each in told.values() for name in each} - OWN - DETOURS.keys()):
        values = {host: each.get(name) for host, each in told.items()}
        most, like = shared_by_most(values)
        for host, value in values.items():
            if value != most:
                mend = f"unset {name} there" if most is None else f"export {name}={most} there"
                what = f"{name}: {value or 'is not set'}, {like} has {most or 'none'}"
                yield HostFinding(host, what, mend, STOPS if name in ALIKE else 1.0)
    for host, each in told.items():
        gpus = len(seen.facts[host].get("gpus", ()))
        if gpus and each.get("NCCL_PROTO", "").upper() == "LL":
            yield HostFinding(host, "NCCL_PROTO=LL: half of what is sent are flags", "unset NCCL_PROTO", 2.0)
        for name, way in DETOURS.items():
            if gpus > 1 and each.get(name, "0") not in ("", "0"):
                what = f"{name}={each[name]}: its {gpus} GPUs may exchange through {way}"
                yield HostFinding(host, what, f"unset {name}")
        if 0 < gpus < seen.slots.get(host, 0):
            what = f"slots: {seen.slots[host]} are listed, it has {gpus} GPUs"
            yield HostFinding(host, what, f"list it with {gpus} slots: NCCL takes one rank a GPU", STOPS)


def cables(seen: Seen) -> Iterator[HostFinding]:
    """Interfaces with half duplex, or with a lower rate than most or than asked for."""
    rates = {host: seen.link(host).get("mbit", 0) for host in seen.facts}
    known = [rate for rate in rates.values() if rate]
    usual = max(statistics.median_high(known) if known else 0.0, (seen.nominal or 0.0) / 1e6)
    for host, rate in rates.items():
        name = seen.used(host)
        mend = f"see its cable, switch port and auto-negotiation (ethtool {name})"
        if rate and rate < usual:
            like = next((other for other in rates if rates[other] == usual), "")
            reason = f"{like} has {_mbit(usual)}" if like else f"{_mbit(usual)} is asked for"
            what = f"link: {name} negotiated {_mbit(rate)}, {reason}"
            yield HostFinding(host, what, mend, usual / rate)
        if seen.link(host).get("duplex") == "half":
            what = f"link: {name} is half duplex: it cannot send and receive at once"
            yield HostFinding(host, what, mend, 2.0)


def packets(seen: Seen) -> Iterator[HostFinding]:
    """Interfaces, and ways, whose largest packet is smaller than most."""
    sizes = {host: seen.link(host).get("mtu", 0) for host in seen.facts if seen.used(host) != "lo"}
    known = {host: size for host, size in sizes.items() if size}
    most, like = shared_by_most({host: size for host, size in known.items() if size >= LEAST_MTU} or known)
    for host, size in known.items():
        if size == most and size >= LEAST_MTU:
            continue
        usual = max(most, 1500) if size < LEAST_MTU else most
        reason = f"{like} has {most}" if size != most else f"links carry {usual}"
        mend = f"ip link set {seen.used(host)} mtu {usual} there, as its switch and the other hosts have it"
        cost = max(1.0, _payload(usual) / _payload(size))
        yield HostFinding(host, f"mtu: {size} on {seen.used(host)}, {reason}", mend, cost)
    smaller: dict[tuple[int, int], list[Way]] = {}
    for (here, there), timed in seen.ways.items():
        ends, on_the_way = min(sizes.get(here, 0), sizes.get(there, 0)), timed.segment + PER_PACKET
        if not (timed.segment and ends) or min(map(seen.least_buffer, (here, there))) < LEAST_WINDOW:
            continue  # a small window makes small segments
        if _payload(ends) / _payload(on_the_way) >= WORTH_A_LINE:
            smaller.setdefault((on_the_way, ends), []).append((here, there))
    for (on_the_way, ends), ways in smaller.items():
        more = f" (and on {len(ways) - 1} other ways)" if len(ways) > 1 else ""
        what = f"mtu: packets of {on_the_way} bytes to {ways[0][1]}{more}, both ends have {ends}"
        mend = "see the MTU of switches, bridges and tunnels between them"
        yield HostFinding(ways[0][0], what, mend, _payload(ends) / _payload(on_the_way))


def _payload(mtu: float) -> float:
    """The share of a full packet's time on the wire that is payload."""
    return max(mtu - PER_PACKET, 1) / (mtu + ON_THE_WIRE)


def tcp(seen: Seen) -> Iterator[HostFinding]:
    """Settings that hold a connection below what the link carries in a round trip, or that differ."""
    control = {host: known.get("tcp", {}).get("tcp_congestion_control", "") for host, known in seen.facts.items()}
    most, like = shared_by_most(control)
    for host, known in seen.facts.items():
        settings: Mapping[str, str] = known.get("tcp", {})
        flight = seen.in_flight(host)
        if settings.get("tcp_window_scaling") == "0":
            what = f"tcp: window scaling is off, so {LEAST_WINDOW:,} bytes a round trip are the most"
            cost = seen.slowdown(host) if flight * OF_NOMINAL > LEAST_WINDOW else 1.0
            yield HostFinding(host, what, "sysctl -w net.ipv4.tcp_window_scaling=1 there", cost)
        if settings.get("tcp_sack") == "0":
            what = "tcp: selective acknowledgements are off, so that a lost packet costs a window"
            yield HostFinding(host, what, "sysctl -w net.ipv4.tcp_sack=1 there")
        if control[host] != most and control[host] and most:
            what = f"tcp: congestion control {control[host]}, {like} has {most}"
            yield HostFinding(host, what, f"sysctl -w net.ipv4.tcp_congestion_control={most} there")
        for name, usual in USUAL_BUFFERS.items():
            size = _last_number(settings.get(name, ""))
            # The kernel's own records of packets take half of a buffer.
            tiny, cost = size < LEAST_WINDOW, seen.slowdown(host)
            if size and (tiny or (2 * flight * OF_NOMINAL > size and cost * OF_NOMINAL > 1)):
                three = usual.format(max(round(2 * flight), DEFAULT_BUFFER))
                needs = "systems come with millions" if tiny else f"rate x round trip needs {2 * flight:,.0f}"
                what = f"tcp: {name} ends at {size:,} bytes, {needs}"
                yield HostFinding(host, what, f"sysctl -w net.ipv4.{name}='{three}' there", cost)
        for name, limit in (("NCCL_SOCKET_RCVBUF", "rmem_max"), ("NCCL_SOCKET_SNDBUF", "wmem_max")):
            asked = _last_number(known.get("variables", {}).get(name, ""))
            allowed = _last_number(settings.get(limit, ""))
            if 0 < allowed < asked:
                what = f"tcp: {limit} allows {allowed:,} of {name}'s {asked:,} bytes"
                yield HostFinding(host, what, f"sysctl -w net.core.{limit}={asked} there")


def _last_number(text: str) -> int:
    word = text.split()[-1] if text.split() else ""
    return int(word) if word.isdigit() else 0


def slow(seen: Seen) -> Iterator[HostFinding]:
    """Ways that carry much less than they should, than the fastest, or than their other direction.

    A host is named once where all of its ways in a direction are slow, and its neighbours have other ways that are not.
    """
    bad = {way: found for way in seen.ways if (found := _reason(seen, way))}
    good = [way for way in seen.ways if way not in bad]
    rates = [8 * seen.ways[way].bytes_per_second for way in bad]
    if len(bad) > 2 and not good and min(rates) >= SLOW_SHARE * max(rates):
        reason, cost, mend = max(bad.values(), key=lambda each: each.cost)
        what = f"links: they carry {bits(max(rates))} at most, {reason}"
        look = "look at switch, interfaces and traffic shaping (ethtool, tc qdisc)"
        yield HostFinding(ALL, what, mend or look, cost)
        return
    sends, receives = ({way[end] for way in bad} - {way[end] for way in good} for end in (0, 1))
    for host in dict.fromkeys(host for way in bad for host in way):
        out = [way for way in bad if way[0] == host and host in sends and way[1] not in receives]
        into = [way for way in bad if way[1] == host and host in receives and way[0] not in sends]
        if len(out) + len(into) < 2:
            continue
        worst = max((*out, *into), key=lambda way: bad[way].cost)
        verb = " and ".join(name for name, ways in (("sends", out), ("receives", into)) if ways)
        what = f"link: it {verb} {_rate(seen, worst)}, {bad[worst].reason}"
        look = "look at its cable, switch port, interface and traffic shaping (ethtool, tc qdisc)"
        yield HostFinding(host, what, bad[worst].mend or look, bad[worst].cost)
        for way in (*out, *into):
            del bad[way]
    look = "look at its cable, switch port and interface (ethtool), or name another with --interface"
    for (here, there), (reason, cost, mend) in bad.items():
        yield HostFinding(here, f"link: {_rate(seen, (here, there))} to {there}, {reason}", mend or look, cost)


class _Slow(NamedTuple):
    """Why a way is slow, and how many times it is; mend: what to do where its cables are not to blame."""

    reason: str
    cost: float
    mend: str = ""


def doubtful(seen: Seen) -> list[Way]:
    """Ways that look slow, and are to be timed again before a host is blamed."""
    return [way for way, timed in seen.ways.items() if timed.bytes_per_second and _reason(seen, way)]


def _reason(seen: Seen, way: Way) -> _Slow | None:
    """Why a way is slow; None where it is not. What was disturbed is not known to be slower."""
    if not seen.ways[way].bytes_per_second:
        mend = f"see the MTU on the way: ping -M do -s 1472 {way[1]}"
        return _Slow("a byte comes through, a long message does not", STOPS, mend)
    found, disturbed = _slower(seen, way), seen.disturbed(way)
    if found is None or not disturbed:
        return found
    return _Slow(f"{found.reason}, {disturbed}", 1.0, "ask again when nothing else runs there")


def _slower(seen: Seen, way: Way) -> _Slow | None:
    rate = 8 * seen.ways[way].bytes_per_second
    back = 8 * seen.ways[way[::-1]].bytes_per_second if way[::-1] in seen.ways else 0.0
    line = seen.line_rate(way)
    if seen.nominal is not None and rate < OF_NOMINAL * seen.nominal:
        return _Slow(f"{show_rate(seen.nominal)} is asked for", seen.nominal / rate)
    if rate < SLOW_SHARE * min(back, ONE_CONNECTION) and back >= SLOW_SHARE * seen.usual:
        return _Slow(f"the other way carries {bits(back)}", back / rate)
    if rate < SLOW_SHARE * seen.usual:
        return _Slow(f"the fastest link carries {bits(seen.best)}", seen.best / rate)
    if rate < SLOW_SHARE * line <= SLOW_SHARE * ONE_CONNECTION:
        return _Slow(f"its interfaces negotiated {bits(line)}", line / rate)
    return None


def all_reduce(seen: Seen, timed: SumTimes) -> Iterator[HostFinding]:
    """An all-reduce that is slower than its messages allow, or messages that are slower than the link allows."""
    if limited_by_processor(seen, timed):
        return
    name = {"gloo": "Gloo", "nccl": "NCCL"}[timed.backend]
    link = min((each.bytes_per_second for each in seen.ways.values()), default=0.0)
    if timed.bytes_per_second < link / 2:
        what = f"{name}: {bits(8 * timed.bytes_per_second)} between neighbours, a socket has {bits(8 * link)}"
        mend = f"see which interface it takes: {timed.backend.upper()}_SOCKET_IFNAME"
        yield HostFinding(ALL, what, mend, link / timed.bytes_per_second)
    if timed.bus_rate < OF_NORMAL * timed.normal_rate:
        what = (
            f"all-reduce: bus bandwidth {bits(8 * timed.bus_rate)}, a ring of {timed.size} has "
            f"{bits(8 * timed.normal_rate)} where messages take as long as here"
        )
        mend = "links that share a cable or a switch port, or half duplex: time them at once, see ethtool"
        yield HostFinding(ALL, what, mend, timed.normal_rate / timed.bus_rate)


def limited_by_processor(seen: Seen, timed: SumTimes) -> bool:
    """Whether a process of the all-reduce computes all the time, or hosts on one machine keep its cores busy.

    Never with NCCL: a process that waits for a GPU polls, and looks busy.
    """
    if timed.backend == "nccl":
        return False
    shared: defaultdict[tuple[str, float], float] = defaultdict(float)
    for host, busy in timed.busy.items():
        shared[seen.facts[host].get("boot", host), seen.facts[host].get("cores", 1)] += busy
    return max(timed.busy.values()) > BUSY or any(busy > BUSY * cores for (_, cores), busy in shared.items())


def _over(rate: float, measured: float) -> float:
    """How many times faster `rate` is than what was measured; 1 where nothing was."""
    return max(1.0, rate / measured) if measured else 1.0


def _rate(seen: Seen, way: Way) -> str:
    return bits(8 * seen.ways[way].bytes_per_second)


def _mbit(rate: float) -> str:
    return bits(1e6 * rate)


def bits(per_second: float) -> str:
    """Bits per second in words."""
    return f"{per_second / 1e9:.2f} Gbit/s" if per_second >= 1e9 else f"{per_second / 1e6:.0f} Mbit/s"
