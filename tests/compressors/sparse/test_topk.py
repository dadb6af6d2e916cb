import torch

from tests.helpers import Log, answer_all, cut, exchange, lay_out, whole
from wirebench.compressors.topk import TopK
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.requests import Gather, payload


def test_the_result_is_written_into_the_gradient():
    grad = torch.tensor([1.0, 2.0])
    (result,) = answer_all([TopK(0.5).exchange(whole(grad), ExchangeContext(0, 1))])
    assert result.data_ptr() == grad.data_ptr()
    assert grad.tolist() == [0.0, 2.0]


def test_the_message_is_places_in_the_bucket_and_values():
    layers, rank = lay_out([(4, 1), (2, 5)]), TopK(0.2)
    log: Log = []
    _, second = cut(torch.arange(14.0), layers, [range(0, 1), range(1, 2)])
    answer_all([rank.exchange(second, ExchangeContext(0, 1))], log)
    ((request,),) = log
    assert isinstance(request, Gather)
    assert request.values == 2 * 4
    message = payload(request)
    assert message.dtype == torch.uint8
    assert message[:8].view(torch.int32).tolist() == [8, 9]
    assert message[8:].view(torch.float32).tolist() == [12.0, 13.0]
    assert message.nbytes == rank.wire_bytes(10, 1) == 16


def test_zeros_are_not_sent():
    log: Log = []
    exchange([TopK(0.5), TopK(0.5)], [torch.zeros(8), torch.tensor([0.0, 1.0] + [0.0] * 6)], log=log)
    ((first, second),) = log
    assert (first.values, payload(first).numel()) == (0, 0)
    assert (second.values, payload(second).numel()) == (4, 8)


def test_places_beyond_what_a_float_can_count_are_exact():
    numel = 2**24 + 3
    grad = torch.zeros(numel)
    grad[numel - 2 :] = torch.tensor([1.0, 2.0])
    (result,) = exchange([TopK(1e-9)], [grad])
    assert result.nonzero().flatten().tolist() == [numel - 1]
