"""A user's compressor that breaks the contract: one line that names it, exit code 2, an earlier run left as it was."""

import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.distributed.launch import CONFIG, here

HEAD = """
import torch
from wirebench.gradient.contract import Method
from wirebench.gradient.requests import Sum

class Mine(Method):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
"""
EXCHANGE = """
    def exchange(self, bucket, world):
        total = yield Sum(bucket.grad)
        return total / world.size
"""
BYTES = """
    def wire_bytes(self, numel, size):
        return 4 * numel
"""
BARE = """
from wirebench.gradient.requests import Sum

class Mine:
    owns_momentum = False
    def exchange(self, bucket, world):
        total = yield Sum(bucket.grad)
        return total / world.size
    def wire_bytes(self, numel, size):
        return 4 * numel
    def state_dict(self):
        return {}
    def load_state_dict(self, state):
        pass
"""

DIFFER = "the ranks' averages differ: rank 1's is not rank 0's; they must be equal to the bit"

Try = Callable[..., str]


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Try]:
    """Runs two workers with a compressor of this text, in the folder of an earlier run; returns what went wrong."""
    monkeypatch.syspath_prepend(tmp_path)
    folder, package = tmp_path / "run", tmp_path / "own_plugins"

    def run(text: str, *overrides: str, code: int = 2) -> str:
        package.mkdir()
        (package / "mine.py").write_text(textwrap.dedent(text))
        assert here(2, [CONFIG, f"output.dir={folder}", "compressor.name=none", "train.max_steps=2"]) == 0
        before = (folder / "record.json").read_bytes()
        capsys.readouterr()
        chosen = ["compressor.name=own_plugins.mine", "compressor.dense_below=0", "train.max_steps=4", *overrides]
        assert here(2, [CONFIG, f"output.dir={folder}", *chosen]) == code
        said = capsys.readouterr().err
        if code == 2 and not re.search(r"step \d", said):
            assert (folder / "record.json").read_bytes() == before
            assert not list(folder.glob("earlier-*"))
        assert said.count("\n") == (1 if code else 0), said
        return said

    yield run
    for name in [name for name in sys.modules if name.startswith("own_plugins")]:
        del sys.modules[name]


@pytest.mark.parametrize("text", [HEAD + EXCHANGE + BYTES, BARE], ids=["method", "bare"])
def test_what_keeps_the_contract_trains(text: str, tried: Try) -> None:
    assert not tried(text, "output.health_every=2", code=0)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + BYTES, "has no exchange(); Method"),
        (HEAD + EXCHANGE, "has no wire_bytes(); Method"),
        (BARE.replace("    owns_momentum = False\n", ""), "has no owns_momentum; Method"),
        (BARE.replace("    def state_dict(self):\n        return {}\n", ""), "has no state_dict(); Method"),
        (
            HEAD.replace("super().__init__()", "self.scale = scale") + EXCHANGE + BYTES,
            "cannot give its state ('Mine' object has no attribute 'shared'); does its constructor call super().",
        ),
        (
            HEAD + BYTES + "    def exchange(self, bucket, world):\n        return bucket.grad\n",
            "its exchange must be a generator that yields requests, and is a tensor of shape (68,)",
        ),
        (
            HEAD + BYTES + "    def exchange(self, bucket, world):\n        yield bucket.grad\n",
            "its exchange must yield requests (wirebench/gradient/requests.py), not a tensor of shape (68,)",
        ),
        (
            HEAD + BYTES + "    def exchange(self, bucket, world):\n        yield Sum(bucket.grad)\n",
            "its exchange must return the average, of shape (68,), not a NoneType",
        ),
        (
            HEAD + BYTES + EXCHANGE.replace("/ world.size", "[:3]"),
            "its exchange must return the average, of shape (68,), not a tensor of shape (3,)",
        ),
        (
            HEAD + BYTES + EXCHANGE.replace("/ world.size", "/ world.size + world.rank"),
            f"a trial before the first step: {DIFFER}",
        ),
    ],
    ids=lambda value: value[:30] if "must" in value or "has no" in value else "",
)
def test_a_broken_contract_is_one_line_before_anything_is_written(text: str, words: str, tried: Try) -> None:
    assert tried(text).startswith(f"error: compressor.name: 'own_plugins.mine': {words}")


LATER = EXCHANGE.replace("/ world.size", "/ world.size + (world.rank if world.step > 1 else 0)")


def test_averages_that_differ_are_found_by_a_reading(tried: Try) -> None:
    said = tried(HEAD + BYTES + LATER, "output.health_every=3", "train.checkpoint_every_steps=0")
    assert said == f"error: compressor.name: 'own_plugins.mine': step 3: {DIFFER}\n"


@pytest.mark.parametrize("every", [3, 0], ids=["before a checkpoint", "at the end of an epoch"])
def test_parameters_that_differ_are_found_before_they_are_kept(every: int, tried: Try, tmp_path: Path) -> None:
    said = tried(HEAD + BYTES + LATER, f"train.checkpoint_every_steps={every}", "output.health_every=0")
    assert said.startswith(
        f"error: step {3 if not every else 2}: the ranks' parameters differ: rank 1 has other ones than rank 0, so "
        "compressor.name = own_plugins.mine or scheduler.name = wfbp did not average alike"
    )
    assert not list((tmp_path / "run" / "checkpoints").glob("step-*"))
