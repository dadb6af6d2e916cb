"""A lane: gradients arrive in the flat one, buckets cover the layers, exchanges bring the average home."""

import pytest
import torch

from tests.exchange.lanes import (
    LAYERS,
    ORDER,
    PAIRS,
    Averaging,
    check_gradients,
    images,
    lane_of,
    loss_of,
    plain_gradients,
)
from wirebench.comm.local import LocalHub
from wirebench.exchange.advance import run


def alone(**options):
    """A net and its lane in a world of one."""
    return lane_of(LocalHub(1).communicators[0], **options)


def test_gradients_become_views_of_the_flat_one():
    model, lane = alone()
    ready: list[int] = []
    lane.attach(ready.extend)
    lane.begin(0, 0)
    loss_of(model, images(0)).backward()
    assert sorted(ready) == [0, 1, 2, 3, 4, 5], "the odd parameter takes no part"
    for view, parameter in zip(lane.flat.views[:6], lane.flat.parameters[:6], strict=True):
        assert parameter.grad is view
    assert lane.fill_unused() == [6]
    check_gradients(model, plain_gradients([images(0)]))


def test_small_gradients_are_taken_together_with_the_last_of_their_bucket():
    model, lane = alone(groups=PAIRS)
    told: list[list[int]] = []
    lane.attach(lambda layers: told.append(list(layers)))
    lane.set_buckets([range(0, 4), range(4, 7)])  # the hooks follow a new cut
    lane.begin(0, 0)
    loss_of(model, images(0)).backward()
    assert any(len(layers) > 1 for layers in told), "one hook for several"
    assert lane.has_gradients
    lane.fill_unused()
    assert sorted(layer for layers in told for layer in layers) == [0, 1, 2, 3, 4, 5]
    check_gradients(model, plain_gradients([images(0)]))


def test_a_layer_that_has_completed_a_bucket_is_taken_at_once_from_then_on():
    model, lane = alone(groups=[LAYERS])
    told: list[list[int]] = []
    lane.attach(lambda layers: told.append(list(layers)))
    for heard in (False, True):
        if heard:
            lane.hear(2)
            lane.hear(2)
        lane.begin(int(heard), 0)
        told.clear()
        loss_of(model, images(0)).backward()
        assert any(layers[-1] == 2 for layers in told) == heard, told
        lane.fill_unused()
        check_gradients(model, plain_gradients([images(0)]))


def test_a_new_step_forgets_the_gradients_of_the_one_before():
    model, lane = alone()
    lane.attach(lambda _: None)
    lane.begin(0, 0)
    loss_of(model, images(0)).backward()
    lane.begin(1, 0)
    assert all(parameter.grad is None for parameter in model.parameters())
    model.skip = True
    loss_of(model, images(1)).backward()
    assert lane.fill_unused() == [2, 3, 6]
    check_gradients(model, plain_gradients([images(1)], skip=True))


@pytest.mark.parametrize(
    "groups", [[range(6)], [range(0, 3), range(4, 7)], [range(0, 4), range(3, 7)], [range(3, 7), range(0, 3)], []]
)
def test_buckets_cover_the_layers_in_order(groups):
    _, lane = alone()
    with pytest.raises(AssertionError, match="groups must cover the layers in order"):
        lane.set_buckets(groups)


def test_buckets_can_be_cut_again():
    _, lane = alone(groups=[LAYERS])
    assert [bucket.grad.numel() for bucket in lane.buckets] == [lane.flat.grad.numel()]
    lane.set_buckets(PAIRS)
    assert [[layer.name for layer in bucket.layers] for bucket in lane.buckets] == [ORDER[:2], ORDER[2:4], ORDER[4:]]
    assert [bucket.index for bucket in lane.buckets] == [0, 1, 2]


def test_the_average_comes_home_whether_it_is_made_in_place_or_not():
    class InPlace(Averaging):
        def exchange(self, bucket, world):
            total = yield from super().exchange(bucket, world)
            return bucket.grad.copy_(total)

    for kind in (Averaging, InPlace):
        lanes = [lane_of(c, PAIRS, compressor=kind())[1] for c in LocalHub(3).communicators]
        for lane in lanes:
            lane.flat.grad.fill_(lane.world.rank)
        results = run([lane.exchange(lane.buckets[1]) for lane in lanes])
        for lane, result in zip(lanes, results, strict=True):
            bucket = lane.buckets[1]
            assert result is bucket.grad
            assert set(bucket.grad.tolist()) == {1.0}, "the mean of 0, 1 and 2"
            outside = torch.cat([lane.flat.grad[: bucket.start], lane.flat.grad[bucket.stop :]])
            assert set(outside.tolist()) == {float(lane.world.rank)}, "other buckets are left alone"


def test_the_compressor_is_told_who_and_when():
    compressor = Averaging()
    _, lane = lane_of(LocalHub(1).communicators[0], compressor=compressor)
    lane.begin(12, 3)
    run([lane.exchange(lane.buckets[2])])
    ((index, world, _),) = compressor.seen
    assert index == 2
    assert (world.rank, world.size, world.step, world.epoch, world.seed) == (0, 1, 12, 3, 7)
