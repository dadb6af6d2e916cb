"""Exchanges that are replayed from graphs equal those that run as usual, to the bit."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs Triton: pip install triton")

from tests.exchange.lanes import lanes_of
from tests.exchange.tape import Tape
from tests.helpers import answer_all, lay_out
from wirebench import compressors
from wirebench.compressors import kernels
from wirebench.compressors.common.wrappers import DenseBelow, Warmup
from wirebench.compressors.kernels import selection, thin
from wirebench.errors import UserError
from wirebench.exchange import graphs as graphs_module
from wirebench.exchange.advance import run
from wirebench.exchange.graphs import WARM_UP, Graphs
from wirebench.gradient import conformance
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.requests import Gather, Request, Sum, handed_over

LAYERS = lay_out([(8, 6), (5,), (7, 3), (1,)])
STEPS, RANKS = 7, 2
MEASURED, ELSEWHERE = 4, 5
"""Steps that measure, and whose gradient lies elsewhere in memory."""
SLOW = pytest.mark.slow
CAPTURED = [
    ("none", {}), ("fp16", {}), ("topk", {"density": 0.1}),
    *(pytest.param(name, options, marks=SLOW) for name, options in [
        ("powersgd", {"min_compression_rate": 1.0, "rank": 1}), ("bf16", {}), ("dgc", {"density": 0.1}),
        ("topk", {"density": 0.1, "values": "fp16", "indices": "bitmap"}),
        ("chunk_topk", {}), ("signsgd", {}),
        ("int8", {"rounding": "nearest"}), ("quantised_sum", {}), ("quantised_sum", {"form": "fp8", "rotate": 4}),
        ("dion", {}), ("dion", {"orthonormal": True}), ("powersgd", {"rank": 6, "min_compression_rate": 1.0}),
        ("fetch_sgd", {"rows": 3, "columns": 12, "density": 0.1}),
        ("fetch_sgd", {"rows": 3, "columns": 12, "density": 0.1, "clear": "subtract"}),
    ]),
    # chunk_topk and signsgd use the same kernels; these take 20 s each.
    *(pytest.param(name, options, marks=pytest.mark.weekly) for name, options in [
        ("demo", {"chunk": 4, "k": 3}), ("onebit", {}),
    ]),
]  # fmt: skip


@pytest.fixture(autouse=True)
def kernels_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    monkeypatch.setattr(selection, "PROGRAMS", 1)
    monkeypatch.setattr(thin, "MOST", 4)
    monkeypatch.setattr(thin, "BLOCK", 16)


def noted(exchange: Exchange, addresses: list[int]) -> Generator[Request, Any, Tensor]:
    """An exchange, and where its requests lie."""
    answer = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration as stop:
            return stop.value
        addresses += [each.data_ptr() for each in handed_over(request)]
        answer = yield request


def trained(methods: Sequence[Method], exchanges: Sequence[Any], dtype: torch.dtype) -> tuple[list[Any], list[Any]]:
    """What some steps give, and the states after them; and the addresses of each step's requests."""
    numel, generator = LAYERS[-1].stop, torch.Generator().manual_seed(0)
    grads, told, places = [torch.empty(numel, dtype=dtype) for _ in methods], list[Any](), list[Any]()
    for step in range(STEPS):
        addresses: list[int] = []
        ranks = []
        for rank, (grad, exchange) in enumerate(zip(grads, exchanges, strict=True)):
            grad = torch.empty_like(grad) if step == ELSEWHERE else grad
            grad.copy_(torch.randn(numel, generator=generator))
            world = ExchangeContext(rank, len(methods), step, seed=3, measuring=step == MEASURED)
            ranks.append(noted(exchange(Bucket(0, grad, grad[:0], LAYERS), world), addresses))
        told.append([average.clone() for average in answer_all(ranks)])
        told.append([{name: each.clone() for name, each in method.state_dict().items()} for method in methods])
        places.append(addresses)
    return told, places


