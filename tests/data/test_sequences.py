"""Texts as sequences of bytes: their parts follow each other, and no split has another's files."""

from pathlib import Path
from typing import Any

import pytest
import torch

from wirebench import data
from wirebench.data.base import Key
from wirebench.data.sequences import ByteSequences
from wirebench.errors import UserError


def test_parts_of_the_text_follow_each_other() -> None:
    text = torch.arange(0, 240, dtype=torch.uint8)
    parts = ByteSequences(text, text, 8, 0, parts=3)
    assert parts.train_size == 80 // 8 - 1
    for epoch in range(4):
        everything = torch.arange(parts.train_size)
        [(tokens, labels)] = parts.batches([everything], train=True, key=Key(0, epoch, 0), device=torch.device("cpu"))
        begin = epoch % 3 * 80
        assert begin <= int(tokens.min()) and int(labels.max()) < begin + 80
    with pytest.raises(UserError, match="the training split of a part has 24 bytes, too few for sequences of 13"):
        ByteSequences(text, text, 13, 0, parts=10)


def test_validation_text_is_in_no_other_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every file of a small standard library and of its packages says its own name."""
    for number in range(200):
        folder = tmp_path / "lib" / ("site-packages/pack" if number % 2 else "own")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"m{number}.py").write_text(f"[{number:03d}]" * 100)
    paths = {"stdlib": str(tmp_path / "lib"), "purelib": str(tmp_path / "lib/site-packages")}
    monkeypatch.setattr("sysconfig.get_paths", lambda: paths)

    def names(train: bool, **options: Any) -> set[bytes]:
        sources = data.build("python_sources", length=5, **options)
        assert isinstance(sources, ByteSequences)
        return set(bytes(sources._texts[train].tolist()).split(b"]")) - {b""}

    splits = [names(True, packages=True), names(False, packages=True), names(False, packages=True, tested="validation")]
    assert all(splits) and len(set.union(*splits)) == sum(map(len, splits)) == 200
    assert len(names(True) | names(False)) == 100, "without packages: the standard library alone"
    assert names(False) <= splits[1], "its test files stay test files"
    with pytest.raises(UserError, match=r"data.tested: 'validation' needs data.packages=true"):
        data.build("python_sources", tested="validation")
    with pytest.raises(UserError, match=r"data.tested: is one of test, validation, got 'x'"):
        data.build("python_sources", tested="x")
    with pytest.raises(UserError, match=r"data.test_bytes: the test split has \d+, got 1000000"):
        data.build("python_sources", length=5, test_bytes=10**6)
