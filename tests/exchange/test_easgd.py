"""Elastic averaging: the paper's update by hand, what is shown, and a resumed run that ends as an unbroken one."""

import pytest
import torch

from tests.exchange.lanes import LAYERS, Net, lane_of, lanes_of, local_step, one_step
from wirebench import schedulers
from wirebench.comm.local import LocalCommunicator, LocalHandle, LocalHub
from wirebench.errors import UserError
from wirebench.exchange.easgd import Elastic

RATE, BETA = 0.1, 0.6


def sgd(model):
    return torch.optim.SGD(model.parameters(), RATE, momentum=0.5)


def by_hand(size, steps):
    """Zhang et al., Eq. 5 and 6, with plain models and plain sums; returns all weights, then the centre."""
    models = [Net() for _ in range(size)]
    optimizers = [sgd(model) for model in models]
    centre = [p.detach().clone() for p in models[0].parameters()]
    for step in range(steps):
        before = [[p.detach().clone() for p in model.parameters()] for model in models]
        local_step(models, optimizers, step)
        with torch.no_grad():
            for model, own in zip(models, before, strict=True):
                for p, was, c in zip(model.parameters(), own, centre, strict=True):
                    p.sub_(BETA / size * (was - c))
        centre = [c + BETA / size * sum(each[place] - c for each in before) for place, c in enumerate(centre)]
    return [list(model.parameters()) for model in models], centre


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_update_is_the_papers(size):
    models, lanes = lanes_of(size, [LAYERS])
    optimizers = [sgd(model) for model in models]
    driver = Elastic(lanes, optimizers, BETA, overlaps=False)
    for step in range(4):
        one_step(driver, models, optimizers, step)
        assert [len(log) for log in driver.take_logs()] == [1] * size
    weights, centre = by_hand(size, 4)
    for model, expected in zip(models, weights, strict=True):
        for p, q in zip(model.parameters(), expected, strict=True):
            assert torch.allclose(p, q, rtol=1e-5, atol=1e-6)
    with driver.evaluation_view():
        for model in models:
            for p, q in zip(model.parameters(), centre, strict=True):
                assert torch.allclose(p, q, rtol=1e-5, atol=1e-6)
    assert torch.allclose(next(models[0].parameters()), weights[0][0], rtol=1e-5, atol=1e-6)
    driver.close()


class Alike(LocalCommunicator):
    """Rank 0 of two whose peer always holds the same weights."""

    def __init__(self):
        super().__init__(LocalHub(2), 0)

    def all_reduce(self, tensor):
        return LocalHandle(lambda: tensor.mul_(2), tensor.nbytes)


def test_the_sum_is_of_the_weights_that_the_step_began_with_also_in_a_thread():
    model, lane = lane_of(Alike(), [LAYERS])
    optimizer = sgd(model)
    driver = Elastic([lane], [optimizer], BETA, overlaps=True)
    first = lane.flat.gather_weights()
    one_step(driver, [model], [optimizer], 0)
    assert torch.allclose(driver.holders[0].message, 2 * first)
    driver.holding = True
    one_step(driver, [model], [optimizer], 1)
    [duration] = driver.take_durations()
    assert duration.seconds > 0
    driver.close()


def test_beta_has_its_range():
    with pytest.raises(UserError, match=r"beta lies in \(0, 1\]"):
        schedulers.build("easgd", beta=0.0)
