"""What commands print, word for word; tests/golden.py says how to read and to change it."""

import pytest

import tests.distributed.launch  # noqa: F401  puts its plugins on the path
from tests.golden import FOLDER, check, played


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_a_session(
    name: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("clusters")))
    session = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    check(name, played(session, tmp_path_factory.mktemp("session")), request.config.getoption("update"))
