from collections.abc import Iterable
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.data.samples import CPU, small_set
from wirebench.data import Shard
from wirebench.data.shard import images_seen
from wirebench.errors import UserError


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def labels_of(batches) -> list[list[int]]:
    return [labels.tolist() for _, labels in batches]


def shards(size: int, batch_size: int, seed: int = 0, **options) -> list[Shard]:
    dataset = small_set(**options)
    return [Shard(dataset, rank, size, batch_size, 0, seed, CPU) for rank in range(size)]


def global_batches(size: int, batch_size: int, epoch: int = 0, seed: int = 0) -> list[list[int]]:
    """What all ranks together see in each step, in rank order."""
    parts = [labels_of(shard.train(epoch)) for shard in shards(size, batch_size, seed)]
    return [flat(step) for step in zip(*parts, strict=True)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_train_shards_are_disjoint_and_drop_only_the_last_global_batch(size: int) -> None:
    steps = global_batches(size, batch_size=2)
    seen = flat(steps)
    assert len(steps) == 40 // (2 * size) == shards(size, 2)[0].steps_per_epoch
    assert len(set(seen)) == len(seen) == len(steps) * 2 * size
    assert all(len(step) == 2 * size for step in steps)


def test_global_batches_do_not_depend_on_how_many_workers_share_them() -> None:
    assert global_batches(1, 12) == global_batches(2, 6) == global_batches(3, 4) == global_batches(12, 1)


def test_each_epoch_and_each_seed_has_its_own_order() -> None:
    orders = {tuple(flat(global_batches(2, 5, epoch, seed))) for epoch in range(3) for seed in range(3)}
    assert len(orders) == 9
    assert tuple(range(40)) not in orders
    assert global_batches(2, 5, epoch=1, seed=2) == global_batches(2, 5, epoch=1, seed=2)


def test_images_left_over_differ_between_epochs() -> None:
    left_over = [frozenset(range(40)) - frozenset(flat(global_batches(3, 4, epoch))) for epoch in range(4)]
    assert all(len(rest) == 4 for rest in left_over)
    assert len(set(left_over)) > 1


@pytest.mark.parametrize("first_step", [0, 1, 3, 5])
def test_an_epoch_entered_late_repeats_the_unbroken_one_bit_for_bit(first_step: int) -> None:
    shard = shards(2, 4, pad=1, flip=True)[1]
    whole, rest = list(shard.train(7)), list(shard.train(7, first_step))
    assert len(rest) == 5 - first_step
    for (images, labels), (again, labels_again) in zip(whole[first_step:], rest, strict=True):
        assert torch.equal(images, again)
        assert torch.equal(labels, labels_again)


def test_augmentation_does_not_depend_on_how_many_workers_share_a_batch() -> None:
    alone = next(shards(1, 8, pad=1, flip=True)[0].train(3))[0]
    parts = [next(shard.train(3))[0] for shard in shards(4, 2, pad=1, flip=True)]
    assert torch.equal(alone, torch.cat(parts))


@pytest.mark.parametrize("size", [1, 2, 4, 11, 13])
def test_the_test_split_is_seen_exactly_once_over_all_ranks(size: int) -> None:
    batches = [labels_of(shard.test()) for shard in shards(size, 1)]
    counts = [sum(len(batch) for batch in mine) for mine in batches]
    assert sorted(flat(chain.from_iterable(batches))) == list(range(11))
    assert max(counts) - min(counts) <= 1
    assert all(0 < len(batch) <= 2 for mine in batches for batch in mine)


def test_evaluation_batch_size_is_twice_the_training_batch_unless_given() -> None:
    dataset = small_set(test_size=20)
    given, default = Shard(dataset, 0, 1, 4, 7, 0, CPU), Shard(dataset, 0, 1, 4, 0, 0, CPU)
    assert [len(labels) for _, labels in given.test()] == [7, 7, 6]
    assert [len(labels) for _, labels in default.test()] == [8, 8, 4]


def test_a_batch_larger_than_the_set_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match=r"data\.batch_size: 7 images x 6 workers are 42 a step.* only 40"):
        Shard(small_set(), 0, 6, 7, 0, 0, CPU)


WORLDS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), min_size=2, max_size=5)


@given(worlds=WORLDS, count=st.integers(72, 200))
def test_worlds_that_take_over_from_each_other_see_a_permutation(worlds: list[tuple[int, int]], count: int) -> None:
    """No image comes twice, and few are left out.

    worlds  (size, steps after which the next one takes over)
    """
    seen: list[int] = []
    images = 0
    for number, (size, steps) in enumerate(worlds):
        group = shards(size, 8, train_size=count)
        length = group[0].steps_per_epoch
        [step] = {shard.take_over(4, images) - 4 * length for shard in group}
        parts = [labels_of(shard.train(4, step)) for shard in group]
        assert {len(part) for part in parts} == {length - step}
        taken = [flat(batches) for batches in zip(*parts, strict=True)][: steps if number + 1 < len(worlds) else None]
        seen += flat(taken)
        if step + len(taken) == length:
            break
        images = images_seen(group[0].entry, 4, step + len(taken), 8 * size)
        assert images == len(seen)
    left = count - len(set(seen))
    assert len(seen) == len(set(seen))
    # As many as at the end of any epoch; where the epoch was entered within a global batch, fewer than two each.
    room = step + len(taken) == length and (count - images) // (8 * size) < length
    assert left < (2 * size if images % (8 * size) and room else 8 * size)


def test_a_rest_without_two_images_a_worker_is_dropped() -> None:
    group = shards(9, 8, train_size=88)
    assert [shard.take_over(2, 80) for shard in group] == [3] * 9
    assert all(labels_of(shard.train(2, 1)) == [] for shard in group)
    assert group[0].worker_steps(2, 1) == 10
    assert [len(batch) for batch in labels_of(group[8].train(3))] == [8]


def test_what_is_left_for_a_last_step_is_spread_evenly() -> None:
    group = shards(3, 8, train_size=96)
    assert [shard.take_over(0, 32) for shard in group] == [1, 1, 1]
    lengths = [[len(batch) for batch in labels_of(shard.train(0, 1))] for shard in group]
    assert lengths == [[8, 8, 6], [8, 8, 5], [8, 8, 5]]
    assert group[0].worker_steps(0, 4) == 4 + 9
    assert group[0].worker_steps(1, 4) == 12
