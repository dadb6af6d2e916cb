"""What each rank is told, beside what the launchers themselves would say."""

from wirebench.cluster.plan import make_plan
from wirebench.cluster.ranks import environment
from wirebench.comm.launch import launched

UNEVEN = make_plan("2+3", "1gbit")
PLACES = [(0, 5, 0, 2), (1, 5, 1, 2), (2, 5, 0, 3), (3, 5, 1, 3), (4, 5, 2, 3)]
"""Rank, size, local rank and local size of each."""
TYPED = "wirebench cluster run --layout 2+3 -- python train.py"


def test_torch_ranks():
    told = [environment({"HOME": "/h"}, "torch", UNEVEN, rank, 21_000, "/counts", TYPED) for rank in range(5)]
    assert [(*launched(one).engines, *launched(one)[2:6]) for one in told] == [("torch", *place) for place in PLACES]
    assert all(one["MASTER_ADDR"] == "10.77.1.1" and one["MASTER_PORT"] == "21000" for one in told)
    assert all(one["GLOO_SOCKET_IFNAME"] == "eth0" and one["WIREBENCH_COUNTS"] == "/counts" for one in told)
    assert all(one["HOME"] == "/h" and one["OMP_NUM_THREADS"] == "1" for one in told)
    assert all(launched(one).sharing == 5 for one in told), "all ranks of the machine share its cores"


def test_horovod_ranks():
    told = [environment({}, "horovod", UNEVEN, rank, 21_000, "/counts", TYPED) for rank in range(5)]
    assert [(*launched(one).engines, *launched(one)[2:6]) for one in told] == [("horovod", *place) for place in PLACES]
    cross = [(one["HOROVOD_CROSS_RANK"], one["HOROVOD_CROSS_SIZE"]) for one in told]
    assert cross == [("0", "2"), ("0", "2"), ("1", "2"), ("1", "2"), ("0", "1")]
    assert told[4]["HOROVOD_HOSTNAME"] == "h1" and told[4]["HOROVOD_GLOO_IFACE"] == "eth0"
    assert told[4]["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.77.0.1"
    assert told[4]["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "21000"


def test_one_host_talks_to_itself():
    told = environment({}, "horovod", make_plan("2", "1gbit"), 1, 21_000, "", TYPED)
    assert told["GLOO_SOCKET_IFNAME"] == told["HOROVOD_GLOO_IFACE"] == "lo"


def test_another_launchers_words_are_not_kept():
    base = {
        "HOROVOD_RANK": "7",
        "HOROVOD_SIZE": "8",
        "OMPI_COMM_WORLD_RANK": "7",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "HOROVOD_CYCLE_TIME": "5",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "3",
    }
    told = environment(base, "torch", UNEVEN, 0, 1, "", TYPED)
    assert launched(told).launcher == "torchrun"
    assert told["HOROVOD_CYCLE_TIME"] == "5" and told["OMP_NUM_THREADS"] == "3"
    assert told["GLOO_SOCKET_IFNAME"] == "eth0" and "OMPI_COMM_WORLD_RANK" not in told
    base = {"RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "elsewhere"}
    assert not base.keys() & environment(base, "horovod", UNEVEN, 0, 1, "", TYPED).keys()


def test_ranks_are_told_what_was_typed_and_their_own_links_rate():
    plan = make_plan("1+2", "1gbit,25mbit", dilation=10)
    told = [environment({"WIREBENCH_LINK_MBIT": "7"}, "torch", plan, rank, 1, "", TYPED) for rank in range(3)]
    assert [one["WIREBENCH_LINK_MBIT"] for one in told] == ["100", "2.5", "2.5"]
    assert all(one["WIREBENCH_LAUNCHED_BY"] == TYPED for one in told)
    alone = environment({"WIREBENCH_LINK_MBIT": "7"}, "torch", make_plan("2", "1gbit"), 0, 1, "", TYPED)
    assert "WIREBENCH_LINK_MBIT" not in alone  # its ranks use no link
