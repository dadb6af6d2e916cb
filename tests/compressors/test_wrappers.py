import pytest
import torch

from tests.helpers import Log, answer_all, cut, lay_out
from wirebench import compressors
from wirebench.compressors.common.clipped import Clipped
from wirebench.compressors.common.feedback import Feedback
from wirebench.compressors.common.wrappers import DenseBelow, Warmup
from wirebench.compressors.dgc import Dgc
from wirebench.compressors.none import NoCompression
from wirebench.compressors.topk import TopK
from wirebench.errors import UserError
from wirebench.gradient.conformance import method_of
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Method
from wirebench.gradient.error_memory import ErrorMemory
from wirebench.gradient.requests import Sum, payload

# Dense by dimension, compressed, dense by size, compressed, dense by dimension though large.
LAYERS = lay_out([(3,), (4, 2), (2, 2), (3, 3), (20,)])
NUMEL = LAYERS[-1].stop


class Recorder(Method):
    """Takes the place of a compressor: notes its buckets, sums them, returns the sum without dividing."""

    def __init__(self):
        super().__init__()
        self.buckets = []

    def exchange(self, bucket, world):
        self.buckets.append(bucket)
        return (yield Sum(bucket.grad.clone()))

    def wire_bytes(self, numel, size):
        return numel


def one_step(compressor, groups, grad=None, param=None):
    """The flat result of one rank's buckets in a world of two like it, the buckets, and the requests it made."""
    grad = torch.arange(float(NUMEL)) if grad is None else grad
    log: Log = []
    results = []
    buckets = cut(grad, LAYERS, groups, param)
    for bucket in buckets:
        twin = cut(grad.clone(), LAYERS, groups, param)[bucket.index]
        both = [compressor.exchange(b, ExchangeContext(r, 2)) for r, b in enumerate((bucket, twin))]
        results.append(answer_all(both, log)[0])
    return torch.cat(results), buckets, [requests[0] for requests in log]


def recorded(groups, param=None):
    """The buckets that the inner compressor gets from rank 0, and the requests of all rounds."""
    inner = Recorder()
    _, buckets, requests = one_step(DenseBelow(inner, 8), groups, param=param)
    return inner.buckets[::2], buckets, requests


def test_dense_layers_travel_in_one_sum_and_the_others_in_one_bucket():
    (inner,), _, (dense, sparse) = recorded([range(0, 5)])
    flat = torch.arange(float(NUMEL))
    assert torch.equal(payload(dense), torch.cat([flat[0:3], flat[11:15], flat[24:44]]))
    assert torch.equal(payload(sparse), torch.cat([flat[3:11], torch.zeros(4), flat[15:24]]))
    assert inner.layers == inner.model == (LAYERS[1], LAYERS[3])
    assert inner.numel == 17


@pytest.mark.parametrize("groups", [[range(0, 2), range(2, 4), range(4, 5)], [range(0, 1), range(1, 3), range(3, 5)]])
def test_places_of_the_inner_compressor_do_not_depend_on_the_buckets(groups):
    buckets, _, _ = recorded(groups)
    assert [layer for bucket in buckets for layer in bucket.layers] == [LAYERS[1], LAYERS[3]]
    assert all(bucket.model_numel == 24 for bucket in buckets)
    assert [(b.start, b.stop) for b in buckets] == [(3, 11), (15, 24)]


def test_what_is_compressed_is_not_copied():
    (inner,), (bucket,), _ = recorded([range(0, 5)])
    assert inner.grad.data_ptr() == bucket.grad[3:].data_ptr()
    assert inner.param.data_ptr() == bucket.param[3:].data_ptr()
    assert inner.index == 0
    (bucket,) = cut(torch.arange(float(NUMEL)), LAYERS, [range(0, 1)])
    request = next(DenseBelow(Recorder(), 8).exchange(bucket, ExchangeContext(0, 2)))
    assert isinstance(request, Sum)
    assert request.tensor.data_ptr() == bucket.grad.data_ptr()


def test_one_wrapper_serves_one_model_after_another():
    inner = Recorder()
    wrapper = DenseBelow(inner, 8)
    one_step(wrapper, [range(0, 5)])
    other = lay_out([(9, 9), (3,)])
    (bucket,) = cut(torch.zeros(84), other, [range(0, 2)])
    answer_all([wrapper.exchange(bucket, ExchangeContext(0, 1))])
    assert inner.buckets[-1].layers == inner.buckets[-1].model == other[:1]


def test_equals_compressing_the_compact_model_by_itself():
    rng = torch.Generator().manual_seed(1)
    wrapped, bare, kept = DenseBelow(TopK(0.2), 8), TopK(0.2), [*range(3, 11), *range(15, 24)]
    compact = lay_out([(4, 2), (3, 3)])
    for _ in range(3):
        grad = torch.randn(NUMEL, generator=rng)
        (small,) = cut(grad[kept], compact, [range(0, 2)])
        (large,) = cut(grad, LAYERS, [range(0, 5)])
        (wanted,) = answer_all([bare.exchange(small, ExchangeContext(0, 1))])
        (result,) = answer_all([wrapped.exchange(large, ExchangeContext(0, 1))])
        assert torch.equal(result[kept], wanted)
    held, wanted = wrapped.held_back(NUMEL), torch.zeros(NUMEL)
    wanted[kept] = bare.state_dict()["residual"]
    assert held is not None
    assert torch.equal(held, wanted)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("groups", [[range(0, 5)], [range(0, 2), range(2, 5)], [range(0, 3), range(3, 5)]])
