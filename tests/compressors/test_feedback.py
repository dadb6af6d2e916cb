import pytest
import torch

from compressors.feedback import ErrorMemory
from tests.helpers import cut, lay_out
from wirebench.errors import UserError

LAYERS = lay_out([(2, 3), (4,), (5, 1)])
NUMEL = 15


def buckets(*groups, grad=None):
    return cut(torch.zeros(NUMEL) if grad is None else grad, LAYERS, groups)


def test_starts_at_zero_and_remembers_what_is_written_to_a_slice():
    memory, (first, second) = ErrorMemory(), buckets(range(0, 1), range(1, 3))
    assert memory.slice(second).tolist() == [0.0] * 9
    memory.slice(second).add_(2)
    assert memory.slice(first).tolist() == [0.0] * 6
    assert memory.slice(second).tolist() == [2.0] * 9


def test_buckets_cut_anew_find_the_same_elements():
    memory = ErrorMemory()
    for bucket in buckets(range(0, 1), range(1, 3)):
        memory.slice(bucket).copy_(torch.arange(bucket.start, bucket.stop))
    for bucket in buckets(range(0, 2), range(2, 3)):
        assert memory.slice(bucket).tolist() == list(range(bucket.start, bucket.stop))


def test_memories_are_apart_and_like_the_gradient():
    memory = ErrorMemory("momentum", "velocity")
    (bucket,) = buckets(range(0, 3), grad=torch.zeros(NUMEL, dtype=torch.float64))
    memory.slice(bucket, "momentum").fill_(1)
    assert not memory.slice(bucket, "velocity").any()
    assert memory.slice(bucket, "velocity").dtype == torch.float64
    with pytest.raises(AssertionError, match="no memory 'residual'"):
        memory.slice(bucket)


def test_a_bucket_without_its_model_is_the_model():
    memory, (bucket,) = ErrorMemory(), cut(torch.zeros(NUMEL), LAYERS, [range(0, 3)])
    alone = type(bucket)(0, bucket.grad, bucket.param, bucket.layers)
    assert memory.slice(alone).numel() == NUMEL


def test_state_round_trip():
    memory, restored, (bucket,) = ErrorMemory(), ErrorMemory(), buckets(range(0, 3))
    memory.slice(bucket).copy_(torch.arange(NUMEL))
    restored.load_state_dict(memory.state_dict())
    assert restored.slice(bucket).tolist() == list(range(NUMEL))
    memory.slice(bucket).zero_()
    assert restored.slice(bucket).tolist() == list(range(NUMEL)), "a restored memory is a copy"


def test_state_round_trip_before_first_use():
    memory, (bucket,) = ErrorMemory(), buckets(range(0, 3))
    assert memory.state_dict() == {}
    memory.load_state_dict({})
    assert not memory.slice(bucket).any()


def test_an_empty_state_forgets():
    memory, (bucket,) = ErrorMemory(), buckets(range(0, 3))
    memory.slice(bucket).fill_(3)
    memory.load_state_dict({})
    assert not memory.slice(bucket).any()


def test_another_model_is_the_users_mistake():
    memory, (bucket,) = ErrorMemory(), buckets(range(0, 3))
    memory.load_state_dict({"residual": torch.zeros(NUMEL + 1)})
    with pytest.raises(UserError, match="saved residual covers 16 elements, but this run compresses 15"):
        memory.slice(bucket)


def test_an_unknown_memory_is_a_mistake_in_the_code():
    with pytest.raises(AssertionError, match="velocity"):
        ErrorMemory().load_state_dict({"velocity": torch.zeros(1)})


def test_a_restored_memory_follows_the_gradient_to_its_device():
    memory, (bucket,) = ErrorMemory(), buckets(range(0, 3), grad=torch.zeros(NUMEL, device="meta"))
    memory.load_state_dict({"residual": torch.zeros(NUMEL)})
    assert memory.slice(bucket).device.type == "meta"
