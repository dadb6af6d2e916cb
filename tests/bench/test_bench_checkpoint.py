"""What checkpoints cost: the tool measures both kinds of turns."""

import json
from pathlib import Path

import pytest

from tests.distributed.forked import fork


@pytest.mark.slow
def test_turns_with_and_without_a_checkpoint(tmp_path: Path) -> None:
    words = ["--model=resnet20", "--compressor=topk", "--batch=4", "--every=3", "--warmup=1", "--turns=2"]
    words += ["--engine=torch", f"--json={tmp_path / 'it.json'}"]
    ended = fork("torch", 2, words, tmp_path, script="-m wirebench bench checkpoint")
    assert ended.code == 0, ended.said
    found = json.loads((tmp_path / "it.json").read_text())
    assert found["processes"] == 2 and found["stall_share"] > 0
    # Parameters and momentum of 272,474 elements, and the residual of each of two ranks.
    assert found["checkpoint_bytes"] > 4 * 4 * 272_474
    assert [len(seconds) for seconds in found["turns"].values()] == [2, 2]
    assert f"{found['stall_share']:.2%} of 3 steps" in ended.out
