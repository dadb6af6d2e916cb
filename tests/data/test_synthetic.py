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
