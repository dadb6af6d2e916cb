"""What the package ships of the records is what they give, and says when and from which commit it was written."""

import json
from pathlib import Path

import pytest

from papers import shipped
from wirebench.errors import UserError


def test_the_package_ships_what_the_records_give() -> None:
    assert shipped.drifts() == []
    for path in shipped.files():
        first = json.loads(path.read_text().splitlines()[0])
        assert first[shipped.PUBLISHED].keys() == {"commit", "utc"}


def test_a_file_is_written_where_its_records_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lines = tmp_path / "data" / "rates.jsonl", [{"of": "a"}, {"cell": 1.5}]
    monkeypatch.setattr(shipped, "files", lambda: {path: lambda: lines})
    monkeypatch.setattr(shipped, "git", lambda: {"commit": "abc", "dirty": True})
    with pytest.raises(UserError, match="without changes"):
        shipped.publish()
    monkeypatch.setattr(shipped, "git", lambda: {"commit": "abc", "dirty": False})
    assert [line.partition(":")[0] for line in shipped.drifts()] == [str(path)]
    assert shipped.publish() == [path] and shipped.drifts() == []
    before = path.read_text()
    assert shipped.publish() == [] and path.read_text() == before, "the time stays that of the last change"
    lines.append({"cell": 2.5})
    assert len(shipped.drifts()) == 1 and shipped.publish() == [path]
    assert [json.loads(line).get("cell") for line in path.read_text().splitlines()] == [None, 1.5, 2.5]
