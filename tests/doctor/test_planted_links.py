"""Faults planted on emulated hosts are named first; nothing is said of hosts that are well."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.doctor.visiting import Told, doctor

pytestmark = [pytest.mark.slow, pytest.mark.clock]

ETH0 = {"GLOO_SOCKET_IFNAME": "eth0"}


class Lab:
    """Emulated hosts h0, h1, ... that `visit` looks at.

    differs  what tests/doctor/other_host.py makes of each host
    switch   words that enter the switch's network
    """

    def __init__(self, differs: dict[str, dict[str, Any]], switch: list[str], folder: Path) -> None:
        self.differs, self.switch, self.folder = differs, switch, folder

    def run(self, host: str, command: str) -> None:
        """Run a shell's command on a host, or on the switch."""
        words = self.switch if host == "switch" else ["nsenter", *self.differs[host]["inside"], "--"]
        subprocess.run([*words, "sh", "-ec", command], check=True, capture_output=True)

    def system(self, host: str, name: str, files: dict[str, str]) -> None:
        """Put files in the place of a folder of this_machine on a host."""
        folder = self.folder / f"{host}-{name}"
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        self.differs[host].setdefault("system", {})[name] = str(folder)

    def card(self, host: str, speed: int, duplex: str = "full") -> None:
        """Give a host's eth0 a physical card."""
        files = {"eth0/speed": f"{speed}\n", "eth0/duplex": f"{duplex}\n", "eth0/device/vendor": "0x15b3\n"}
        self.system(host, "INTERFACES", files)

    def port(self, host: str, state: str) -> None:
        """Give a host an InfiniBand adapter."""
        here = "mlx5_0/ports/1"
        files = {"rate": "200 Gb/sec (4X HDR)\n", "state": f"4: {state}\n", "link_layer": "InfiniBand\n"}
        self.system(host, "INFINIBAND", {f"{here}/{name}": text for name, text in files.items()})

    def variables(self, host: str, **told: str) -> None:
        """Set variables on a host, as its own shell would."""
        self.differs[host].setdefault("variables", {}).update(told)

    def visit(self, *words: str, variables: dict[str, str] | None = None) -> Told:
        typed = (*self.differs, "--interface", "eth0", "--seconds", "0.6", *words)
        differs: dict[str, Any] = dict(self.differs)
        return doctor(*typed, variables=ETH0 if variables is None else variables, **differs)


@pytest.fixture
def lab(cluster: Callable[[str], Any], tmp_path: Path) -> Callable[[str], Lab]:
    from wirebench.cluster import state
    from wirebench.cluster.namespaces import inside

    def start(links: str) -> Lab:
        hosts = cluster(links)
        return Lab(hosts, inside(state.find("lab").cluster.pid, "net"), tmp_path)

    return start


def _half_duplex(lab: Lab) -> None:
    for host in lab.differs:
        lab.card(host, 1000, "half" if host == "h1" else "full")


def _port_down(lab: Lab) -> None:
    for host in lab.differs:
        lab.port(host, "DOWN" if host == "h1" else "ACTIVE")


class Planted(NamedTuple):
    """A fault: what is done to hosts with links of 1 Gbit/s, and how the first line begins.

    weekly  make test-all leaves it out: it is of the kind of another fault, or is planted there with others at once
    """

    plant: Callable[[Lab], object]
    line: str
    variables: dict[str, str] = ETH0
    words: tuple[str, ...] = ()
    hosts: int = 2
    weekly: bool = False


