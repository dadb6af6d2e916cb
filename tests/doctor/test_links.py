"""What is said of links, from facts and times alone: each fault is named first, nothing is said of healthy hosts."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.doctor.visiting import facts, interface
from tests.golden import check
from wirebench.doctor import choices, compare, links, tables, visit
from wirebench.doctor.compare import STOPS, HostFinding, Way
from wirebench.doctor.links import Seen
from wirebench.doctor.sums import RankTimes, SumTimes, joined
from wirebench.doctor.wire import LinkTimes

HOSTS = ("h1", "h2", "h3")
GIGABIT = 117e6
LO = interface("127.0.0.1", "::1", mtu=65536)


def timed(rate: float = GIGABIT, host: str = "h1", trip: float = 1e-4, segment: int = 1448) -> LinkTimes:
    """A way from a host to another one; rate: bytes per second."""
    by_size = tuple((size, trip / 2 + size / rate) for size in (4096, 65536, 1048576)) if rate else ()
    return LinkTimes(trip, rate, by_size, segment, f"10.0.0.{host[1:]}")


def ring(rates: Mapping[Way, float] | None = None, hosts: tuple[str, ...] = HOSTS, **more: Any) -> dict[Way, LinkTimes]:
    """Both directions between neighbours; rates: of those that are not a gigabit per second."""
    pairs = {(here, there) for here in hosts for there in hosts if here != there}
    return {way: timed((rates or {}).get(way, GIGABIT), way[0], **more) for way in sorted(pairs)}


def eth0(number: int, **more: Any) -> dict[str, Any]:
    return {"links": {"eth0": interface(f"10.0.0.{number}", **more), "lo": LO}}


def tcp(**more: str) -> dict[str, Any]:
    return {"tcp": facts()["tcp"] | more}


def told(**variables: str) -> dict[str, Any]:
    return {"variables": variables}


def port(state: str = "ACTIVE", gbit: float = 200.0, device: str = "mlx5_0") -> dict[str, Any]:
    return {"device": device, "port": 1, "gbit": gbit, "state": state, "layer": "InfiniBand"}


def hosts(h2: Mapping[str, Any] | None = None, **every: Any) -> dict[str, dict[str, Any]]:
    """Three hosts of which h2 differs; every: facts of all."""
    return {name: facts(int(name[1:]), **(every | dict(h2 or {} if name == "h2" else {}))) for name in HOSTS}


def every(make: Callable[[int], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Three hosts, with what `make` makes of a host's number."""
    return {name: facts(number, **make(number)) for number, name in enumerate(HOSTS, 1)}


TWO = {name: facts(number) for number, name in enumerate(HOSTS[:2], 1)}
GPUS: dict[str, Any] = {"gpus": ["H100"] * 8}
DOCKER = {"docker0": interface("172.17.0.1")}

