"""Counters and counts, and the table that has them side by side."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tests.distributed.launch import Ended
from wirebench.cluster.plan import make_plan
from wirebench.cluster.traffic import difference, read_counters, read_counts, read_levels, traffic_table
from wirebench.errors import UserError
from wirebench.record import collective_results

PLAN = make_plan("1+2", "200mbit")
CARRIED = {"h0": (1_500, 2_000), "h1": (2_000, 1_500)}


def shown(counts: dict[str, int] | None) -> list[list[str]]:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(traffic_table(PLAN, CARRIED, counts))
    return [line.split() for line in capture.get().splitlines()]


def write(folder: Path, rank: int, sent_to: dict[str, int], complete: bool = True) -> None:
    content = {"rank": rank, "host": "any", "sent_to": sent_to, "complete": complete}
    (folder / f"rank-{rank}.json").write_text(json.dumps(content))


def test_the_table():
    assert shown({"h0": 1_000, "h1": 0})[1:] == [
        ["h0", "0", "200mbit", "1,500", "2,000", "1,000", "1.500"],
        ["h1", "1,2", "200mbit", "2,000", "1,500", "0", "-"],
    ]
    assert shown({})[1][-2:] == ["-", "-"]
    assert shown(None)[0] == ["host", "ranks", "link", "sent", "received"]


def test_what_stays_in_a_host_is_not_counted(tmp_path: Path):
    write(tmp_path, 0, {"1": 10, "2": 20})
    write(tmp_path, 1, {"0": 100, "2": 1_000})
    write(tmp_path, 2, {"0": 200, "1": 2_000})
    assert read_counts(tmp_path, PLAN) == {"h0": 30, "h1": 300}


def test_counts_are_whole_or_none(tmp_path: Path):
    write(tmp_path, 0, {"1": 10})
    write(tmp_path, 1, {})
    assert read_counts(tmp_path, PLAN) == {}
    write(tmp_path, 2, {}, complete=False)
    assert read_counts(tmp_path, PLAN) == {}


def test_difference():
    assert difference({"h0": (1, 2)}, {"h0": (11, 22)}) == {"h0": (10, 20)}


def test_a_host_that_is_gone():
    with pytest.raises(UserError, match="taken down"):
        read_counters({"h0": 2**22 + 1})


def test_levels_are_read_off_the_switches_ports(tmp_path: Path) -> None:
    """A host's bytes come in at its port; what a lower switch sends up leaves its pod."""
    names = {"lo": (1, 1), "to-h0": (100, 7), "to-h1": (50, 7), "up-s1": (9, 120), "to-s1": (120, 9)}
    lines = [f"{name}: {got} 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0" for name, (got, sent) in names.items()]
    file = tmp_path / "dev"
    file.write_text("\n".join(["head", "head", *lines]) + "\n")
    assert read_levels(file) == (150, 120, 1)
    file.write_text("head\nhead\neth0: 1 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0\n")
    assert read_levels(file) is None and read_levels(tmp_path / "none") is None


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", pytest.param("horovod", marks=pytest.mark.weekly)])
def test_sums_in_wire_formats_send_the_bytes_of_their_plans(
    engine: str, cluster: Callable[..., Ended], tmp_path: Path
) -> None:
    """As the interfaces of four hosts count them: scales included, int8 sends 260 bytes where fp32 sends 1,024."""
    path, shares = tmp_path / "cells.jsonl", {"none": 1, "int8": 260 / 1024, "int4": 132 / 1024}
    words = ["--collectives", "ring", "one_hop", "--wires", *shares, "--sizes", "8m", "--repeats", 5, "--seconds", 1]
    command = ["python", "-m", "wirebench", "bench", "collectives", *words, "--json", path]
    ended = cluster("run", "--hosts", 4, "--link", "1gbit", "--engine", engine, "--", *command)
    assert ended.code == 0, ended.said
    sent: dict[tuple[str, str], float] = {}
    for cell in collective_results.load(path).cells:
        assert cell.right and cell.machines and len(cell.machines) == 4
        for seen_out, seen_in, planned_out, planned_in in cell.machines:
            assert planned_out <= seen_out < 1.05 * planned_out and planned_in <= seen_in < 1.05 * planned_in
        sent[cell.collective, cell.wire or "none"] = sum(machine[0] for machine in cell.machines)
    for (name, wire), each in sent.items():
        assert each == pytest.approx(shares[wire] * sent[name, "none"], rel=0.02), (name, wire)
    assert len(sent) == 6
