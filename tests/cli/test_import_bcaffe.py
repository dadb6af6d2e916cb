"""wirebench trace import: a layer log becomes a trace; what is no such log is one line."""

from pathlib import Path

import pytest

from tests.cli.verbs import verb
from wirebench.simulation import trace

main = verb("trace", "import")

LINES = [
    "I0207 16:23:08.1 35803 distributed.cpp:112] [0, 100, 4000.0, 408]",
    "I0207 16:23:08.2 35803 distributed.cpp:112] [1, 10, 4000.0, 139]",
    "I0207 16:23:08.3 35803 distributed.cpp:112] [2, 50, 1e3, 344]",
    "I0207 16:23:08.4 35803 distributed.cpp:112] [3, 5, 1e3, 100]",
]
LATER = [line.replace("4000.0", "2000.0") for line in LINES]
REPOSITORY = Path(__file__).resolve().parents[2]
LOG = REPOSITORY.parent / "shared/data/b-caffe/tmpcomm.log"


def convert(tmp_path: Path, lines: list[str], *more: str) -> int:
    log, given = tmp_path / "a.log", ["--model", "toy, 2 classes", "--hardware", "K80", "--batch", "8"]
    log.write_text("\n".join(lines) + "\n")
    return main([str(log), *given, "--out", str(tmp_path / "toy.json"), *more])


def test_the_last_pass_of_a_log_is_a_trace(tmp_path: Path) -> None:
    assert convert(tmp_path, [*LINES, *LATER], "--source", "a test's log") == 0
    found = trace.load(tmp_path / "toy.json")
    assert (found.name, found.model, found.hardware, found.batch_size) == ("toy", "toy, 2 classes", "K80", 8)
    assert not found.estimate and found.source.startswith("a test's log: backward times measured in the job")
    assert [(each.numel, each.backward_seconds, each.forward_seconds) for each in found.layers] == [
        (110, 0.002, 0.001), (55, 0.001, 0.0005),
    ]  # fmt: skip


@pytest.mark.skipif(not LOG.exists(), reason="needs the B-Caffe logs, shared/data/b-caffe beside the checkout")
def test_the_shipped_trace_comes_from_the_authors_log(tmp_path: Path) -> None:
    given = ["--model", "GoogLeNet", "--hardware", "K80", "--batch", "64", "--out", str(tmp_path / "a.json")]
    assert main([str(LOG), *given]) == 0
    assert trace.load(tmp_path / "a.json").layers == trace.load(trace.find("googlenet_k80")).layers
