"""What checkpoints cost: the tool measures both kinds of turns, and what results/README.md says is what it measured."""

import json
from pathlib import Path

import pytest

from suite.studies.runner import ROOT
from tests.distributed.forked import fork

RECORD = ROOT / "results/cpu-2core/checkpoint/vgg16-none.json"


def test_what_is_written_of_it_is_what_was_measured() -> None:
    found = json.loads(RECORD.read_text())
    ratio, stall = found["ratio"], found["stall"]["mean"]
    said = " ".join((ROOT / "results/README.md").read_text(encoding="utf-8").split())
    assert f"for {stall * 1e3:.0f} ms while {found['checkpoint_bytes'] / 1e6:.0f} MB are copied" in said
    assert f"{found['stall_share']:.2%} of the {found['every']} steps".replace("%", " %") in said
    assert (
        f"take {ratio['median']:.3f} times as long as steps without [{ratio['p10']:.3f} - {ratio['p90']:.3f}]" in said
    )
    assert found["stall_share"] < 0.02


@pytest.mark.slow
def test_turns_with_and_without_a_checkpoint(tmp_path: Path) -> None:
    words = [
        "--model=resnet20",
        "--compressor=topk",
        "--batch=4",
        "--every=3",
        "--warmup=1",
        "--turns=2",
        "--engine=torch",
    ]
    ended = fork("torch", 2, [*words, f"--json={tmp_path / 'it.json'}"], tmp_path, script="-m suite bench checkpoint")
    assert ended.code == 0, ended.said
    found = json.loads((tmp_path / "it.json").read_text())
    assert found["processes"] == 2 and found["stall"]["mean"] > 0
    # Parameters and momentum of 272,474 elements, and the residual of each of two ranks.
    assert found["checkpoint_bytes"] > 4 * 4 * 272_474
    assert f"{found['stall_share']:.2%} of 3 steps" in ended.out
