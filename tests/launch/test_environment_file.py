"""environment.yml, for conda: it has what the package and its training extra ask for, and a Horovod that fits."""

import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from wirebench.utils.package import TOP

OF_CONDA = {"torch": "pytorch"}


def asked() -> dict[str, str]:
    """The versions that environment.yml allows, by package."""
    listed = yaml.safe_load((TOP / "environment.yml").read_text())["dependencies"]
    split = (entry.partition(" ") for entry in listed if isinstance(entry, str))
    return {name: version for name, _, version in split}


def test_it_has_all_that_the_package_needs():
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    needed = [Requirement(each).name for each in (*project["dependencies"], *project["optional-dependencies"]["train"])]
    assert {OF_CONDA.get(name, name) for name in needed} <= asked().keys()


def test_its_python_and_pytorch_are_those_of_the_package():
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    (torch,) = (Requirement(each).specifier for each in project["dependencies"] if each.startswith("torch"))
    python = SpecifierSet(project["requires-python"])
    for theirs, ours, version in ((asked()["pytorch"], torch, "2.11.0"), (asked()["python"], python, "3.11.0")):
        assert SpecifierSet(theirs).contains(version) and ours.contains(version)
    assert not SpecifierSet(asked()["pytorch"]).contains("2.13.0"), "Horovod was built against an older one"
