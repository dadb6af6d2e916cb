import hashlib
import io
import multiprocessing
import tarfile
import time
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wirebench import data
from wirebench.data import cifar10 as cifar10_module
from wirebench.data import download
from wirebench.errors import UserError


@pytest.fixture
def archive(tmp_path: Path) -> tuple[str, str]:
    """(file:// URL, MD5) of a tar.gz with folder/inside.txt."""
    path = tmp_path / "archive.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo("folder/inside.txt")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"hello"))
    return path.as_uri(), hashlib.md5(path.read_bytes()).hexdigest()


def leftovers(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != ".folder.lock")


def test_an_archive_is_unpacked_and_nothing_else_stays(archive: tuple[str, str], tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    download.fetch(*archive, root, "folder")
    assert (root / "folder" / "inside.txt").read_text() == "hello"
    assert leftovers(root) == ["folder"]


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    download.fetch((tmp_path / "nowhere.tar.gz").as_uri(), "0" * 32, tmp_path, "folder")
    assert leftovers(tmp_path) == ["folder"]


def test_a_wrong_checksum_keeps_nothing(archive: tuple[str, str], tmp_path: Path) -> None:
    root = tmp_path / "root"
    with pytest.raises(UserError, match=rf"with MD5 {archive[1]}, expected {'0' * 32}"):
        download.fetch(archive[0], "0" * 32, root, "folder")
    assert leftovers(root) == []


def test_an_archive_that_reaches_outside_is_refused(tmp_path: Path) -> None:
    path, root = tmp_path / "evil.tar", tmp_path / "root"
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo("../../escaped.txt"), io.BytesIO())
    with pytest.raises(UserError, match="outside the destination"):
        download.fetch(path.as_uri(), hashlib.md5(path.read_bytes()).hexdigest(), root, "folder")
    assert leftovers(root) == []
    assert not (tmp_path / "escaped.txt").exists()


def no_network(*_args: object, **_options: object) -> None:
    raise urllib.error.URLError(OSError(-3, "Temporary failure in name resolution"))


def test_no_network_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(UserError) as caught:
        data.build("cifar10", str(tmp_path), download=True)
    assert str(caught.value) == (
        f"data.download: {cifar10_module.URL} into {tmp_path}: Temporary failure in name resolution; "
        f"or fetch it elsewhere and unpack it into {tmp_path}"
    )


def test_a_root_that_cannot_be_made_is_one_clear_line(archive: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"Not a directory"):
        download.fetch(*archive, tmp_path / "file" / "root", "folder")


@pytest.mark.slow
def test_cifar10_downloads_itself(
    cifar10: tuple[Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, root = tmp_path / "cifar.tar", tmp_path / "root"
    with tarfile.open(path, "w") as tar:
        tar.add(cifar10[0] / "cifar-10-batches-bin", "cifar-10-batches-bin")
    monkeypatch.setattr(cifar10_module, "URL", path.as_uri())
    with path.open("rb") as file:
        monkeypatch.setattr(cifar10_module, "MD5", hashlib.file_digest(file, "md5").hexdigest())
    assert data.build("cifar10", str(root), download=True).train_size == 50_000
    path.unlink()
    assert data.build("cifar10", str(root), download=True).test_size == 10_000


def _fetch_and_count(url: str, md5: str, root: Path, log: Path) -> None:
    opened = urllib.request.urlopen

    def counted(*args: Any, **options: Any) -> object:
        with log.open("a") as file:
            file.write("x")
        # long enough for all ranks to be here at once, if nothing held them back
        time.sleep(0.3)
        return opened(*args, **options)

    urllib.request.urlopen = counted
    download.fetch(url, md5, root, "folder")
    assert (root / "folder" / "inside.txt").exists()


def test_of_several_ranks_one_downloads(archive: tuple[str, str], tmp_path: Path) -> None:
    log, context = tmp_path / "log", multiprocessing.get_context("fork")
    ranks = [context.Process(target=_fetch_and_count, args=(*archive, tmp_path / "root", log)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0] * 4
    assert log.read_text() == "x"
