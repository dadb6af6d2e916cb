"""Interface counters: this machine's, and invented ones for what it does not have."""

import socket

import pytest

from wirebench.errors import UserError
from wirebench.telemetry import nic

COUNTERS = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
  eth0: 1000 5 0 0 0 0 0 0 2000 6 0 0 0 0 0 0
 eth10:11 1 0 0 0 0 0 0 12 1 0 0 0 0 0 0
  eth1:18446744073709551000 1 0 0 0 0 0 0 22 1 0 0 0 0 0 0
    lo:    7 1 0 0 0 0 0 0    7 1 0 0 0 0 0 0
"""
ROUTES = """Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth0\t00000000\t0102000A\t0003\t0\t0\t200\t00000000\t0\t0\t0
eth1\t00000000\t0103000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
"""


@pytest.fixture
def invented(monkeypatch, tmp_path):
    (tmp_path / "dev").write_text(COUNTERS)
    (tmp_path / "route").write_text(ROUTES)
    monkeypatch.setattr(nic, "COUNTERS", tmp_path / "dev")
    monkeypatch.setattr(nic, "ROUTES", tmp_path / "route")


def test_loopback_counts_what_is_sent_over_it():
    counter = nic.InterfaceCounter("lo")
    before = counter.read()
    assert before is not None
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            client.sendall(bytes(100_000))
            received = 0
            while received < 100_000:
                received += len(peer.recv(65536))
    after = counter.read()
    assert after is not None
    assert after[0] - before[0] >= 100_000 and after[1] - before[1] >= 100_000


def test_reads_sent_and_received(invented):
    assert nic.InterfaceCounter("eth0").read() == (2000, 1000, 6)
    assert nic.InterfaceCounter("eth1").read() == (22, 18446744073709551000, 1)


def test_unknown_interface_is_one_clear_line(invented):
    with pytest.raises(UserError, match=r"^network\.interface: no interface 'eth7'; there is: lo, eth0, eth1, eth10$"):
        nic.InterfaceCounter("eth7")


def test_null_where_nothing_can_be_read(monkeypatch, tmp_path):
    assert nic.InterfaceCounter(None).read() is None
    monkeypatch.setattr(nic, "COUNTERS", tmp_path / "absent")
    monkeypatch.setattr(nic, "ROUTES", tmp_path / "absent")
    assert nic.InterfaceCounter("en0").read() is None
    assert nic.find_interface(True) is nic.find_interface(False, {}) is None


def test_an_interface_that_goes_away_reads_null(invented):
    counter = nic.InterfaceCounter("eth10")
    nic.COUNTERS.write_text("\n".join(line for line in COUNTERS.splitlines() if "eth10" not in line))
    assert counter.read() is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "eth1"),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, "eth0"),
        ({"HOROVOD_GLOO_IFACE": "eth10", "NCCL_SOCKET_IFNAME": "eth0"}, "eth10"),
        ({"NCCL_SOCKET_IFNAME": "=eth1"}, "eth1"),
        ({"NCCL_SOCKET_IFNAME": "ib,eth"}, "eth0"),
        ({"GLOO_SOCKET_IFNAME": "eth"}, "eth1"),
        ({"GLOO_SOCKET_IFNAME": "gone0,eth10"}, "eth10"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "eth1"),
        ({"NCCL_SOCKET_IFNAME": "=gone0,eth10"}, "eth10"),
        ({"NCCL_SOCKET_IFNAME": "^lo,eth1"}, "eth0"),
        ({"NCCL_SOCKET_IFNAME": "^=lo,eth1"}, "eth0"),
        ({"NCCL_SOCKET_IFNAME": "^eth0,eth1"}, None),
        ({"NCCL_SOCKET_IFNAME": "^=eth0,eth1"}, "eth10"),
        ({"GLOO_SOCKET_IFNAME": ""}, "eth1"),
    ],
)
def test_finds_the_interface_between_hosts(invented, environment, expected):
    assert nic.find_interface(False, environment) == expected


def test_one_host_talks_over_loopback(invented):
    assert nic.find_interface(True, {"GLOO_SOCKET_IFNAME": "eth0"}) == "lo"


def test_no_default_route(invented):
    nic.ROUTES.write_text(ROUTES.splitlines()[0] + "\n")
    assert nic.find_interface(False, {}) is None