def usual(method: Method) -> Any:
    return lambda bucket, world: conformance.exchange(method, bucket, world)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's
@pytest.mark.parametrize(("name", "options"), CAPTURED)
def test_replayed_steps_equal_usual_ones(name: str, options: Mapping[str, Any]) -> None:
    check([compressors.build(name, **options) for _ in range(2 * RANKS)])


@SLOW
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("none", {}), ("topk", {"density": 0.1}), ("powersgd", {"min_compression_rate": 1.0, "rank": 1}),
        ("int8", {"rounding": "nearest"}), ("signsgd", {}),
    ],
)  # fmt: skip
def test_so_do_those_of_one_rank(name: str, options: Mapping[str, Any]) -> None:
    """A method of each kind of request."""
    check([compressors.build(name, **options) for _ in range(2)])


@SLOW
def test_so_do_those_of_a_bfloat16_model_whose_vectors_go_dense() -> None:
    check([DenseBelow(compressors.build("dgc", density=0.1), 20) for _ in range(2 * RANKS)], torch.bfloat16)


def check(methods: Sequence[Method], dtype: torch.dtype = torch.float32) -> None:
    """Half of these methods run as usual, half by graphs."""
    plain, replayed = methods[: len(methods) // 2], methods[len(methods) // 2 :]
    expected, _ = trained(plain, [usual(each) for each in plain], dtype)
    found, places = trained(replayed, [Graphs(each, Tape).exchange for each in replayed], dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    captured = [places[step] for step in range(WARM_UP, STEPS) if step != MEASURED]
    assert all(each == captured[0] for each in captured), "a replayed step's messages lie where the captured one's do"


NAMES = compressors.available()


def test_most_methods_say_why_they_cannot_be_captured() -> None:
    reasons = {name: compressors.build(name) for name in NAMES}
    refused = {name: method.uncaptured for name, method in reasons.items() if method.uncaptured}
    alike = {each if isinstance(each, str) else each.values[0] for each, *_ in map(parameters, CAPTURED)}
    assert set(refused) | alike == set(NAMES)
    assert set(refused) & alike <= {"int8"}  # which rounds at random by default
    for name, reason in refused.items():
        with pytest.raises(UserError, match=f"^engine.cuda_graphs: '{name}' cannot be captured: "):
            Graphs(reasons[name])
        assert "declare" not in reason


def parameters(each: Any) -> tuple[Any, ...]:
    return each if type(each) is tuple else each.values


def second(method: Method) -> None:
    """The exchanges of one rank until its graphs are captured."""
    graphs = Graphs(method, Tape)
    for step in range(WARM_UP + 1):
        grad = torch.ones(LAYERS[-1].stop)
        answer_all([graphs.exchange(Bucket(0, grad, grad[:0], LAYERS), ExchangeContext(0, 1, step))])


class Alike(Method):
    """A method that says that it can be captured, and cannot."""

    uncaptured = ""

    def wire_bytes(self, numel: int, size: int) -> int:
        """Dense."""
        return 4 * numel


class Reads(Alike):
    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        total = yield Sum(bucket.grad)
        return total.mul_(float(total.sum()))


class Draws(Alike):
    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        total = yield Sum(bucket.grad)
        return total.add_(torch.rand(total.numel(), generator=world.shared_rng("mine")))


class Moves(Alike):
    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        total = yield Sum(bucket.grad)
        self.shared["last"] = total.clone()
        return total


class Keeps(Alike):
    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        residual = self.memory.slice(bucket).add_(bucket.grad)
        sent = residual.round()
        residual -= sent
        total = yield Sum(sent)
        return bucket.grad.copy_(total).div_(world.size)


class Grows(Alike):
    rounds = 0

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        self.rounds += 1
        mine, _ = yield Gather(bucket.grad.new_zeros(self.rounds))
        return bucket.grad.add_(mine.sum())


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (Reads(), "_local_scalar_dense is not permitted"),
        (Draws(), "with these options it draws on the host"),
        (Moves(), "a step leaves its state in other memory than the step before"),
        (compressors.build("powersgd", start_step=1), "with these options it reads the step's number"),
        (Warmup(compressors.build("topk"), [0.5]), "the warm-up changes its density by epoch"),
        (compressors.build("fetch_sgd", hash="reference"), "hash = reference reads numbers on the host"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else "",
)  # fmt: skip
def test_what_a_graph_cannot_repeat_is_refused_in_a_line(method: Method, reason: str) -> None:
    with pytest.raises(UserError, match=f"^engine.cuda_graphs: .* cannot be captured: {reason}.*; set it to false$"):
        second(method)


def test_an_answer_of_another_length_is_refused() -> None:
    graphs = [Graphs(Grows(), Tape) for _ in range(2)]
    with pytest.raises(UserError, match="an answer has another length"):
        for step in range(WARM_UP + 1):
            grads = [torch.ones(LAYERS[-1].stop) for _ in graphs]
            worlds = [ExchangeContext(rank, 2, step) for rank in range(2)]
            answer_all(
                [g.exchange(Bucket(0, x, x[:0], LAYERS), w) for g, x, w in zip(graphs, grads, worlds, strict=True)]
            )


def test_replayed_steps_look_at_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its addresses are compared after an exchange as usual, and after a restored state, which is captured anew."""
    looked: list[int] = []
    addresses = graphs_module._addresses

    def noting(method: Method) -> list[int]:
        looked.append(1)
        return addresses(method)

    monkeypatch.setattr(graphs_module, "_addresses", noting)
    method = DenseBelow(Keeps(), 6)
    graphs, seen = Graphs(method, Tape), []
    for step in range(14):
        if step == 9:
            method.load_state_dict(method.state_dict())
        before = len(looked)
        grad = torch.ones(LAYERS[-1].stop)
        world = ExchangeContext(0, 1, step, measuring=step == 6)
        answer_all([graphs.exchange(Bucket(0, grad, grad[:0], LAYERS), world)])
        seen.append(len(looked) - before)
    once = [0, 0, 2, 1, 0, 0, 0, 1, 0]
    assert seen == [*once, 1, 0, 2, 1, 0]


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_method_says_so(name: str) -> None:
    method = compressors.build(name)
    for number in (1, 2):
        method.load_state_dict(method.state_dict())
        assert method.restored == number
    method.take_over([method.state_dict()])
    assert method.restored == 3


def test_a_restored_state_and_another_cut_are_captured_anew() -> None:
    """By lanes of virtual workers."""
    (_, plain), (_, replayed) = lanes_of(2), lanes_of(2)
    for lane in (*plain, *replayed):
        lane.compressor = Keeps()
    for lane in replayed:
        lane.graphs = Graphs(lane.compressor, Tape)
    generator = torch.Generator().manual_seed(1)
    layers = range(len(plain[0].flat.layers))
    for step in range(12):
        if step == 4:
            for lane in (*plain, *replayed):
                lane.compressor.load_state_dict(lane.compressor.state_dict())
        if step == 8:
            for lane in (*plain, *replayed):
                lane.set_buckets([layers])
        for one, other in zip(plain, replayed, strict=True):
            one.begin(step, 0)
            other.begin(step, 0)
            one.flat.grad.copy_(torch.randn(one.flat.grad.numel(), generator=generator))
            other.flat.grad.copy_(one.flat.grad)
        for lanes in (plain, replayed):
            for buckets in zip(*(lane.buckets for lane in lanes), strict=True):
                run([lane.exchange(bucket) for lane, bucket in zip(lanes, buckets, strict=True)])
        for one, other in zip(plain, replayed, strict=True):
            assert torch.equal(one.flat.grad, other.flat.grad), step
