"""Pods of a cluster: what is left of its links for a pod's ranks and for a shard's replicas."""

from dataclasses import replace

import pytest

from wirebench.errors import UserError
from wirebench.topology import presets
from wirebench.topology.pods import pod, replicas
from wirebench.topology.processor import Processor
from wirebench.topology.tree import Link, Topology

FAST, SLOW = Link(1e-6, 10e9), Link(1e-5, 1e9)


def test_a_machines_link_is_shared_by_its_shards() -> None:
    whole = Topology.parse("4+4+4", [FAST, SLOW])
    between = replicas(whole, 4)
    assert between.size == 3 and between.root.links[0].bytes_per_second == SLOW.bytes_per_second / 4
    assert all(between.branches[(place,)].links == (FAST,) for place in range(3))
    within = pod(whole, 4)
    assert within.size == 4 and within.branches[(0,)].links == (FAST,) and within.layout == "4"


def test_two_pods_of_two_hosts_share_their_switches_links() -> None:
    """What the study pods emulates: the hosts' own links are not shared, the one between the switches is."""
    whole = Topology.parse("(1+1)+(1+1)", [Link(0, 1e15), FAST, SLOW])
    between = replicas(whole, 2)
    assert between.ranks == (0, 1) and between.root.links[0].bytes_per_second == SLOW.bytes_per_second / 2
    assert between.branches[(0,)].links == (FAST,)
    within = pod(whole, 2)
    assert within.size == 2 and within.branches[(0,)].links == (FAST,) and within.branches[(0,)].degree == 2


def test_rails_give_each_shard_its_own_link() -> None:
    network = presets.find("100gbe")
    whole = presets.cluster(network, 32, 8, rails=True)
    assert replicas(whole, 8).root.links[0].bytes_per_second == network.bytes_per_second
    # Half a machine is a pod: two replicas in each machine, with four lanes each.
    half = replicas(whole, 4)
    assert half.size == 8 and half.machines == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert half.root.links[0].bytes_per_second == network.bytes_per_second and half.root.links[0].lanes == 2


def test_pods_of_several_machines_send_by_all_their_links() -> None:
    racks = presets.cluster(presets.find("10gbe"), 16, 2, presets.Racks(2))
    between = replicas(racks, 4)
    rate = presets.find("10gbe").bytes_per_second
    # A rack is a pod: its two machines' links carry two shards each, its link to the spine all four.
    assert between.size == 4 and between.root.links[0].bytes_per_second == pytest.approx(2 * rate / 4)
    assert between.branches[(0,)].links[0].bytes_per_second == rate / 2
    assert pod(racks, 4).machines == ((0, 1), (2, 3))


def test_shared_cores_and_messages_are_divided() -> None:
    whole = replace(Topology.parse("2+2", [FAST, SLOW]), processor=Processor(cores=2), shared=(Link(1e-6, 4e9),))
    between = replicas(whole, 2)
    assert between.processor.cores == 1 and between.processor.crowded(2) == whole.processor.crowded(4)
    assert between.shared == (Link(2e-6, 2e9),) and between.native == ()


@pytest.mark.parametrize(
    ("layout", "shards", "words"),
    [
        ("2+2", 4, "4 workers are not several pods of 4"),
        ("2+2", 3, "4 workers are not several pods of 3"),
        ("2+2", 0, "not several pods of 0"),
        ("4+4+4", 6, "do not fit 4[+]4[+]4: one has a part of a machine"),
    ],
)
def test_pods_that_do_not_fit_are_one_line(layout: str, shards: int, words: str) -> None:
    for part in (pod, replicas):
        with pytest.raises(UserError, match=words):
            part(Topology.parse(layout, [FAST, SLOW]), shards)