def test_dense_layers_get_the_momentum_that_sgd_would_give_them(groups, nesterov):
    wrapped, weight = DenseBelow(Dgc(0.2, 0.5, nesterov), 8), torch.zeros(NUMEL, requires_grad=True)
    sgd, moved = torch.optim.SGD([weight], lr=1.0, momentum=0.5, nesterov=nesterov), torch.zeros(NUMEL)
    for step in range(4):
        grad = torch.randn(NUMEL, generator=torch.Generator().manual_seed(step))
        weight.grad = grad.clone()
        sgd.step()
        for bucket in cut(grad, LAYERS, groups):
            piece = slice(bucket.start, bucket.stop)
            moved[piece] -= answer_all([wrapped.exchange(bucket, ExchangeContext(0, 1, step))])[0]
    dense = [*range(3), *range(11, 15), *range(24, NUMEL)]
    torch.testing.assert_close(moved[dense], weight.detach()[dense])


def test_bytes_of_a_mixed_plan():
    wrapped = DenseBelow(TopK(0.1), 100)
    assert wrapped.wire_bytes(99, 4) == 4 * 99
    assert wrapped.wire_bytes(100, 4) == 80


def densities_used(compressor, epochs):
    """Entries that one rank sends of 100, at the start of each epoch."""
    used = []
    for epoch in epochs:
        log: Log = []
        (bucket,) = cut(torch.ones(100), lay_out([(10, 10)]), [range(0, 1)])
        answer_all([compressor.exchange(bucket, ExchangeContext(0, 1, epoch=epoch))], log)
        assert log[0][0].values is not None
        used.append(log[0][0].values // 4)
    return used


@pytest.mark.parametrize(("epochs", "entries"), [(range(4), [50, 25, 1, 1]), ([1, 3, 0], [25, 1, 50])])
def test_warmup_sets_the_density_by_the_epoch_alone(epochs, entries):
    assert densities_used(Warmup(TopK(0.01), (0.5, 0.25)), epochs) == entries


def test_warmup_plans_with_the_density_of_most_of_the_run():
    warmup = Warmup(TopK(0.01), (0.5,))
    densities_used(warmup, [0])
    assert warmup.wire_bytes(1000, 4) == TopK(0.01).wire_bytes(1000, 4)


@pytest.mark.parametrize(
    ("name", "warmup", "said"), [("fp16", [0.25], "'fp16'"), ("topk", [0.5, 0.0], "0, 1.*0.5, 0.0")]
)
def test_warmup_needs_a_density_and_has_a_range(name, warmup, said):
    with pytest.raises(UserError, match=f"^compressor.warmup: .*{said}"):
        compressors.build(name, warmup=warmup)


class Owner(NoCompression):
    """A method with its own momentum."""

    owns_momentum = True
    density = 0.5

    def __init__(self):
        super().__init__()
        self.memory = Feedback(0.9)


@pytest.mark.parametrize("wrap", [lambda inner: DenseBelow(inner, 8), lambda inner: Warmup(inner, [0.5])])
def test_wrappers_hand_on_all_that_is_asked_of_a_method(wrap):
    inner, values = Owner(), {name: object() for name in Method.__annotations__ if name != "inner"}
    vars(inner).update(values)
    outer = wrap(inner)
    assert {name: getattr(outer, name) for name in values} == values
    assert (outer.inner, outer.memory, outer.measures) == (inner, inner.memory, inner.measures)
    asked = [name for name, part in vars(Method).items() if callable(part) and not name.startswith("_")]
    assert asked
    assert not [name for name in asked if getattr(type(outer), name) is getattr(Method, name)]


def test_a_compressor_that_is_no_method_becomes_one():
    class Halving:
        owns_momentum = False
        density = 0.5

        def exchange(self, bucket, world):
            return (yield Sum(bucket.grad / 2))

        def wire_bytes(self, numel, size):
            return 2 * numel

        def state_dict(self):
            return {"own": torch.ones(1)}

        def load_state_dict(self, state):
            self.loaded = dict(state)

    bare = Halving()
    method = DenseBelow(method_of(bare), 8)
    assert one_step(method, [range(0, 5)])[0].tolist()[3] == 3, "half of 3 from each of two"
    assert method.wire_bytes(20, 2) == 40
    method.load_state_dict(method.state_dict())
    assert bare.loaded == bare.state_dict()
    assert not method.takes_over
    assert method.density is None
    assert method.held_back(NUMEL) is method.unsent(NUMEL) is None
    assert method.magnitude() is None


def test_a_momentum_that_dense_layers_cannot_follow_is_refused():
    owner = Owner()
    owner.memory = ErrorMemory()
    with pytest.raises(UserError, match="applies a momentum, but its memory is no Feedback"):
        DenseBelow(owner, 8)


@pytest.mark.parametrize(("most", "factor"), [(1.0, 0.2), (5.1, 1.0)])
def test_a_gradient_is_clipped_before_it_is_compressed(most: float, factor: float) -> None:
    grad = torch.zeros(NUMEL)
    grad[:2] = torch.tensor([3.0, -4.0])
    result, _, _ = one_step(Clipped(Recorder(), most), [range(len(LAYERS))], grad)
    torch.testing.assert_close(result[:3], 2 * factor * torch.tensor([3.0, -4.0, 0.0]), rtol=1e-5, atol=0)
    grad[0] = torch.nan
    assert one_step(Clipped(Recorder(), most), [range(len(LAYERS))], grad)[0][0].isnan(), "no divergence is hidden"
