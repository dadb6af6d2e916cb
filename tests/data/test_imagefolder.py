import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from tests.data.samples import CPU
from wirebench import data
from wirebench.data import Key, Shard
from wirebench.data.imagefolder import MEAN, STD
from wirebench.errors import UserError

KEY = Key(seed=0, epoch=0, rank=0)
Batches = list[tuple[torch.Tensor, torch.Tensor]]


def build(root: Path, image_size: int = 24, workers: int = 0) -> data.Dataset:
    return data.build("imagefolder", str(root), image_size=image_size, workers=workers)


def read(dataset: data.Dataset, *index_batches: list[int], train: bool = True, key: Key = KEY) -> Batches:
    return list(dataset.batches([torch.tensor(i) for i in index_batches], train=train, key=key, device=CPU))


def assert_same(some: Batches, others: Batches) -> None:
    for (images, labels), (other_images, other_labels) in zip(some, others, strict=True):
        assert torch.equal(images, other_images)
        assert torch.equal(labels, other_labels)


def denormalised(images: torch.Tensor) -> torch.Tensor:
    return images * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]


def test_sizes_and_labels_follow_the_folders(images: Path) -> None:
    dataset = build(images)
    assert (dataset.num_classes, dataset.train_size, dataset.test_size) == (2, 12, 6)
    assert dataset.image_shape == (3, 24, 24)
    (_, labels), (_, last) = read(dataset, [5, 6, 0], [11])
    assert labels.tolist() == [0, 1, 0]
    assert last.tolist() == [1]


def test_test_images_are_the_middle_of_the_resized_image(images: Path) -> None:
    ((images_read, _),) = read(build(images, image_size=28), [4], train=False)
    with Image.open(images / "val" / "dog" / "1.jpg") as file:
        expected = v2.CenterCrop(28)(v2.Resize(32)(v2.PILToTensor()(file.convert("RGB")).float()))
    # Pillow resizes in whole numbers, tensors in floating point
    assert (denormalised(images_read[0]) * 255 - expected).abs().max() < 2


def test_an_image_is_augmented_alike_in_whatever_batch_it_comes(images: Path) -> None:
    dataset = build(images)
    ((together, _),) = read(dataset, [4, 9, 2])
    (first, _), (second, _) = read(dataset, [2], [9, 4])
    assert torch.equal(together, torch.cat([second.flip(0), first]))


def test_images_of_an_epoch_are_augmented_each_in_its_own_way(images: Path) -> None:
    for number in range(1, 6):
        shutil.copy(images / "train" / "cat" / "0.jpg", images / "train" / "cat" / f"{number}.jpg")
    ((copies, _),) = read(build(images), [0, 1, 2, 3, 4, 5])
    assert len(torch.unique(copies, dim=0)) == 6


def test_augmentation_follows_seed_and_epoch_but_not_rank(images: Path) -> None:
    dataset = build(images)
    ((base, _),) = read(dataset, [1, 2])
    for key, same in ((Key(0, 0, 5), True), (Key(0, 1, 0), False), (Key(1, 0, 0), False)):
        ((other, _),) = read(dataset, [1, 2], key=key)
        assert torch.equal(base, other) == same
    ((test, _),) = read(dataset, [1, 2], train=False)
    ((test_later, _),) = read(dataset, [1, 2], train=False, key=Key(1, 1, 0))
    assert torch.equal(test, test_later)


def test_the_number_of_decoding_processes_changes_nothing(images: Path) -> None:
    parts = [3, 1, 11], [0, 7], [8, 2, 5], [10]
    alone = read(build(images, workers=0), *parts)
    assert_same(alone, read(build(images, workers=1), *parts))
    assert_same(alone, read(build(images, workers=2), *parts))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_one_clear_line(images: Path, workers: int) -> None:
    broken = images / "train" / "cat" / "2.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(UserError, match=r"data\.root: .*train/cat/2\.jpg is not a readable image") as caught:
        read(build(images, workers=workers), [0, 1], [2, 3])
    assert "\n" not in str(caught.value)
    assert len(read(build(images), [0, 1, 3, 4])) == 1


def test_a_pipe_among_the_images_is_one_clear_line(images: Path) -> None:
    """Whoever opens one waits for a writer."""
    (images / "val" / "dog" / "0.jpg").unlink()
    os.mkfifo(images / "val" / "dog" / "0.jpg")
    with pytest.raises(UserError, match=r"val/dog/0\.jpg is not a readable image: it is no file"):
        read(build(images), [3], train=False)


def test_an_empty_class_is_named(images: Path) -> None:
    (images / "train" / "bird").mkdir()
    with pytest.raises(UserError, match=r"data\.root: .*train: .*bird") as caught:
        build(images)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_real_images_are_read_shuffled_and_normalised(tiny_imagenet: Path) -> None:
    dataset = build(tiny_imagenet, image_size=64)
    assert (dataset.num_classes, dataset.train_size, dataset.test_size) == (4, 2_000, 200)
    seen, labels = zip(*Shard(dataset, 1, 2, 64, 128, 0, CPU).test(), strict=True)
    assert torch.cat(labels).bincount().tolist() == [25] * 4
    pixels = torch.cat(seen)
    assert abs(pixels.mean()) < 0.3
    assert 0.8 < pixels.std() < 1.3
    images, labels_of_one = next(Shard(dataset, 0, 2, 64, 128, 0, CPU).train(0))
    assert images.shape == (64, 3, 64, 64)
    assert labels_of_one.bincount(minlength=4).min() > 5


def test_a_part_of_the_training_images_has_as_many_of_every_class(images: Path) -> None:
    part = data.build("imagefolder", str(images), image_size=24, workers=0, train_size=5)
    assert (part.train_size, part.test_size) == (5, 6)
    ((_, labels),) = read(part, [0, 1, 2, 3, 4])
    assert labels.tolist() == [0, 0, 0, 1, 1]
    # The first files of a class, by name.
    assert_same(read(part, [0, 1, 2]), read(build(images), [0, 1, 2]))
