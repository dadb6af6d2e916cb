"""The page on language models has the settings that papers' names stand for, and those that the study compares."""

import re
from pathlib import Path

import pytest

from papers.accuracy.task import listed
from papers.accuracy.tasks import GPT
from wirebench.compose.papers import PAPERS
from wirebench.compose.resolve import resolve
from wirebench.config import loader

PAGE = Path("docs/language_models.md")
OF_PAGE = {
    "DiLoCo": "diloco", "local SGD": "local_sgd", "Muon, dense": "muon", "MuLoCo": "muloco momentum=0.5",
    "Streaming DiLoCo": "streaming_diloco", "SparseLoCo": "sparseloco",
    "quantised sums (ZeRO++'s qgZ)": "quantised_sum", "DeMo": "demo", "Dion": "dion",
    "distributed Lion": "lion_sign", "0/1 Adam": "zero_one_adam",
}  # fmt: skip
"""By the name in the page's table what the study calls it."""
OF_PAPER = {
    "diloco": "DiLoCo", "distributed_lion": "distributed Lion", "local_sgd": "local SGD", "muloco": "MuLoCo",
    "muon": "Muon, dense", "orth_dion": "Dion", "qgz": "quantised sums (ZeRO++'s qgZ)",
    "sparseloco": "SparseLoCo", "streaming_diloco": "Streaming DiLoCo", "zeropp": "quantised sums (ZeRO++'s qgZ)",
}  # fmt: skip
"""By a paper's name the row of the page."""


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


@pytest.mark.parametrize("name", sorted(PAPERS.keys() - {"adamw", "dense"}))
def test_the_page_has_every_papers_name(name: str) -> None:
    assert set(PAPERS[name].split()) <= set(page_rows()[OF_PAPER[name]])


@pytest.mark.parametrize("name", OF_PAGE)
def test_the_page_has_the_settings_of_the_study(name: str) -> None:
    """Their rate and its decay, too. What has no local steps may have any schedule."""
    words = [word for word in page_rows()[name] if word != "compressor.orthonormal=true"]
    said = resolve(loader.load("configs/gpt_python_sources.toml", words))
    studied = resolve(GPT.composed(listed(GPT, [OF_PAGE[name]])[0]))
    assert said.compressor == studied.compressor
    if "outer" in (said.scheduler.name, studied.scheduler.name):
        assert said.scheduler == studied.scheduler
    for key in ("name", "lr", "momentum", "nesterov", "beta2"):
        assert getattr(said.optimizer, key) == getattr(studied.optimizer, key), key
    if any(word.startswith("optimizer.weight_decay=") for word in words):
        assert said.optimizer.weight_decay == pytest.approx(studied.optimizer.weight_decay, rel=0.02)


def test_the_page_names_no_method_that_is_not_compared() -> None:
    assert page_rows().keys() == OF_PAGE.keys()
