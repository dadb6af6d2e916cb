"""Hosts that leave an elastic job and join it: it goes on with the steps since the last commit done again."""

import os
from pathlib import Path

import pytest

from tests.distributed.ends import record
from tests.elastic.agents import FORKING, PLAIN, job

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give hosts names")]


@pytest.mark.parametrize(("mirror", "torchrun"), [(0, PLAIN), (1, FORKING)], ids=["plain", "forking"])
def test_a_world_shrinks_and_grows_again(mirror: int, torchrun: tuple[str, ...], tmp_path: Path) -> None:
    settings = ["train.max_steps=160", f"train.mirror={mirror}"]
    with job(tmp_path, "2:3", settings, torchrun=torchrun) as agents:
        for host in ("h0", "h1", "h2"):
            agents.start(host)
        agents.until(lambda: any("step-00000006-of-0003" in name for name in agents.memory_of("h0")))
        agents.lose("h2")
        agents.until(lambda: any("of-0002" in name for name in agents.memory_of("h0")))
        agents.start("h3")
        agents.until(lambda: any("of-0003" in name for name in agents.memory_of("h3")))
        assert set(agents.wait().values()) == {0}, agents.said()
        ended = record(agents.run)
        assert (ended["status"], ended["world_size"]) == ("finished", 3)
        shrunk, grown = ended["worlds"]
        assert (shrunk["workers_before"], shrunk["workers"]) == (3, 2)
        assert (grown["workers_before"], grown["workers"]) == (2, 3)
        assert len(shrunk["lost_ranks"]) == 1 - mirror and grown["lost_ranks"] == []
        assert (0.1 < shrunk["lost_residual"] < 0.6) == (not mirror) and grown["lost_residual"] == 0
        assert 0 <= shrunk["steps_lost"] <= 3 and shrunk["seconds"] > 0
        assert [entry["epoch"] for entry in ended["history"]] == list(range(len(ended["history"])))
        assert not any(agents.memory_of(host) for host in ("h0", "h1", "h3"))