FAULTS: dict[str, Seen] = {
    "an MTU of 576": Seen(hosts(eth0(2, mtu=576)), ring()),
    "an MTU of 576 on all": Seen(every(lambda n: eth0(n, mtu=576)), ring(segment=524)),
    "a smaller MTU on the way": Seen(every(lambda n: eth0(n, mtu=9000)), ring(segment=1448)),
    "a switch that drops long packets": Seen(hosts(), ring({("h1", "h2"): 0.0, ("h2", "h1"): 0.0})),
    "half the rate one way": Seen(hosts(), ring({("h2", "h1"): GIGABIT / 2, ("h2", "h3"): GIGABIT / 2})),
    "half the rate of a pair, one way": Seen(TWO, ring({("h2", "h1"): GIGABIT / 2}, HOSTS[:2])),
    "less than asked for": Seen(TWO, ring(None, HOSTS[:2]), nominal=10e9),
    "all links slower than asked for": Seen(hosts(), ring(), nominal=10e9),
    "less than the interfaces negotiated": Seen(
        {name: facts(int(name[1:]), **eth0(int(name[1:]), mbit=10000.0, duplex="full")) for name in HOSTS[:2]},
        ring(None, HOSTS[:2]),
    ),
    "half duplex": Seen(hosts(eth0(2, mbit=1000.0, duplex="half")), ring()),
    "100 Mbit/s in place of a gigabit": Seen(
        every(lambda n: eth0(n, mbit=100.0 if n == 2 else 1000.0, duplex="full")),
        ring({way: GIGABIT / 10 for way in ring() if "h2" in way}),
    ),
    "Gloo on the loopback interface": Seen(hosts({"name_addresses": ["127.0.1.1"]}), ring()),
    "a name that leads nowhere": Seen(hosts({"name_addresses": []}), ring()),
    "Gloo on a bridge that every host has": Seen(
        every(lambda n: {"name_addresses": ["172.17.0.1"], "links": eth0(n)["links"] | DOCKER}), ring()
    ),
    "a GLOO_SOCKET_IFNAME that is not there": Seen(hosts(told(GLOO_SOCKET_IFNAME="eth7")), ring()),
    "an NCCL_SOCKET_IFNAME that is not there": Seen(hosts(**told(NCCL_SOCKET_IFNAME="ib0")), ring()),
    "an NCCL_SOCKET_IFNAME of another network": Seen(
        hosts(
            {"links": {"eth1": interface("10.9.0.2"), **eth0(2)["links"]}, **told(NCCL_SOCKET_IFNAME="=eth1")},
            **GPUS,
        ),
        ring(),
    ),
    "NCCL on a bridge of containers": Seen(
        every(lambda n: {"links": {"br0": interface("172.18.0.1"), **eth0(n)["links"]}, **GPUS}),
        ring(),
    ),
    "an interface other than --interface": Seen(
        hosts({"links": {**eth0(2)["links"], "ib0": interface("10.9.0.2")}}), ring(), interface="ib0"
    ),
    "a slow network where there is a fast one": Seen(
        every(lambda n: {"links": eth0(n, mbit=1000.0)["links"] | {"ib0": interface(f"10.9.0.{n}", mbit=1e5)}}),
        ring(),
    ),
    "the loopback interface alone": Seen(hosts({"links": {"lo": LO}, "name_addresses": ["127.0.0.1"]}), {}),
    "tiny buffers": Seen(
        hosts(tcp(tcp_rmem="4096 8192 8192")), ring({way: GIGABIT / 4 for way in ring() if way[1] == "h2"})
    ),
    "the default buffers on a long fat link": Seen(hosts(), ring(trip=0.08), nominal=10e9),
    "no window scaling": Seen(
        hosts(tcp(tcp_window_scaling="0")),
        ring({way: GIGABIT / 17.5 for way in ring() if way[1] == "h2"}, trip=0.01),
    ),
    "no selective acknowledgements": Seen(hosts(tcp(tcp_sack="0")), ring()),
    "another congestion control": Seen(hosts(tcp(tcp_congestion_control="bbr")), ring()),
    "a buffer of NCCL's that the kernel refuses": Seen(hosts(**told(NCCL_SOCKET_RCVBUF="4194304")), ring()),
    "a port that is down": Seen(hosts({"fabric": [port("DOWN")]}, fabric=[port()], **GPUS), ring()),
    "a port at half its rate": Seen(hosts({"fabric": [port(gbit=100.0)]}, fabric=[port()], **GPUS), ring()),
    "InfiniBand switched off": Seen(hosts(**told(NCCL_IB_DISABLE="1"), fabric=[port()], **GPUS), ring()),
    "an adapter that is not there": Seen(hosts(**told(NCCL_IB_HCA="=mlx5_7:1"), fabric=[port()], **GPUS), ring()),
    "an algorithm on one host": Seen(hosts(told(NCCL_ALGO="Tree")), ring()),
    "a protocol with flags": Seen(hosts(**told(NCCL_PROTO="LL"), **GPUS), ring()),
    "peer access switched off": Seen(hosts(told(NCCL_P2P_DISABLE="1"), **GPUS), ring()),
    "more slots than GPUs": Seen(hosts({"gpus": ["H100"] * 4}, **GPUS), ring(), slots=dict.fromkeys(HOSTS, 8)),
}


