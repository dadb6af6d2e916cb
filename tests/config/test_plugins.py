"""Plugins: found by file name, built with checked options, refused in one clear line."""

import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from wirebench.config.plugins import Plugins, check_type, current, entry_points, options_of, suggest, type_name
from wirebench.errors import UserError

SQUARE = '''
from __future__ import annotations

from typing import Literal

from collections import OrderedDict


class _Private:
    pass


class Square:
    """Draw a square."""

    def __init__(self, given: str, side: float, colour: Literal["red", "blue"] = "red", corners: int | None = None):
        if side < 0:
            raise ValueError(f"side is at least 0, got {side}")
        self.given, self.side, self.colour, self.corners = given, side, colour, corners
'''


@pytest.fixture
def shapes(tmp_path, monkeypatch) -> Iterator[Callable[..., Plugins]]:
    """Makes a package of these files and returns its plugins."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(**files: str) -> Plugins:
        folder = tmp_path / "shapes"
        folder.mkdir()
        for name, text in {"__init__": "", **files}.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(text))
        return Plugins("shapes", "shape", helpers=frozenset({"base"}), fixed=("given",))

    entry_points.cache_clear()
    yield make
    entry_points.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] in ("shapes", "elsewhere")]:
        del sys.modules[name]


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plugin_is_a_file(shapes):
    plugins = shapes(square=SQUARE, circle="class Circle: pass", base="class Base: pass", _maths="")
    assert plugins.available() == ["circle", "square"]
    assert plugins.load("circle").__name__ == "Circle"


def distribution(folder: Path, name: str, *entries: str) -> None:
    about = folder / f"{name}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text("\n".join(["[shapes]", *entries]) + "\n")


def test_other_distributions_give_plugins_names(shapes, tmp_path: Path):
    """A module's one class, or a class by its name; wirebench's own counts; a name of two has to be a path."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.py").write_text("class Mine: pass")
    (tmp_path / "elsewhere" / "two.py").write_text("class One: pass\nclass Two: pass")
    first = ("mine = elsewhere.mine", "two = elsewhere.two:Two", "square = elsewhere.mine", "a.b = x")
    distribution(tmp_path, "first", *first)
    distribution(tmp_path, "second", "both = elsewhere.mine", "broken = elsewhere.none")
    distribution(tmp_path, "third", "both = elsewhere.two:One")
    plugins = shapes(square=SQUARE)
    assert plugins.available() == ["both", "broken", "mine", "square", "two"] and plugins.own() == ["square"]
    assert [plugins.load(name).__name__ for name in ("mine", "two", "square")] == ["Mine", "Two", "Square"]
    assert plugins.is_own("square") and not plugins.is_own("mine")
    said = refusal(plugins.load, "both")
    assert "first" not in said and "second and third" in said.replace("third and second", "second and third")
    assert "no module 'elsewhere.none' can be imported" in refusal(plugins.load, "broken")


def test_names_of_version_0_1_are_still_understood():
    assert current("suite.studies.gs_sgd.released_gtopk") == "papers.gs_sgd.released_gtopk"
    assert current("suite.mine") == "suite.mine" and current("topk") == "topk"


def test_an_unknown_name_is_answered_with_those_that_exist(shapes):
    plugins = shapes(square=SQUARE, base="class Base: pass")
    assert refusal(plugins.load, "sqare") == "shape.name: no shape 'sqare'; did you mean 'square'? there is: square"
    assert "no shape 'base'" in refusal(plugins.load, "base")


def test_options_are_the_constructors(shapes):
    plugins = shapes(square=SQUARE)
    assert list(plugins.options("square")) == ["side", "colour", "corners"]
    assert plugins.defaults("square") == {"colour": "red"}
    built = plugins.build("square", given="x", side=2, corners=4)
    assert (built.given, built.side, built.colour, built.corners) == ("x", 2, "red", 4)


def test_what_an_object_was_built_with_is_known(shapes):
    plugins = shapes(square=SQUARE)
    built = plugins.build("square", given="x", side=2)
    assert options_of(built) == {"side": 2, "colour": "red", "corners": None}
    itself = plugins.load("square")("x", side=2)  # an object of the user's own making
    assert options_of(itself) == {"given": "x", "side": 2, "colour": "red", "corners": None}
    assert options_of(object()) == {}


@pytest.mark.parametrize("name", [None, 8, ["circle"]])
def test_a_name_is_a_string(shapes, name):
    assert refusal(shapes(circle="class Circle: pass").build, name) == f"shape.name: needs a name, got {name!r}"


def test_a_class_without_constructor_takes_no_options(shapes):
    plugins = shapes(circle="class Circle: pass")
    assert plugins.options("circle") == plugins.defaults("circle") == {}
    assert refusal(plugins.check, "circle", {"side": 1}).endswith("there is: none")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": 1.0, "color": "red"}, "shape.color: 'square' has no such option; did you mean 'colour'? there is: "),
        ({}, "shape.side: 'square' needs it (a number)"),
        ({"side": "1"}, "shape.side: needs a number, got '1'"),
        ({"side": float("nan")}, "shape.side: needs a finite number, got nan"),
        ({"side": 1, "colour": "green"}, "shape.colour: needs one of red, blue, got 'green'"),
        ({"side": 1, "corners": 1.5}, "shape.corners: needs a whole number, got 1.5"),
        ({"side": 1, "given": "x"}, "shape.given: 'square' has no such option; "),
    ],
)
def test_options_are_checked(shapes, options, message):
    assert refusal(shapes(square=SQUARE).check, "square", options).startswith(message)


