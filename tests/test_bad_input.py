"""Mistakes of a user's that tests/golden cannot show: one line that says what and where, exit code 2, no folder."""

import importlib.util
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.distributed.launch import CONFIG, here, launch


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Run a config, which must be refused with one line; returns it."""

    def line_of(*overrides: str, config: Path = CONFIG, folder: Path | None = None, size: int = 2) -> str:
        target = tmp_path / "run" if folder is None else folder
        code = here(size, [config, f"output.dir={target}", *overrides])
        said = capsys.readouterr()
        assert code == 2, said
        assert said.err.startswith("error: ") and said.err.count("\n") == 1 and said.err.endswith("\n"), said.err
        assert not (tmp_path / "run").exists()
        return said.err

    return line_of


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Not much more than this process has, however much the machine has or lends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    kilobytes = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert kilobytes
    resource.setrlimit(resource.RLIMIT_DATA, (1024 * int(kilobytes[1]) + 4 * 2**30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@pytest.mark.usefixtures("little_memory")
def test_more_memory_than_there_is(refused) -> None:
    assert "out of memory" in refused("data.name=synthetic", "data.num_classes=2147483648")


def test_a_setting_that_is_nested_too_deeply(refused) -> None:
    assert "compressor.density: " in refused("compressor.density=" + "[" * 100_000)


def test_a_config_that_is_nested_too_deeply(refused, tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    config.write_bytes(b"model = " + b"[" * 100_000)
    assert "not valid TOML: it is nested too deeply" in refused(config=config)


def test_an_engine_that_is_not_installed(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "horovod" else find(name))
    assert "engine.name: horovod is not installed; `make setup` in a clone builds it" in refused("engine.name=horovod")


def test_a_gpu_that_is_not_there(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "engine.device: 'cuda', but no GPU can be used here" in refused("engine.device=cuda")


def test_a_launcher_without_an_address(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert "RANK and WORLD_SIZE are set, but no good MASTER_ADDR" in refused(size=1)


def test_as_a_user_sees_it(tmp_path: Path) -> None:
    """Once through the real command."""
    ended = launch("local", 2, [CONFIG, "compressor.name=topp"], tmp_path)
    assert ended.code == 2
    assert ended.err.startswith("error: compressor.name: no compressor 'topp'; did you mean 'topk'? there is: ")
    assert ended.err.count("\n") == 1
    assert len(ended.out.splitlines()) == 2, "what starts, and the import of torch"
