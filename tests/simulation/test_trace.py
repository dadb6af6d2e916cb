"""Traces: what is saved reads back, what is wrong is named by file, layer and key."""

import json
from typing import Any

import pytest

from wirebench.errors import UserError
from wirebench.simulation.trace import SHIPPED, Trace, TraceLayer, find, load

LAYERS = (
    TraceLayer("conv.weight", 24, 0.25, 0.5, (2, 3, 2, 2)),
    TraceLayer("pool", 0, 0.125, 0.0625),
    TraceLayer("linear.weight", 7, 0.5, 1.0),
    TraceLayer("scale", 1, 0.0, 0.0, ()),
)
TRACE = Trace("toy", "a toy", "none", 32, True, "made up", "2.15.0", LAYERS)


def table(**changes: Any) -> dict[str, Any]:
    row = {"name": "a", "numel": 6, "forward_seconds": 0, "backward_seconds": 1.5}
    head: dict[str, Any] = {"name": "t", "model": "m", "hardware": "h", "batch_size": 1, "estimate": False}
    head |= {"source": "s", "torch": "2", "layers": [{**row, **changes.pop("layer", {})}]}
    return {key: value for key, value in {**head, **changes}.items() if value is not None}


def refusal(tmp_path, content: Any) -> str:
    path = tmp_path / "bad.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_what_is_saved_reads_back_and_the_totals_are_sums(tmp_path):
    path = tmp_path / "toy.json"
    TRACE.save(path)
    assert load(path) == TRACE
    assert (TRACE.numel, TRACE.forward_seconds, TRACE.backward_seconds) == (32, 0.875, 1.5625)
    assert sum(line.startswith('    {"name"') for line in path.read_text().splitlines()) == len(LAYERS)


def test_the_smallest_trace_is_taken(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(json.dumps(table()))
    assert load(str(path)).layers == (TraceLayer("a", 6, 0, 1.5),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hardware": None}, "hardware: is missing"),
        ({"hardwear": "x"}, "hardwear: no such key; did you mean 'hardware'?"),
        ({"batch_size": 0}, "batch_size: needs 1 to 1000000000, got 0"),
        ({"batch_size": 1.5}, "batch_size: needs a whole number, got 1.5"),
        ({"estimate": 1}, "estimate: needs true or false, got 1"),
        ({"layers": []}, "layers: needs a list of at least one layer"),
        ({"layers": [3]}, "layers[0]: needs an object with keys, got int"),
        ({"layers": table()["layers"] * 2}, "layers[1] (a): name: another layer has it already"),
        ({"layer": {"numel": 0}}, "layers: at least one needs parameters"),
        ({"layer": {"numel": 10**15}}, "layers[0] (a): numel: needs 0 to 100000000000, got 1000000000000000"),
        ({"layer": {"forward_seconds": -0.1}}, "layers[0] (a): forward_seconds: needs 0 to 100000, got -0.1"),
        ({"layer": {"backward_seconds": "1"}}, "layers[0] (a): backward_seconds: needs a number, got '1'"),
        ({"layer": {"shape": [2, 2]}}, "layers[0] (a): shape: [2, 2] does not have numel = 6 elements"),
        ({"layer": {"shape": [-2, -3]}}, "layers[0] (a): shape: [-2, -3] does not have numel = 6 elements"),
        ({"layer": {"shape": 6}}, "layers[0] (a): shape: needs a list of a whole number"),
        ({"layer": {"seconds": 1}}, "layers[0] (a): seconds: no such key; "),
        ({"layer": {"name": "a..b"}}, "layers[0]: name: needs words joined by dots, got 'a..b'"),
        ({"layer": {"name": 3}}, "layers[0]: name: needs a string, got 3"),
    ],
)
def test_a_mistake_is_named_by_layer_and_key(tmp_path, changes, words):
    assert refusal(tmp_path, table(**changes)).startswith(words)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a": 1}}'])
def test_what_is_no_json_is_refused(tmp_path, text):
    assert refusal(tmp_path, text).startswith("not valid JSON: ")


def test_what_is_no_object_is_refused(tmp_path):
    assert refusal(tmp_path, [table()]) == "needs an object with keys, got list"


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"none.json: cannot be read: No such file"):
        load(tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        load(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"binary.json: not a text file"):
        load(tmp_path / "binary.json")


def test_a_bare_name_is_a_shipped_trace():
    assert find("resnet20_gtx1080ti") == SHIPPED / "resnet20_gtx1080ti.json"
    assert str(find("here.json")) == "here.json"
    assert str(find("a/b")) == "a/b"
    with pytest.raises(UserError, match=r"^model.trace: no trace 'resnet21_gtx1080ti', .*did you mean 'resnet20_gtx"):
        find("resnet21_gtx1080ti")


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_traces_are_good(path):
    trace = load(path)
    assert trace.name == path.stem
    assert trace.source
    assert trace.estimate == ("assumed" in trace.source)
    assert 1.4 < trace.backward_seconds / trace.forward_seconds < 2.5
    assert path.stat().st_size < 50_000
