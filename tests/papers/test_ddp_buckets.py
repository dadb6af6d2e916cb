"""Plain DDP with the planner's buckets: what was asked of the planner, and the table of the runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from papers.speed.parts import HOSTS, LISTED, MERGES, ONE, OURS, OWN, BucketMerge
from tests.cli.verbs import ROOT
from tests.cli.verbs import run as wirebench
from tests.flexreduce import run_record
from tests.papers import verb
from tests.papers.records import unlinked, write
from wirebench.planner.ddp_caps import MERGES as SCHEDULES
from wirebench.planner.ddp_caps import caps_words
from wirebench.topology.rates import parse_rate

report = verb.report("speed")


@pytest.mark.parametrize("name", MERGES)
def test_the_planner_answers_what_was_asked_of_it_before_the_runs(name: str, tmp_path: Path) -> None:
    """The caps and both gains are those that `wirebench advise` prints."""
    merge, file = MERGES[name], tmp_path / "found.json"
    one = f"fused:bucket_cap_mb={merge.one}:first_bucket_mb={merge.one}"
    done = wirebench(
        "advise", "--trace", merge.trace, "--speed", 1 / merge.dilation, "--gbit", parse_rate(merge.link) / 1e9,
        "--topology", ROOT / "configs/topologies/4x_1gbit_2cores.toml", "--workers", HOSTS, "--compressors", "none",
        "--schedulers", *SCHEDULES, one, "--all", "--json", file,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert caps_words(merge.caps, merge.gain) in done.stdout
    rows = json.loads(file.read_text())["rows"]
    [gain] = [row["speedup"] for row in rows if (row["scheduler"], row["collective"]) == (one, "ring")]
    assert f"{gain:.2f}" == f"{merge.one_gain:.2f}"


def put(folder: Path, label: str, turn: int, seconds: float, merge: BucketMerge, **more: Any) -> None:
    """A run of a row whose steps take so long."""
    made: dict[str, Any] = run_record("1+1+1+1", seconds)
    made["config"]["data"] = {"name": "synthetic", "batch_size": merge.batch, **more}
    made["config"] |= {"model": {"name": "replay", "trace": merge.trace}, "network": {"dilation": merge.dilation}}
    made["prediction"] = {"messages": 2 + len(label)}
    write(folder / f"{label.replace(' ', '_')}-{turn}", made, label=label, hosts=4, link=merge.link)


def lines_of(folder: Path) -> tuple[str, list[list[str]]]:
    assert report([str(folder)]) == 0
    text = unlinked((folder / "table.md").read_text())
    lines = text.partition("| method ")[2].partition("\n\n")[0].splitlines()[2:]
    return text, [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_gains_are_of_the_same_turns_and_stand_beside_the_planners(tmp_path: Path) -> None:
    merge, out = MERGES["ddp_caps-resnet110"], tmp_path / "resnet110"
    for turn, slower in enumerate((1.0, 1.1, 1.2, 1.3, 1.4)):
        for label, seconds in ((OWN, 0.6), (LISTED, 0.5), (ONE, 0.6 + 0.1 * (turn % 2)), (OURS, 0.4)):
            put(out, label, turn, slower * seconds, merge)
    text, rows = lines_of(out)
    assert [row[0].partition(" (")[0] for row in rows] == [OWN, LISTED, ONE, OURS]
    assert [row[3] for row in rows[:2]] == ["1", "1.20x [1.20 to 1.20]"] and rows[3][3] == "1.50x [1.50 to 1.50]"
    assert rows[2][3] == "0.94x [0.85 to 1.04]"
    assert [row[4] for row in rows] == ["1", "1.25x", "1.19x", "1.25x"]
    assert [row[1] for row in rows] == ["5"] * 4 and rows[0][5:] == ["720.0", "5"]
    assert "`bucket_cap_mb_list=[0.143592, 0.705566, 3.810546, 1.931945]`, `bucket_cap_mb=1.65`" in text
    assert "Links and computing are 5 times slower than in life" in text


def test_another_setting_has_no_prediction_and_mixed_ones_are_refused(tmp_path: Path, capsys: Any) -> None:
    merge, out = MERGES["ddp_caps-resnet18"], tmp_path / "mine"
    other = merge._replace(batch=2 * merge.batch)
    put(out, LISTED, 0, 0.5, other)
    text, [row] = lines_of(out)
    assert row[3:5] == ["-", "-"] and "bucket_cap_mb=" not in text
    put(out, OWN, 0, 0.6, merge)
    assert report([str(out)]) == 2
    assert "mixes settings: data.batch_size is" in capsys.readouterr().err


def test_runs_of_others_have_the_usual_table_whatever_their_folder_is_called(tmp_path: Path) -> None:
    for label in ("DDP", "dense"):
        put(tmp_path / "resnet18", label, 0, 0.6, MERGES["ddp_caps-resnet18"])
    assert report([str(tmp_path / "resnet18")]) == 0
    assert "planner's buckets" not in (tmp_path / "resnet18" / "table.md").read_text()