def test_what_is_said_of_links(request: pytest.FixtureRequest) -> None:
    """Word for word, all that is said of each fault: the fault itself first."""
    lines = []
    for fault, seen in FAULTS.items():
        found = compare.ranked(links.judge(seen))
        assert found and all(each.cost >= 1 for each in found), fault
        lines += [f"# {fault}", *(each.line() for each in found)]
    check("doctor/links", "\n".join(lines) + "\n", request.config.getoption("update"))


HEALTHY: dict[str, Seen] = {
    "one host": Seen({"h1": facts()}, {}),
    "two hosts": Seen(TWO, ring(None, HOSTS[:2])),
    "cards that say their rate": Seen(
        every(lambda n: eth0(n, mbit=1000.0, duplex="full")), ring(), nominal=1e9
    ),
    "100 Gbit/s, of which one connection fills a part": Seen(
        every(lambda n: eth0(n, mbit=1e5, duplex="full", mtu=9000)),
        ring({way: 3e9 for way in ring()}, segment=8948, trip=3e-5),
    ),
    "more than one connection fills, as far as a core carries it": Seen(
        hosts(),
        ring({way: 3e9 for way in ring()}) | {("h1", "h2"): timed(5.6e9), ("h2", "h3"): timed(9e8, "h2", trip=0.03)},
    ),
    "InfiniBand, whose interface NCCL takes": Seen(
        every(lambda n: {
            "links": {**eth0(n)["links"], "ib0": interface(f"10.9.0.{n}", mtu=2044)}, "fabric": [port()], **GPUS
        }),
        ring(), slots=dict.fromkeys(HOSTS, 8),
    ),
    "a bridge of docker's": Seen(
        every(lambda n: {"links": eth0(n)["links"] | DOCKER, **GPUS}), ring()
    ),
    "an overlay's MTU": Seen(
        every(lambda n: eth0(n, mtu=1450)), ring(segment=1398)
    ),
    "IPv6 alone": Seen(
        {
            name: facts(n, address=f"fd00::{n}", name_addresses=[f"fd00::{n}"],
                        links={"eth0": interface(f"fd00::{n}"), "lo": interface("::1")})
            for n, name in enumerate(HOSTS, 1)
        },
        {way: each._replace(source=f"fd00::{way[0][1:]}", segment=1428) for way, each in ring().items()},
    ),
    "names of interfaces that differ": Seen(
        hosts({"links": {"ens3": interface("10.0.0.2"), "lo": LO}}, **told(NCCL_SOCKET_IFNAME="e")), ring()
    ),
    "a sandbox that says little": Seen(
        every(lambda n: {**eth0(n, mtu=0), "tcp": {}}), ring(segment=0)
    ),
    "hosts that share a loopback interface": Seen(
        {name: facts(**told(GLOO_SOCKET_IFNAME="lo")) for name in HOSTS}, ring(), interface="lo"
    ),
}  # fmt: skip


@pytest.mark.parametrize("setup", HEALTHY)
def test_nothing_is_said_of_healthy_hosts(setup: str) -> None:
    assert [each.line() for each in links.judge(HEALTHY[setup])] == []


def test_a_cause_comes_before_what_it_slows() -> None:
    """And before what costs less; what stops a run is first of all."""
    slow = {way: GIGABIT / 4 for way in ring() if "h2" in way}
    seen = Seen(hosts(tcp(tcp_wmem="4096 8192 8192") | eth0(2, mtu=576)), ring(slow))
    found = compare.ranked([compare.HostFinding("h3", "clock: 3.0 s ahead", "ntp"), *links.judge(seen)])
    assert [each.what.partition(":")[0] for each in found] == ["tcp", "link", "mtu", "clock"]
    assert found[0].cost == found[1].cost == pytest.approx(4.0)
    lost = compare.HostFinding("h9", "gives no answer", "try", compare.STOPS)
    assert compare.ranked([*found, lost])[0] == lost


