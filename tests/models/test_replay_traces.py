"""The traces that a replayed model takes: the shipped ones with their examples, and mistakes in others."""

import re
from pathlib import Path

import pytest

from tests.models.test_replay import CLASSES, IMAGE, LAYERS, batch, ticking, write
from wirebench import models
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.simulation.trace import SHIPPED, Paced, TraceLayer, load
from wirebench.training.loss import cross_entropy

ROOT = Path(__file__).resolve().parents[2]
DAILY = ("googlenet_k80", "resnet20_gtx1080ti")
"""Traces whose steps are timed by day: many layers, and short ones. Large ones take seconds to have memory made."""


BY_NAME = [
    pytest.param(path, marks=[] if path.stem in DAILY else pytest.mark.weekly)
    for path in sorted(SHIPPED.glob("*.json"))
]


@pytest.mark.parametrize("path", sorted((ROOT / "configs/replay").glob("*.toml")), ids=lambda path: path.stem)
def test_examples_resolve_with_the_batch_size_of_their_traces(path):
    settings = resolve(loader.load(path))
    trace = load(SHIPPED / f"{settings.model.options['trace']}.json")
    head = path.read_text()
    assert settings.data.batch_size == trace.batch_size
    assert f"{settings.data.options['num_classes']} classes" in trace.model
    assert f"configs/replay/{path.name}" in head
    kind = "estimated" if trace.estimate else "measured"
    said = re.search(rf"(?:{kind}|reconstructed): ([0-9.]+) ms a step", head)
    assert said and float(said[1]) == pytest.approx(1e3 * (trace.forward_seconds + trace.backward_seconds), rel=0.01)


@pytest.mark.parametrize("path", BY_NAME, ids=lambda path: path.stem)
def test_a_step_takes_the_time_of_a_shipped_trace(path, monkeypatch):
    trace, clock = load(path), ticking(monkeypatch)
    model, (images, labels) = models.build("replay", CLASSES, IMAGE, trace=str(path)), batch(trace.batch_size)
    took = clock.timed(lambda: cross_entropy(model(images), labels).backward())
    # A look at the clock takes time, too, and layers of no length have nothing to make up for it with.
    assert took == pytest.approx(trace.forward_seconds + trace.backward_seconds, abs=1e-6 * (2 * len(trace.layers) + 9))


@pytest.mark.parametrize("path", BY_NAME, ids=lambda path: path.stem)
def test_every_layer_of_a_shipped_trace_is_a_module_that_begins(path):
    """Split schedules update layer by layer: a parameter of the model itself would be waited for before all others."""
    begun = []
    model, (images, _) = models.build("replay", CLASSES, IMAGE, trace=str(path)), batch()
    assert isinstance(model, Paced)
    model.dilation = 0.0
    for name, module in model.named_modules():
        own = [leaf for leaf, _ in module.named_parameters(recurse=False)]
        if own:
            module.register_forward_pre_hook(lambda _module, _inputs, name=name: begun.append(name))
    model(images)
    layers = [layer.name.rpartition(".")[0] for layer in load(path).layers if layer.numel]
    assert list(dict.fromkeys(begun)) == list(dict.fromkeys(layers)) and "" not in layers


def test_every_shipped_model_has_an_example():
    used = {loader.load(path).model.options["trace"] for path in (ROOT / "configs/replay").glob("*.toml")}
    shipped = {path.stem: load(path).model for path in SHIPPED.glob("*.json")}
    assert used <= shipped.keys()
    assert {shipped[name] for name in used} == set(shipped.values())


def test_the_docs_list_every_shipped_trace():
    """With its numbers; a number may be rounded to what is printed."""
    listed = re.findall(
        r"^\| `(\w+)` \| ([^|]+) \| (\d+) \| ([\d.]+) ms \| ([\d.]+) ms \| (measured|estimated|reconstructed) \|$",
        (ROOT / "docs/traces.md").read_text(),
        re.MULTILINE,
    )
    assert [name for name, *_ in listed] == sorted(path.stem for path in SHIPPED.glob("*.json"))
    for name, model, batch_size, forward, backward, kind in listed:
        trace = load(SHIPPED / f"{name}.json")
        assert trace.model.startswith(model)
        assert (int(batch_size), kind == "measured") == (trace.batch_size, not trace.estimate)
        assert float(forward) == pytest.approx(1e3 * trace.forward_seconds, abs=0.006)
        assert float(backward) == pytest.approx(1e3 * trace.backward_seconds, abs=0.006)


def test_the_example_in_the_docs_is_a_trace(tmp_path):
    text = re.search(r"```json\n(.*?)```", (ROOT / "docs/traces.md").read_text(), re.DOTALL)
    assert text
    path = tmp_path / "mine.json"
    path.write_text(text[1])
    assert models.build("replay", CLASSES, IMAGE, trace=str(path)) and load(path).numel == 4704 + 320


@pytest.mark.parametrize("name", ["forward.weight", "stem"])
def test_a_name_that_no_parameter_can_have_is_refused(tmp_path, name):
    path = write(tmp_path, 0.0, (*LAYERS, TraceLayer(name, 2, 0.0, 0.0)))
    with pytest.raises(UserError, match=f"^{path}: layer {name}: .*already exists"):
        models.build("replay", CLASSES, IMAGE, trace=path)


def test_the_default_trace_is_shipped():
    assert sum(p.numel() for p in models.build("replay", CLASSES, IMAGE).parameters()) == 269_722
