"""Virtual workers: after a step every one holds the mean of all gradients."""

import pytest

from tests.exchange.lanes import LAYERS, PAIRS, WFBP, check_gradients, images, lanes_of, loss_of, plain_gradients
from wirebench.exchange.lockstep import Lockstep


def train_one_step(lockstep: Lockstep, models, step: int) -> None:
    lockstep.begin(step, 0)
    lockstep.enable_sync()
    for rank, model in enumerate(models):
        loss_of(model, images(10 * step + rank)).backward()
    lockstep.finish()


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("groups", [WFBP, PAIRS, [LAYERS]])
def test_every_worker_ends_with_the_mean(size, groups):
    models, lanes = lanes_of(size, groups)
    lockstep = Lockstep(lanes)
    for step in range(2):
        train_one_step(lockstep, models, step)
        expected = plain_gradients([images(10 * step + rank) for rank in range(size)])
        for model in models:
            check_gradients(model, expected)
        assert all((lane.flat.grad == lanes[0].flat.grad).all() for lane in lanes), "to the bit"


def test_a_layer_that_one_worker_skips_still_gets_the_others_gradient():
    models, lanes = lanes_of(2)
    models[0].skip = True
    train_one_step(Lockstep(lanes), models, 0)
    skipped, used = plain_gradients([images(0)], skip=True), plain_gradients([images(1)])
    expected = {name: (skipped[name] + used[name]) / 2 for name in used}
    for model in models:
        check_gradients(model, expected)


def test_the_logs_are_all_workers_and_are_emptied():
    models, lanes = lanes_of(3, PAIRS)
    lockstep = Lockstep(lanes)
    train_one_step(lockstep, models, 0)
    logs = [lane.server.log for lane in lanes]
    first = logs[0]
    assert lockstep.take_logs() == logs
    assert [served.payload_bytes for served in first] == [4 * (b.stop - b.start) for b in lanes[0].buckets]
    assert not any(lane.server.log for lane in lanes)


def test_closing_detaches_from_the_models():
    models, lanes = lanes_of(2)
    lockstep = Lockstep(lanes)
    lockstep.close()
    lockstep.begin(0, 0)
    loss_of(models[0], images(0)).backward()
    assert not lanes[0].flat.grad.any()
