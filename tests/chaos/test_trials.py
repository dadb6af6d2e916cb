"""Real faults in a job on an emulated cluster: it is whole again, and every other host names the one that is gone."""

import json
from pathlib import Path

import pytest

from wirebench.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.clock]


@pytest.mark.parametrize(
    "kinds",
    [("nan", "host"), pytest.param(("sigkill",), marks=pytest.mark.weekly)],  # a host that is gone was killed, too
    ids=" and ".join,
)
def test_a_job_is_whole_again_after_each_fault(kinds: tuple[str, ...], namespaces: None, tmp_path: Path, capsys):
    words = ["--hosts", "3", "--kinds", *kinds, "--mtbf", "1", "--out", str(tmp_path)]
    code = main(["chaos", "--trials", str(len(kinds)), *words])
    lines = [json.loads(line) for line in (tmp_path / "elastic.jsonl").read_text().splitlines()[1:]]
    said = capsys.readouterr().err + "\n".join(log.read_text() for log in tmp_path.glob("*/h*.log"))
    # Whether goodput and recovery are within their bounds is the machine's load, too: then 1.
    assert code in (0, 1) and sorted(line["kind"] for line in lines) == sorted(kinds), said
    for line in lines:
        assert not line["hang"] and line["named_by"] == line["due_to_name"] > 0, said
        assert line["lost_residual"] == 0 and line["pause_seconds"] > 0.2 and line["images"] > 0, said
