"""Slow tests run when they are asked for (-m slow): proofs and matrices that take minutes."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without -m or -k, leave them out."""
    if config.option.markexpr or config.option.keyword:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
