import torch

from tests.data.samples import CPU
from wirebench import data
from wirebench.data import Key, Shard

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


def test_a_run_of_two_ranks_sees_each_test_image_once() -> None:
    digits = data.build("digits")
    labels = [labels for rank in (0, 1) for _, labels in Shard(digits, rank, 2, 32, 0, 0, CPU).test()]
    assert torch.equal(torch.cat(labels).bincount(), whole_split(False)[1].bincount())
