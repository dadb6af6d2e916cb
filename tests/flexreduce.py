"""Cells and records of FlexReduce's measurements, made up so that the answers are known."""

import copy
import dataclasses
import json
from typing import Any

from papers.flexreduce import measured as paper
from tests.cli.test_show import RECORD
from wirebench.record import collective_results
from wirebench.record.collective_results import AllReduceResult
from wirebench.topology.tree import Topology

ENVIRONMENT: dict[str, Any] = {
    "cpu": {"model": "AMD EPYC", "cores": 2},
    "git": {"commit": "0123456789abcdef", "dirty": False},
    "versions": {"torch": "2.15.0"},
    "command": "wirebench bench collectives",
}
RATE = 100e6
SMALL, LARGE = 120_000, 6_000_000


def cell(layout="2+3", collective="ring", items=LARGE, seconds=(2.0, 2.0, 2.0), **changes):
    shape = items, 4, Topology.parse(layout).size, layout, "torch", "gloo", 1, 4
    made = AllReduceResult(collective, collective, *shape, tuple(seconds), 1e-7, True, None, None)
    return dataclasses.replace(made, **changes)


def layout_cells(layout, items=LARGE, quality=1.0):
    """A ring that fills its links, FlexReduce that reaches `quality` of the ideal saving, and repeats that vary."""
    topology = Topology.parse(layout)
    crossing = 2 * (topology.size - 1) / topology.size * items * 4
    ring = crossing * 8 / RATE / 0.95
    saved = ring * (1 - quality * paper.ideal_saving(layout))
    times = {"ring": ring, "native": 0.9 * ring, "flexreduce": saved}
    times["blueconnect"] = saved * 1.01 if paper.is_even(layout) else ring
    waves = (1.0, 1.02, 0.99, 1.3, 1.01)
    machines = tuple((crossing, crossing, crossing, crossing) for _ in topology.machines)
    return [
        cell(layout, name, items, [second * wave for wave in waves], machines=machines if name == "ring" else None)
        for name, second in times.items()
    ]


def run_record(layout="2+3", seconds=1.0, status="finished"):
    record = copy.deepcopy(RECORD)
    record["config"]["data"]["batch_size"] = 4
    size = Topology.parse(layout).size
    steps = {"median": seconds, "p10": seconds, "p90": seconds}
    environment = {**ENVIRONMENT, "backend": "gloo"}
    return {**record, "status": status, "step_seconds": steps, "world_size": size, "environment": environment}


def put_cells(folder, layout, found, **header):
    about = {"engine": "torch", "backend": "gloo", "environment": ENVIRONMENT, **header}
    collective_results.save(folder / "cells" / f"{layout}.jsonl", about, found)


def put_run(folder, layout, name, turn, **changes):
    path = folder / "end_to_end" / layout / f"{name}-{turn}"
    path.mkdir(parents=True)
    (path / "record.json").write_text(json.dumps(run_record(layout, **changes)))