def test_a_host_whose_link_is_slow_is_named_once() -> None:
    both = {way: GIGABIT / 10 for way in ring() if "h2" in way}
    [line] = [each.line() for each in links.slow(Seen(hosts(), ring(both)))]
    assert line.startswith("h2: link: it sends and receives 94 Mbit/s, the fastest link carries 936 Mbit/s (")


def test_a_slower_interface_costs_the_ratio_of_the_rates() -> None:
    def two(number: int) -> dict[str, Any]:
        links = eth0(number, mbit=10_000.0)["links"] | {"eth1": interface(f"10.9.0.{number}", mbit=1000.0)}
        return {"links": links, "name_addresses": [f"10.9.0.{number}"]}

    found = [each for each in links.judge(Seen(every(two), ring())) if "Gloo takes eth1" in each.what]
    assert [each.cost for each in found] == pytest.approx([10.0] * len(HOSTS))


def test_the_slower_of_two_interfaces_is_a_ways_rate() -> None:
    seen = Seen(every(lambda n: eth0(n, mbit=1000.0 if n == 1 else 10_000.0)), ring())
    assert [seen.line_rate(way) for way in (("h1", "h2"), ("h2", "h1"), ("h2", "h3"))] == [1e9, 1e9, 1e10]


# --- An all-reduce, and what is normal for it


def summed(seconds: float, busy: float = 0.1, rate: float = GIGABIT, size: int = 3, backend: str = "gloo") -> SumTimes:
    """Of 30 MB, over links of a gigabit per second."""
    names = [f"h{number}" for number in range(1, size + 1)]
    ranks = dict.fromkeys(names, RankTimes(5e-5, rate, 1e-10, seconds, busy))
    return joined(backend, 30_000_000, ranks)


def test_what_is_normal_follows_from_the_messages() -> None:
    """A ring of three sends four thirds of the bytes, in four rounds."""
    seconds = 4 * 5e-5 + 2 / 3 * 30e6 * (2 / GIGABIT + 1e-10)
    assert (
        summed(seconds).normal_rate == pytest.approx(summed(seconds).bus_rate) == pytest.approx(4 / 3 * 30e6 / seconds)
    )
    assert summed(seconds).normal_rate < GIGABIT  # by start-up times and adding
    assert summed(1.0, size=2).normal_rate == pytest.approx(30e6 / (2 * 5e-5 + 0.5 * 30e6 * (2 / GIGABIT + 1e-10)))


@pytest.mark.parametrize(
    ("times", "start"),
    [
        (summed(0.36), None),
        (summed(0.55), None),
        (summed(0.72), "all hosts: all-reduce: bus bandwidth 444 Mbit/s, a ring of 3 has 930 Mbit/s where messages"),
        (summed(0.72, busy=0.95), None),
        (summed(0.72, busy=1.0, backend="nccl"), "all hosts: all-reduce: bus bandwidth 444 Mbit/s"),
        (summed(3.6, rate=GIGABIT / 10), "all hosts: Gloo: 94 Mbit/s between neighbours, a socket has 936 Mbit/s (all"),
    ],
)  # fmt: skip
def test_an_all_reduce_is_held_against_what_is_normal(times: SumTimes, start: str | None) -> None:
    found = [each.line() for each in links.all_reduce(Seen(hosts(), ring()), times)]
    assert (found == []) if start is None else found[0].startswith(start), found


def test_a_wrong_interface_of_gloos_stops_no_all_reduce_of_nccls() -> None:
    found = HostFinding("h1", "Gloo takes lo (its name), which leads to no other host", "export X", STOPS)
    assert visit._keeps_apart(found, "gloo") and not visit._keeps_apart(found, "nccl")
    assert visit._keeps_apart(found._replace(what="NCCL takes lo (its name), which leads"), "nccl")
    assert not visit._keeps_apart(found._replace(cost=2.0), "gloo")


