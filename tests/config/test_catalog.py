"""The catalog: every key of a config and every plugin with its options, as text."""

import dataclasses
import re

import pytest

from wirebench.comm.engine import ENGINES
from wirebench.compose.resolve import KINDS
from wirebench.config import catalog
from wirebench.config.loader import SECTIONS
from wirebench.config.plugins import Plugins


def test_every_key_is_listed_with_its_default():
    text = catalog.sections()
    assert re.findall(r"^\[(\w+)\]  \S", text, re.MULTILINE) == list(SECTIONS)
    for section, part in zip(SECTIONS, re.split(r"^\[\w+\]  \S.*$", text, flags=re.MULTILINE)[1:], strict=True):
        listed = re.findall(r"^  (\w+) = (.+)$", part, re.MULTILINE)
        fields = [f for f in dataclasses.fields(SECTIONS[section]) if f.name != "options"]
        assert listed == [(f.name, repr(f.default)) for f in fields]


def test_every_plugin_and_engine_is_listed():
    text = catalog.plugins(KINDS, ENGINES)
    for kind in KINDS:
        for name in kind.available():
            assert re.search(rf"^  {name} +\S", text, re.MULTILINE), name
    for engine in ENGINES:
        assert re.search(rf"^  {engine} +\S", text, re.MULTILINE), engine
    assert "cannot be loaded" not in text


def test_options_are_listed_with_default_and_type():
    text = catalog.plugins(KINDS, ENGINES)
    assert "      depth = 20   (one of 8, 20, 32, 44, 56, 110)\n" in text
    assert "      density = 0.001   (a number)\n" in text


def test_options_that_the_suite_passes_itself_are_not_listed():
    assert {name for kind in KINDS for name in kind.fixed} >= {"num_classes", "image_shape", "root"}
    for kind in KINDS:
        text = catalog.plugins([kind], {})
        assert not any(re.search(rf"^      {name}\b", text, re.MULTILINE) for name in kind.fixed)


def test_a_broken_plugin_does_not_hide_the_others(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "broken_shapes"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "circle.py").write_text("import nowhere_to_be_found\n")
    (folder / "square.py").write_text('"""Four equal\nsides.\n\nMore."""\nclass Square:\n    """Draw."""\n')
    text = catalog.plugins([Plugins("broken_shapes", "shape")], {})
    assert text.startswith("shapes\n")
    assert re.search(r"^  circle +cannot be loaded: .*: No module named 'nowhere_to_be_found'$", text, re.MULTILINE)
    assert re.search(r"^  square +Four equal sides\.$", text, re.MULTILINE)


def test_plugins_are_explained_by_name():
    text = catalog.explain(["dgc", "ring", "torch"], KINDS, ENGINES)
    assert text.startswith("compressor dgc\n\nDeep Gradient Compression: ")
    assert "\nmasking    clear the momentum of what was sent\n" in text
    assert "\noptions:\n  density = 0.001   (a number)\n  momentum = 0.9   (a number)\n" in text
    assert "\n\n\ncollective ring\n\n" in text and "\n\noptions:\n  none\n" in text
    assert text.endswith(f"\n\n\nengine torch\n\n{ENGINES['torch']}")


def test_a_name_that_several_kinds_have_is_explained_for_each():
    heads = re.findall(r"^(\w+) native$", catalog.explain(["native"], KINDS, ENGINES), re.MULTILINE)
    assert sorted(heads) == ["collective", "scheduler"]


def test_a_module_of_the_users_own_is_explained(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_own").mkdir()
    (tmp_path / "my_own" / "disc.py").write_text(
        '"""Round."""\nclass Disc:\n    """Filled.\n\n    radius  in m\n    """\n'
        "    def __init__(self, num_classes: int, radius: float = 1.0): pass\n"
    )
    text = catalog.explain(["my_own.disc"], KINDS, ENGINES)
    assert text == "plugin my_own.disc\n\nRound.\n\nFilled.\n\nradius  in m\n\noptions:\n  radius = 1.0   (a number)"


def test_every_plugin_can_be_explained():
    names = [name for kind in KINDS for name in kind.available()]
    text = catalog.explain(names, KINDS, ENGINES)
    for kind in KINDS:
        heads = re.findall(rf"^{'data set' if kind.kind == 'data' else kind.kind} (\w+)$", text, re.MULTILINE)
        assert set(heads) - set(kind.aliases) == set(kind.available())


@pytest.mark.parametrize("word", ["optimizer", "muon", "sgd"])
def test_a_section_and_an_optimizer_are_explained_too(word):
    text = catalog.explain([word], KINDS, ENGINES)
    assert text.startswith("[optimizer]  ") and "matrices of linear layers" in text and "\n  beta2 = 0.999" in text
    assert text in catalog.sections()
