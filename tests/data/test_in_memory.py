import pytest
import torch
from torch.nn import functional

from tests.data.samples import CPU
from tests.helpers import CUDA
from wirebench.data import Key
from wirebench.data.memory import InMemory, crop_and_flip, draw_moves

KEY = Key(seed=1, epoch=2, rank=0)


def noise(size: int, height: int = 8, width: int = 8) -> torch.Tensor:
    return torch.randint(
        0, 256, (size, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def reference_crop_and_flip(images: torch.Tensor, pad: int, moves: torch.Tensor) -> torch.Tensor:
    """One image at a time, as one would write it down."""
    height, width = images.shape[2:]
    result = []
    for image, (top, left, mirrored) in zip(images, moves.tolist(), strict=True):
        window = functional.pad(image, (pad,) * 4)[:, top : top + height, left : left + width]
        result.append(window.flip(2) if mirrored else window)
    return torch.stack(result)


@pytest.mark.parametrize(("pad", "flip"), [(0, True), (1, False), (4, True)])
@pytest.mark.parametrize("shape", [(8, 8), (5, 7)])
def test_one_gather_equals_the_reference(pad: int, flip: bool, shape: tuple[int, int]) -> None:
    images = noise(50, *shape)
    moves = draw_moves(50, pad, flip, KEY, CPU)
    assert moves is not None
    assert torch.equal(crop_and_flip(images, pad, moves), reference_crop_and_flip(images, pad, moves))


def test_moves_are_spread_evenly() -> None:
    moves = draw_moves(20_000, 4, True, KEY, CPU)
    assert moves is not None
    for corner in (moves[:, 0], moves[:, 1]):
        share = corner.bincount(minlength=9) / 20_000
        assert share.shape == (9,)
        assert (share - 1 / 9).abs().max() < 0.01
    assert abs(moves[:, 2].double().mean() - 0.5) < 0.015
    correlation = torch.corrcoef(moves.T.double()) - torch.eye(3)
    assert correlation.abs().max() < 0.03


def test_moves_follow_seed_and_epoch_but_not_rank() -> None:
    def moves(seed: int, epoch: int, rank: int) -> list[list[int]]:
        drawn = draw_moves(50, 4, True, Key(seed, epoch, rank), CPU)
        assert drawn is not None
        return drawn.tolist()

    assert moves(0, 0, 0) == moves(0, 0, 5)
    assert moves(0, 0, 0) != moves(0, 1, 0)
    assert moves(0, 0, 0) != moves(1, 0, 0)


def test_without_flip_nothing_is_mirrored_and_corners_stay() -> None:
    with_flip, without = draw_moves(50, 4, True, KEY, CPU), draw_moves(50, 4, False, KEY, CPU)
    assert with_flip is not None
    assert without is not None
    assert without[:, 2].sum() == 0
    assert torch.equal(with_flip[:, :2], without[:, :2])
    assert draw_moves(50, 0, False, KEY, CPU) is None


def dataset(pad: int = 2, flip: bool = True) -> InMemory:
    images, labels = noise(30), torch.arange(30)
    return InMemory((images, labels), (images[:9], labels[:9]), 30, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), pad, flip)


def read(data: InMemory, *index_batches: list[int], train: bool = True) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(data.batches([torch.tensor(i) for i in index_batches], train=train, key=KEY, device=CPU))


def test_test_images_are_normalised_and_otherwise_untouched() -> None:
    ((images, labels),) = read(dataset(), [8, 0, 3], train=False)
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 0.7])
    expected = (noise(30)[[8, 0, 3]] / 255 - mean[:, None, None]) / std[:, None, None]
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    torch.testing.assert_close(images, expected)
    assert labels.tolist() == [8, 0, 3]


def test_an_image_is_augmented_alike_in_whatever_batch_it_comes() -> None:
    ((together, _),) = read(dataset(), [4, 9, 2, 7])
    (first, _), (second, _) = read(dataset(), [7, 2], [9, 4])
    assert torch.equal(together, torch.cat([second.flip(0), first.flip(0)]))


def test_training_images_move_and_test_images_do_not() -> None:
    ((augmented, _),) = read(dataset(), list(range(9)))
    ((plain, _),) = read(dataset(pad=0, flip=False), list(range(9)))
    ((test, _),) = read(dataset(), list(range(9)), train=False)
    assert torch.equal(plain, test)
    assert not torch.equal(augmented, test)


def test_batches_are_the_callers_to_change() -> None:
    data = dataset(pad=0, flip=False)
    ((images, labels),) = read(data, [0, 1])
    kept = images.clone(), labels.clone()
    images.zero_()
    labels.zero_()
    ((again, labels_again),) = read(data, [0, 1])
    assert torch.equal(again, kept[0])
    assert torch.equal(labels_again, kept[1])


@pytest.mark.gpu
@CUDA
def test_a_gpu_sees_the_same_images() -> None:
    data, index = dataset(), [torch.arange(30)]
    ((here, _),) = data.batches(index, train=True, key=KEY, device=CPU)
    ((there, labels),) = data.batches(index, train=True, key=KEY, device=torch.device("cuda"))
    assert there.is_cuda
    assert labels.is_cuda
    torch.testing.assert_close(there.cpu(), here)