def test_hosts_on_one_machine_share_its_cores() -> None:
    shared = Seen(hosts(boot="one", cores=2), ring())
    assert links.limited_by_processor(shared, summed(0.72, busy=0.6))
    assert not links.limited_by_processor(Seen(hosts(cores=2), ring()), summed(0.72, busy=0.6))


# --- Which interface a back end takes


@pytest.mark.parametrize(
    ("told", "takes"),
    [
        ({}, ("ib0",)),
        ({"NCCL_SOCKET_IFNAME": "eth"}, ("eth0", "eth1")),
        ({"NCCL_SOCKET_IFNAME": "=eth1"}, ("eth1",)),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, ()),
        ({"NCCL_SOCKET_IFNAME": "^docker,lo,ib"}, ("eth0", "eth1")),
        ({"NCCL_SOCKET_IFNAME": "^=eth0,ib0"}, ("eth1", "docker0", "lo")),
        ({"NCCL_SOCKET_IFNAME": "eth3"}, ()),
        ({"NCCL_SOCKET_IFNAME": "e"}, ("ib0",)),
        ({"NCCL_SOCKET_FAMILY": "AF_INET6"}, ("eth0",)),
    ],
)
def test_nccl_takes_an_interface_by_its_own_rules(told: dict[str, str], takes: tuple[str, ...]) -> None:
    """A variable of one letter counts as none, an interface that is not up is left out, and so is ::1."""
    known = {
        "eth0": interface("10.0.0.1", "fd00::1"), "eth1": interface("10.1.0.1"),
        "eth3": interface("10.3.0.1", running=False), "docker0": interface("172.17.0.1"), "lo": LO,
        "ib0": interface("10.9.0.1"),
    }  # fmt: skip
    assert choices.nccl(facts(links=known, variables=told)).names == takes


@pytest.mark.parametrize(
    ("names", "takes"),
    [(("docker0", "lo"), "docker0"), (("lo",), "lo"), (("virbr0", "lo"), "lo"), (("virbr0",), "virbr0"), ((), "")],
)
def test_nccl_takes_what_is_left(names: tuple[str, ...], takes: str) -> None:
    assert choices.nccl(facts(links={name: interface("10.0.0.1") for name in names})).first == takes


def test_variables_come_from_nccls_files_too(tmp_path: Any) -> None:
    (tmp_path / "nccl.conf").write_text("NCCL_DEBUG=WARN # a comment\nNCCL_IB_HCA = mlx5_0\nnonsense\nOTHER=1\n")
    (tmp_path / "own.conf").write_text("NCCL_DEBUG=INFO\n")
    files = [tmp_path / name for name in ("nccl.conf", "own.conf", "none")]
    environment = {"NCCL_IB_HCA": "mlx5_1", "GLOO_SOCKET_IFNAME": "eth0", "PATH": "/bin"}
    known = choices.variables(environment, files)
    assert known == {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5_1", "GLOO_SOCKET_IFNAME": "eth0"}


def test_tables_show_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(Seen(hosts({"links": {"lo": LO}, "name_addresses": []}, nccl=None), ring({("h1", "h2"): 0.0})))
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert ["h1", "eth0", "1500", "-", "-", "eth0", "(its"] in [row[:7] for row in rows]
    assert ["h2", "-", "-", "-", "-", "lo", "(its"] in [row[:7] for row in rows]
    assert ["h1", "->", "h2", "0.050", "ms", "-", "-", "-", "0", "Mbit/s"] in rows
    tables.show(Seen({}, {}))
    assert capsys.readouterr().out == ""


def test_what_many_hosts_share_is_one_line() -> None:
    many = [compare.HostFinding(f"h{number}", "mtu: 576", "mend", 1.1) for number in range(9)]
    [line] = compare.ranked([*many, many[0]])
    assert line.line() == "h0, h1, h2, h3, h4 and 4 other hosts: mtu: 576 (all-reduce: 1.1x the time); mend"
