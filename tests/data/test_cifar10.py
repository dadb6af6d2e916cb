import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.samples import CPU
from wirebench import data
from wirebench.data import Key, Shard
from wirebench.data.cifar10 import MEAN, STD

KEY = Key(0, 0, 0)


def test_pixels_and_labels_are_those_of_the_records(cifar10: tuple[Path, np.ndarray]) -> None:
    root, records = cifar10
    dataset = data.build("cifar10", str(root), augment=False)
    assert (dataset.train_size, dataset.test_size, dataset.num_classes) == (50_000, 10_000, 10)
    index = torch.tensor([0, 9_999, 10_000, 49_999])
    ((images, labels),) = dataset.batches([index], train=True, key=KEY, device=CPU)
    pixels = torch.from_numpy(records[index.numpy(), 1:]).view(4, 3, 32, 32)
    expected = (pixels / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    torch.testing.assert_close(images, expected)
    assert labels.tolist() == records[index.numpy(), 0].tolist()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("size", "square"), [(16, 2), (8, 4)])
def test_smaller_images_are_means_of_squares(cifar10: tuple[Path, np.ndarray], size: int, square: int) -> None:
    """To whole levels, as images are kept; and they are moved by an eighth of their side at most."""
    root, _ = cifar10
    dataset = data.build("cifar10", str(root), size=size)
    assert dataset.image_shape == (3, size, size)
    ((images, _),) = dataset.batches([torch.tensor([0, 9_999])], train=False, key=KEY, device=CPU)
    test = torch.from_numpy(np.fromfile(root / "cifar-10-batches-bin" / "test_batch.bin", np.uint8).reshape(-1, 3073))
    squares = test[[0, 9_999], 1:].float().view(2, 3, size, square, size, square)
    levels = squares.mean((3, 5)).round()
    expected = (levels / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    torch.testing.assert_close(images, expected)
    assert getattr(dataset, "pad", None) == size // 8


def test_training_images_are_shifted_and_half_of_them_mirrored(cifar10: tuple[Path, np.ndarray]) -> None:
    """Find each image's move by trying all 9 x 9 x 2 of them."""
    augmented, plain = data.build("cifar10", str(cifar10[0])), data.build("cifar10", str(cifar10[0]), augment=False)
    images, _ = next(Shard(augmented, 0, 1, 200, 0, 0, CPU).train(0))
    originals, _ = next(Shard(plain, 0, 1, 200, 0, 0, CPU).train(0))
    black = -torch.tensor(MEAN) / torch.tensor(STD)
    padded = black[:, None, None].repeat(200, 1, 40, 40)
    padded[:, :, 4:36, 4:36] = originals
    moves = torch.full((200, 3), -1)
    for top in range(9):
        for left in range(9):
            window = padded[:, :, top : top + 32, left : left + 32]
            for mirrored, candidate in enumerate((window, window.flip(3))):
                close = torch.isclose(images, candidate, atol=1e-5).flatten(1).all(1)
                moves[close] = torch.tensor([top, left, mirrored])
    assert (moves >= 0).all()
    assert len(moves[:, 0].unique()) == len(moves[:, 1].unique()) == 9
    assert 70 < moves[:, 2].sum() < 130


def test_root_may_be_the_folder_of_batches_itself(cifar10: tuple[Path, np.ndarray]) -> None:
    assert data.build("cifar10", str(cifar10[0] / "cifar-10-batches-bin")).train_size == 50_000


def write_python_batches(folder: Path) -> None:
    folder.mkdir()
    random = np.random.default_rng(0)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        entry = {"data": random.integers(0, 256, (4, 3072), np.uint8), "labels": [0, 1, 2, 9]}
        (folder / name).write_bytes(pickle.dumps(entry))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(i) for i in range(10)]}))


def test_python_batches_are_read_as_planes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_python_batches(tmp_path / "cifar-10-batches-py")
    monkeypatch.setattr("torchvision.datasets.CIFAR10._check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5: True)
    dataset = data.build("cifar10", str(tmp_path))
    ((images, labels),) = dataset.batches([torch.arange(4)], train=False, key=KEY, device=CPU)
    raw = pickle.loads((tmp_path / "cifar-10-batches-py" / "test_batch").read_bytes())["data"]
    red = (raw[0, :1024].reshape(32, 32) / 255 - MEAN[0]) / STD[0]
    np.testing.assert_allclose(images[0, 0].numpy(), red, rtol=1e-4, atol=1e-5)
    assert labels.tolist() == [0, 1, 2, 9]
    assert dataset.train_size == 20


def test_binary_batches_are_preferred_to_python_ones(cifar10: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    shutil.copytree(cifar10[0], tmp_path, copy_function=os.link, dirs_exist_ok=True)
    write_python_batches(tmp_path / "cifar-10-batches-py")
    assert data.build("cifar10", str(tmp_path)).train_size == 50_000
