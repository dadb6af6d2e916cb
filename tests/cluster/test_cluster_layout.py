"""Rates, layouts and cables, from words to a plan."""

import pytest

from wirebench.cluster import plan
from wirebench.cluster.network import QUEUE_BYTES, frame_bytes, largest_packet, shape
from wirebench.cluster.plan import Cable, Host, make_plan
from wirebench.topology.rates import parse_rate, show_rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1gbit", 1e9), ("2.5Gbit", 2.5e9), ("200mbit", 2e8), ("100kbit", 1e5), ("9600bit", 9600.0), (" 10mbit", 1e7)],
)
def test_rates_are_bits_per_second(text: str, rate: float):
    assert parse_rate(text) == rate
    assert parse_rate(show_rate(rate)) == rate


def test_a_flat_layout():
    planned = make_plan("2+3", "1gbit,200mbit")
    assert planned.hosts == (Host("h0", "10.77.1.1", (0, 1)), Host("h1", "10.77.1.2", (2, 3, 4)))
    assert planned.cables == (Cable("h0", "s0", 1e9), Cable("h1", "s0", 2e8))
    assert (planned.size, planned.switches, planned.host_of[4]) == (5, ("s0",), "h1")
    assert plan.load(planned.dump()) == planned


def test_one_machine_has_a_link_too():
    planned = make_plan("4", "1gbit")
    assert [host.ranks for host in planned.hosts] == [(0, 1, 2, 3)]
    assert planned.cables == (Cable("h0", "s0", 1e9),)


def test_switches_below_the_root():
    planned = make_plan("(2+1)+(2+2)", "1gbit;200mbit")
    assert planned.cables == (
        Cable("s1", "s0", 2e8),
        Cable("h0", "s1", 1e9),
        Cable("h1", "s1", 1e9),
        Cable("s2", "s0", 2e8),
        Cable("h2", "s2", 1e9),
        Cable("h3", "s2", 1e9),
    )
    assert planned.switches == ("s0", "s1", "s2")


def test_dilation_slows_the_cables():
    planned = make_plan("1+1", "1gbit", 10.0)
    assert [cable.bits_per_second for cable in planned.cables] == [1e8, 1e8]


@pytest.mark.parametrize("rate", [1e4, 1e5, 1e6, 1e7, 3.3e7, 1e8, 1e9, 1e10, 1e12])
def test_what_a_link_holds_at_once(rate: float):
    packet = largest_packet(make_plan("1+1", show_rate(rate)))
    words = shape("eth0", rate, packet).split()
    value = dict(zip(words[6::2], words[7::2], strict=True))
    burst, limit = int(value["burst"]), int(value["limit"])
    assert value["rate"] == f"{rate:.0f}bit"
    assert frame_bytes(packet) + 14 < packet <= 65_536
    assert burst > packet * 1.05, "a packet that is longer, headers of its parts included, is cut up"
    assert limit == QUEUE_BYTES
    port = shape("to-h0", rate, packet).split()
    assert port[port.index("burst") + 1] == str(2 * burst), "the switch must never be the slower of the two"
    # A short message is early by so much; below 33 Mbit/s a packet takes longer.
    assert rate < 3e7 or burst * 8 / rate < 0.005


def test_packets_suit_the_slowest_link():
    assert largest_packet(make_plan("1+1", "1gbit,100mbit")) == largest_packet(make_plan("1+1", "100mbit"))
    assert largest_packet(make_plan("1+1", "1gbit,100mbit")) < largest_packet(make_plan("1+1", "1gbit"))
