"""The loss: with and without auxiliary heads, smoothed, and in fp32."""

import math

import pytest
import torch
from torchvision.models.googlenet import GoogLeNetOutputs
from torchvision.models.inception import InceptionOutputs

from wirebench.errors import UserError
from wirebench.training.loss import cross_entropy, logits_of

LABELS = torch.tensor([0, 2])
UNIFORM = torch.zeros(2, 4)


@pytest.mark.parametrize("made", [GoogLeNetOutputs(UNIFORM, UNIFORM, None), InceptionOutputs(UNIFORM, UNIFORM)])
def test_torchvisions_heads_have_names(made):
    assert logits_of(made) is UNIFORM
    assert cross_entropy(made, LABELS).item() == pytest.approx(1.3 * math.log(4))


@pytest.mark.parametrize("output", [{"logits": UNIFORM}, (UNIFORM,), (UNIFORM, UNIFORM), [UNIFORM, []], None])
def test_another_output_is_refused(output):
    with pytest.raises(UserError, match=rf"its output is a {type(output).__name__}; it must be logits, or a tuple"):
        cross_entropy(output, LABELS)


def test_plain_value():
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])  # p(label) = 3/4 and 1/2
    loss = cross_entropy(logits, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)


def test_auxiliary_heads_weigh_three_tenths():
    sure = torch.zeros(2, 4).scatter(1, LABELS[:, None], 100.0)  # loss 0
    assert cross_entropy((UNIFORM, [UNIFORM, UNIFORM]), LABELS).item() == pytest.approx(1.6 * math.log(4))
    assert cross_entropy((sure, [UNIFORM, sure]), LABELS).item() == pytest.approx(0.3 * math.log(4))


def test_gradient_reaches_every_head():
    heads = [torch.zeros(2, 4, requires_grad=True) for _ in range(3)]
    cross_entropy((heads[0], heads[1:]), LABELS).backward()
    assert heads[0].grad is not None and heads[0].grad[0, 0].item() == pytest.approx(-0.75 / 2)
    for head in heads[1:]:
        assert head.grad is not None and torch.allclose(head.grad, 0.3 * heads[0].grad)


def test_label_smoothing_applies_to_every_head():
    logits = torch.tensor([[math.log(3.0), 0.0]])  # minus log probabilities: log 4/3 and log 4
    smoothed = 0.9 * math.log(4 / 3) + 0.1 * math.log(4)  # 0.2 spread over two classes
    label = torch.tensor([0])
    assert cross_entropy(logits, label, 0.2).item() == pytest.approx(smoothed)
    assert cross_entropy((logits, [logits]), label, 0.2).item() == pytest.approx(1.3 * smoothed)


def test_fp32_inside_and_after_autocast():
    layer = torch.nn.Linear(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = layer(torch.ones(2, 3))
        assert logits.dtype == torch.bfloat16
        inside = cross_entropy((logits, [logits]), LABELS)
    after = cross_entropy((logits, [logits]), LABELS)
    assert inside.dtype == after.dtype == torch.float32
    assert inside.item() == after.item() == cross_entropy((logits.float(), [logits.float()]), LABELS).item()
