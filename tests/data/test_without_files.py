"""Data sets that need no files: synthetic and digits."""

import pytest
import torch

from tests.data.samples import CPU
from wirebench import data
from wirebench.data import Key, Shard


def synthetic() -> data.Dataset:
    return data.build("synthetic", image_size=8, num_classes=5, train_size=64, test_size=10)


def test_every_step_yields_the_very_same_tensors() -> None:
    batches = list(Shard(synthetic(), 0, 2, 8, 0, 0, CPU).train(0))
    assert len(batches) == 4
    assert len({images.data_ptr() for images, _ in batches}) == 1
    assert batches[0][0].std() == pytest.approx(1, abs=0.1)


def test_the_batch_follows_seed_and_rank_and_stays_over_epochs() -> None:
    def first(seed: int, epoch: int, rank: int, step: int = 0) -> torch.Tensor:
        return next(Shard(synthetic(), rank, 2, 8, 0, seed, CPU).train(epoch, step))[0]

    assert torch.equal(first(0, 0, 0), first(0, 3, 0, step=2))
    assert not torch.equal(first(0, 0, 0), first(0, 0, 1))
    assert not torch.equal(first(0, 0, 0), first(1, 0, 0))


def test_other_lengths_get_batches_of_their_own() -> None:
    batches = synthetic().batches([torch.arange(4), torch.arange(3)], train=False, key=Key(0, 0, 0), device=CPU)
    assert [len(images) for images, _ in batches] == [4, 3]


KEY = Key(0, 0, 0)


def whole_split(train: bool, **options) -> tuple[torch.Tensor, torch.Tensor]:
    digits = data.build("digits", **options)
    size = digits.train_size if train else digits.test_size
    ((images, labels),) = digits.batches([torch.arange(size)], train=train, key=KEY, device=CPU)
    return images, labels


def test_split_sizes_and_every_digit_in_proportion() -> None:
    _, train = whole_split(True)
    _, test = whole_split(False)
    assert (len(train), len(test)) == (1437, 360)
    assert train.bincount().min() > 130
    assert test.bincount().min() >= 34


def test_no_test_image_is_trained_on_as_such() -> None:
    train, _ = whole_split(True, augment=False)
    test, _ = whole_split(False)
    assert len(torch.unique(torch.cat([train, test]), dim=0)) == 1797


def test_images_are_normalised_and_grey() -> None:
    images, _ = whole_split(True, augment=False)
    assert abs(images.mean()) < 0.01
    assert abs(images.std() - 1) < 0.01
    assert torch.equal(images[:, 0], images[:, 2])


def test_augmentation_shifts_by_at_most_one_pixel_and_never_mirrors() -> None:
    plain, _ = whole_split(True, augment=False)
    shifted, _ = whole_split(True)
    padded = torch.nn.functional.pad(plain, (1,) * 4, value=plain.min().item())
    candidates = torch.stack([padded[:, :, y : y + 8, x : x + 8] for y in range(3) for x in range(3)])
    equal = (candidates == shifted).flatten(2).all(2)
    assert equal.any(0).all()
    assert abs(equal[4].double().mean() - 1 / 9) < 0.03
