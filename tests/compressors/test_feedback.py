import pytest
import torch

from tests.helpers import answer_all, cut, exchange, lay_out
from wirebench import compressors
from wirebench.compressors.common.feedback import Feedback
from wirebench.errors import UserError
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.error_memory import ErrorMemory

LAYERS = lay_out([(2, 3), (4,), (5, 1)])
NUMEL = 15


def buckets(*groups, grad=None):
    return cut(torch.zeros(NUMEL) if grad is None else grad, LAYERS, groups)


def test_memories_are_apart_and_like_the_gradient():
    memory = ErrorMemory("momentum", "velocity")
    (bucket,) = buckets(range(0, 3), grad=torch.zeros(NUMEL, dtype=torch.float64))
    memory.slice(bucket, "momentum").fill_(1)
    assert not memory.slice(bucket, "velocity").any()
    assert memory.slice(bucket, "velocity").dtype == torch.float64
    with pytest.raises(AssertionError, match="no memory 'residual'"):
        memory.slice(bucket)


def test_state_round_trip():
    memory, restored, (bucket,) = ErrorMemory(), ErrorMemory(), buckets(range(0, 3))
    assert memory.state_dict() == {}
    memory.load_state_dict({})
    memory.slice(bucket).copy_(torch.arange(NUMEL))
    restored.load_state_dict(memory.state_dict())
    memory.slice(bucket).zero_()
    assert restored.slice(bucket).tolist() == list(range(NUMEL)), "a restored memory is a copy"
    restored.load_state_dict({})
    assert not restored.slice(bucket).any()


def test_another_model_is_the_users_mistake():
    memory, (bucket,) = ErrorMemory(), buckets(range(0, 3))
    memory.load_state_dict({"residual": torch.zeros(NUMEL + 1)})
    with pytest.raises(UserError, match="saved residual covers 16 elements, but this run compresses 15"):
        memory.slice(bucket)


def test_a_restored_memory_follows_the_gradient_to_its_device():
    memory, (bucket,) = ErrorMemory(), buckets(range(0, 3), grad=torch.zeros(NUMEL, device="meta"))
    memory.load_state_dict({"residual": torch.zeros(NUMEL)})
    assert memory.slice(bucket).device.type == "meta"


def one_layer(grad):
    return cut(torch.tensor(grad), lay_out([(len(grad), 1)]), [range(0, 1)])[0]


ALONE = ExchangeContext(0, 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("masking", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_with_all_sent_it_is_dense_momentum_sgd(nesterov, masking):
    grads = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))
    weight = torch.zeros(5, requires_grad=True)
    sgd = torch.optim.SGD([weight], lr=1.0, momentum=0.9, nesterov=nesterov)
    feedback, moved = Feedback(0.9, nesterov, masking=masking), torch.zeros(5)
    for grad in grads:
        bucket = one_layer(grad.tolist())
        moved -= feedback.accumulate(bucket, ALONE)
        feedback.sent_all(bucket)
        weight.grad = grad.clone()
        sgd.step()
        torch.testing.assert_close(moved, weight.detach())


@pytest.mark.parametrize(("grad", "size", "factor"), [([3.0, 4.0], 4, 0.4), ([0.3, 0.4], 1, 1.0), ([0.0, 0.0], 1, 1.0)])
def test_each_rank_clips_to_its_share_and_not_what_is_small(grad, size, factor):
    bucket = one_layer(grad)
    Feedback(clip=4.0).accumulate(bucket, ExchangeContext(0, size))
    torch.testing.assert_close(bucket.grad, factor * torch.tensor(grad))


def test_a_norm_of_the_whole_gradient_cannot_be_judged_by_the_bucket():
    feedback = Feedback(clip=1.0)
    first, _ = buckets(range(0, 1), range(1, 3))
    with pytest.raises(AssertionError, match="clip needs the whole model in one bucket"):
        feedback.accumulate(first, ALONE)


@pytest.mark.parametrize("name", ["dgc", "gs_sgd", "sketched_sgd", "iwp"])
def test_methods_that_clip_need_the_whole_model_and_own_their_momentum(name):
    for dense_below in (0, 1):
        assert compressors.build(name, clip=0.5, dense_below=dense_below).whole_model
        assert not compressors.build(name, dense_below=dense_below).whole_model
    assert compressors.build(name).owns_momentum and not compressors.build(name, momentum=0.0).owns_momentum


def test_layers_that_go_dense_are_not_clipped():
    wrapped, (bucket,) = compressors.build("dgc", density=1.0, clip=1.0, dense_below=1), buckets(range(0, 3))
    bucket.grad.fill_(5.0)
    (result,) = answer_all([wrapped.exchange(bucket, ALONE)])
    assert result[6:10].tolist() == [5.0] * 4
    assert result[[*range(6), *range(10, 15)]].norm().item() == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_spread_by_clipping(bad):
    bucket = one_layer([3.0, bad, 4.0])
    residual = Feedback(clip=1.0).accumulate(bucket, ALONE)
    assert residual.isfinite().tolist() == [True, False, True]


@pytest.mark.parametrize("name", ["chunk_topk", "int8", "onebit", "signsgd"])
def test_the_energy_that_stays_is_over_that_of_what_was_to_be_sent(name):
    """In a second step, whose gradient the first one's residual joins; and only where it is measured."""
    rank, generator = compressors.build(name, dense_below=0), torch.Generator().manual_seed(0)
    first, second = torch.randn(2, NUMEL, generator=generator)
    exchange([rank], [first], LAYERS)
    assert not rank.measures.names
    held = getattr(rank, "beta", 1.0) * rank.state_dict()["residual"]
    exchange([rank], [second], LAYERS, step=1, measuring=True)
    assert rank.measures.names == ["kept_energy"]
    stays, before = rank.state_dict()["residual"], held + second
    wanted = torch.stack([stays @ stays, before @ before])
    torch.testing.assert_close(rank.measures.take().flatten(), wanted, check_dtype=False)
