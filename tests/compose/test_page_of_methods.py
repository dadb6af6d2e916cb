"""The page on language models has the settings that papers' names stand for, and those that the study compares."""

import re
from pathlib import Path

import pytest

from suite.compose.papers import PAPERS
from suite.compose.resolve import resolve
from suite.studies.convergence.run import Cell
from suite.studies.today.tasks import GPT, compositions
from wirebench.config import loader

PAGE = Path("docs/language_models.md")
OF_PAGE = {
    "DiLoCo": "diloco", "local SGD": "local_sgd", "Muon, dense": "muon", "MuLoCo": "muloco momentum=0.5",
    "Streaming DiLoCo": "streaming_diloco", "SparseLoCo": "sparseloco",
    "quantised sums (ZeRO++'s qgZ)": "quantised_sum", "DeMo": "demo", "Dion": "dion",
    "distributed Lion": "lion_sign", "0/1 Adam": "zero_one_adam",
}  # fmt: skip
"""By the name in the page's table what the study calls it."""


def page_rows() -> dict[str, list[str]]:
    """By name the settings of the page's table, with those that make the optimizer plain where a row says so."""
    text = PAGE.read_text()
    plain = re.search(r"What makes it plain is `([^`]+)`", text)
    assert plain
    rows = {}
    for name, cell in re.findall(r"^\| ([^|`]+) \| (`.*) \|$", text.split("## What follows")[1], re.MULTILINE):
        words = [word for part in re.findall(r"`([^`]+)`", cell) for word in part.split()]
        rows[name] = words + (plain[1].split() if "plain" in cell or "likewise" in cell else [])
    return rows


def test_the_page_has_every_papers_name() -> None:
    rows = page_rows().values()
    for name, words in PAPERS.items():
        assert name in {"adamw", "dense"} or any(set(words.split()) <= set(row) for row in rows), name


@pytest.mark.parametrize("name", OF_PAGE)
def test_the_page_has_the_settings_of_the_study(name: str) -> None:
    """Their rate, too. The study's outer rounds have other lengths, and what has no round its own schedule."""
    words = [word for word in page_rows()[name] if word != "compressor.orthonormal=true"]
    said = resolve(loader.load("configs/gpt_python_sources.toml", words))
    studied = resolve(Cell(GPT, compositions(GPT, [OF_PAGE[name]])[0], 0, (), None).config())
    assert said.compressor == studied.compressor
    assert (said.scheduler.name == "outer") == (studied.scheduler.name == "outer")
    for key in ("name", "lr", "momentum", "nesterov", "beta2"):
        assert getattr(said.optimizer, key) == getattr(studied.optimizer, key), key


def test_the_page_names_no_method_that_is_not_compared() -> None:
    assert page_rows().keys() == OF_PAGE.keys()