def test_the_constructors_own_refusal_names_the_section_and_the_key(shapes):
    plugins = shapes(square=SQUARE, circle="""
        from wirebench.errors import UserError


        class Circle:
            def __init__(self):
                raise UserError("shape.radius: too small")
        """)  # fmt: skip
    assert refusal(plugins.build, "square", given="x", side=-1) == "shape.side is at least 0, got -1"
    assert refusal(plugins.build, "circle") == "shape.radius: too small"


def test_a_mistake_inside_a_constructor_is_not_the_users(shapes):
    plugins = shapes(square="""
        class Square:
            def __init__(self):
                raise KeyError("side")
        """)  # fmt: skip
    with pytest.raises(KeyError):
        plugins.build("square")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\nimport nowhere_to_be_found", "line 2: No module named 'nowhere_to_be_found'"),
        ("from wirebench.errors import Eror", "line 1: cannot import name 'Eror' from 'wirebench.errors'"),
        ("class Circle:\n    def __init__(self:\n", "line 2: '(' was never closed"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_its_line(shapes, tmp_path, text, words):
    message = refusal(shapes(circle=text).load, "circle")
    assert message.startswith(f"shape.name: 'circle' cannot be imported: {tmp_path}/shapes/circle.py, {words}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("side", "shape.side: 'circle' gives this option no type; annotate it"),
        ("**rest: int", "shape.name: 'circle' takes **rest: int; a plugin names all its options"),
        ("*sides: int", "shape.name: 'circle' takes *sides: int; a plugin names all its options"),
        ("side: 'Sid'", "shape.name: 'circle' has a type that cannot be read: name 'Sid' is not defined"),
    ],
)
def test_an_option_has_a_name_and_a_type(shapes, arguments, message):
    plugins = shapes(circle=f"class Circle:\n    def __init__(self, {arguments}): pass\n")
    assert refusal(plugins.check, "circle", {"side": 1}) == message


def test_what_the_suite_passes_itself_needs_no_type(shapes):
    plugins = shapes(circle="class Circle:\n    def __init__(self, given, side: int = 1): pass\n")
    assert list(plugins.options("circle")) == ["side"]


def test_a_sections_own_keys_are_among_what_there_is(shapes):
    shapes(circle="class Circle:\n    def __init__(self, size: int = 1): pass\n")
    plugins = Plugins("shapes", "compressor")
    assert refusal(plugins.check, "circle", {"nme": 1}) == (
        "compressor.nme: 'circle' has no such option; did you mean 'name'? there is: dense_below, name, size, warmup"
    )
    assert "there is: name, profile, size" in refusal(Plugins("shapes", "scheduler").check, "circle", {"x": 1})


@pytest.mark.parametrize(("text", "count"), [("class A: pass\nclass B: pass", 2), ("class _A: pass", 0)])
def test_a_plugin_has_exactly_one_public_class(shapes, text, count):
    message = refusal(shapes(circle=text).load, "circle")
    assert message == f"shapes.circle: a plugin has exactly one public class, this has {count}"


def test_a_dotted_name_is_a_module_of_the_users_own(shapes, tmp_path: Path):
    plugins = shapes(square=SQUARE)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.py").write_text(
        "class Mine:\n    def __init__(self, size: int = 3):\n        pass\n"
    )
    assert plugins.load("elsewhere.mine").__name__ == "Mine"
    assert plugins.defaults("elsewhere.mine") == {"size": 3}
    for name in ("elsewhere.yours", "nowhere.mine"):
        assert refusal(plugins.load, name).startswith(f"shape.name: no module '{name}' can be imported")
    told = refusal(plugins.load, "elsewhere.mine.Mime")
    assert told == "shape.name: module 'elsewhere.mine' has no 'Mime'; did you mean 'Mine'? there is: Mine"


@pytest.mark.parametrize("name", [".mine", "mine.", "a..b", "my-pkg.mine", "."])
def test_a_dotted_name_that_no_module_can_have_is_refused(shapes, name):
    assert "is no module's name" in refusal(shapes(square=SQUARE).load, name)


@pytest.mark.parametrize(
    ("value", "expected", "fits"),
    [
        (1, int, True),
        (1.0, int, False),
        (True, int, False),
        (1, float, True),
        (True, float, False),
        (0, bool, False),
        (None, str, False),
        (2, int | None, True),
        ("2", int | float, False),
        (20, Literal[20, 32], True),
        (20.0, Literal[20, 32], False),
        (True, Literal[1], False),
        ([1, 2], tuple[float, ...], True),
        ((1, 2), list[int], True),
        (["a", 1], Sequence[str], False),
        ("ab", Sequence[str], False),
        ({"a": 1}, dict[str, int], True),
        (object(), Any, True),
    ],
)
def test_types_are_strict(value, expected, fits):
    if fits:
        check_type("here", value, expected)
    else:
        assert refusal(check_type, "here", value, expected).startswith(f"here: needs {type_name(expected)}, got ")


def test_suggestions_need_not_be_near():
    assert suggest("TOPK", ["topk", "dgc"]) == "did you mean 'topk'? there is: dgc, topk"
    assert suggest("TopK", ["DGC", "topk"]) == "did you mean 'topk'? there is: DGC, topk"
    assert suggest("x", ["bb", "aa"]) == "there is: aa, bb"
    assert suggest("x", []) == "there is: none"
