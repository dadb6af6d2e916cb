"""Slow tests, proofs and matrices that take minutes, run when asked for (-m slow); so do many random examples."""

import atexit
import gc
import os

import pytest
from hypothesis import settings

settings.register_profile("day", max_examples=20, deadline=None)
settings.register_profile("full", max_examples=100, deadline=None)
settings.load_profile("day")
os.environ.pop("WIREBENCH_RESULTS", None)  # tests are about the committed results, and about folders of their own


def pytest_collection_finish() -> None:
    """What is there now, modules and some thousands of tests, stays to the end: nobody need look through it again."""
    gc.freeze()
    atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without -m or -k, leave them out."""
    if config.option.markexpr or config.option.keyword:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