HALVED = "tc qdisc change dev eth0 root tbf rate 500mbit burst 70000 limit 2000000"
FAULTS = {
    "mtu": Planted(lambda lab: lab.run("h1", "ip link set eth0 mtu 576"), "h1: mtu: 576 on eth0, h0 has 9000"),
    "half-the-rate-one-way": Planted(lambda lab: lab.run("h1", HALVED), "h1: link: it sends ", hosts=3),
    "window": Planted(
        lambda lab: lab.run("h1", "echo 0 > /proc/sys/net/ipv4/tcp_window_scaling"), "h1: tcp: window scaling is off"
    ),
    "long-packets": Planted(
        lambda lab: lab.run("switch", "ip link set to-h1 mtu 1500"),
        "h0: link: 0 Mbit/s to h1, a byte comes through, a long message does not; see the MTU on the way",
    ),
    "gloo-on-lo": Planted(
        lambda lab: None,
        "h0, h1: Gloo takes lo (its name leads to no address of its own), which leads to no other host; export",
        {},
    ),
    "nccl-nowhere": Planted(
        lambda lab: None,
        "h0, h1: NCCL_SOCKET_IFNAME=ib0: no such interface is up there, it has lo, eth0; export NCCL_SOCKET_IFNAME",
        {**ETH0, "NCCL_SOCKET_IFNAME": "ib0"},
        weekly=True,
    ),
    "half-duplex": Planted(
        _half_duplex, "h1: link: eth0 is half duplex: it cannot send and receive at once", weekly=True
    ),
    "port-down": Planted(_port_down, "h1: mlx5_0 port 1: DOWN, h0 has ACTIVE", weekly=True),
    "algorithm": Planted(
        lambda lab: lab.variables("h1", NCCL_ALGO="Tree"),
        "h1: NCCL_ALGO: Tree, h0 has none; unset NCCL_ALGO there",
        weekly=True,
    ),
    "asked-for": Planted(
        lambda lab: None, "all hosts: links: they carry ", words=("--link", "10gbit"), hosts=3, weekly=True
    ),
}  # fmt: skip


AT_ONCE = ("nccl-nowhere", "half-duplex", "port-down", "algorithm")
"""Faults that the hosts' facts alone tell, and that do not change each other's lines."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.weekly] if fault.weekly else []) for name, fault in FAULTS.items()],
)
def test_a_planted_fault_is_named_first(name: str, lab: Callable[[str], Lab]) -> None:
    fault = FAULTS[name]
    hosts = lab(",".join(["1gbit"] * fault.hosts))
    fault.plant(hosts)
    told = hosts.visit(*fault.words, variables=fault.variables)
    assert told.code == 1 and told.lines[0].startswith(fault.line), told


def test_faults_that_facts_tell_are_all_named(lab: Callable[[str], Lab]) -> None:
    hosts = lab("1gbit,1gbit")
    for name in AT_ONCE:
        FAULTS[name].plant(hosts)
    told = hosts.visit(variables=FAULTS["nccl-nowhere"].variables)
    assert told.code == 1
    for name in AT_ONCE:
        assert any(line.startswith(FAULTS[name].line) for line in told.lines), (name, told)


def _bridge(lab: Lab) -> None:
    """Of containers, the same on every host; and cards that negotiated what the links carry."""
    for host in lab.differs:
        lab.run(
            host,
            "ip link add docker0 type bridge && ip address add 172.17.0.1/16 dev docker0 && ip link set docker0 up",
        )
        lab.card(host, 1000)


@pytest.mark.parametrize(
    ("links", "plant", "words"),
    [
        pytest.param("1gbit,1gbit", lambda lab: None, ("--link", "1gbit"), marks=pytest.mark.weekly),
        pytest.param("100mbit,100mbit,100mbit", lambda lab: None, (), marks=pytest.mark.weekly),
        ("20mbit,20mbit", lambda lab: None, ("--link", "20mbit")),
        ("1gbit,1gbit,1gbit", _bridge, ()),
    ],
    ids=["two", "three", "slow-links", "bridges"],
)
def test_nothing_is_said_of_healthy_hosts(
    links: str, plant: Callable[[Lab], object], words: tuple[str, ...], lab: Callable[[str], Lab]
) -> None:
    hosts = lab(links)
    plant(hosts)
    told = hosts.visit(*words)
    assert told.code == 0 and len(told.lines) == 1, told
    assert "all-reduce (gloo) has a bus bandwidth of " in told.lines[0] and told.lines[0].endswith("nothing is wrong")
    assert any(line.startswith("h0 -> h1") for line in told.tables), told


def test_hosts_that_have_ipv6_alone(lab: Callable[[str], Lab]) -> None:
    hosts = lab("1gbit,1gbit")
    for number, host in enumerate(hosts.differs, 1):
        hosts.run(host, f"ip address flush dev eth0 && ip address add fd00::{number}/64 dev eth0 nodad")
    told = hosts.visit()
    assert told.code == 0 and told.lines[0].startswith("2 hosts; links carry 9"), told
