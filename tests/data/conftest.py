"""Data sets on disk: stand-ins, and the real ones where they are."""

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import write_cifar10, write_images


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """(root that contains cifar-10-batches-bin, its training records)."""
    root = tmp_path_factory.mktemp("cifar10")
    return root, write_cifar10(root / "cifar-10-batches-bin")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_images(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def tiny_imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four real ImageNet classes at 64x64, 500 + 50 images each; skips where the data folder is not there."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    archive = Path(os.environ.get("WIREBENCH_DATA", beside)) / "tiny-imagenet-20.tar.xz"
    if not archive.exists():
        pytest.skip(f"no {archive}; set WIREBENCH_DATA to the folder that has it")
    root = tmp_path_factory.mktemp("tiny")
    with tarfile.open(archive) as tar:
        files = [member for member in tar if member.isfile()]
        classes = sorted({member.name.split("/")[-2] for member in files})[:4]
        tar.extractall(root, [member for member in files if member.name.split("/")[-2] in classes], filter="data")
    return root / "imagenet-mini" / "tiny-imagenet-20"
