"""quantised_sum: its numbers bit by bit, the sum against fp32, where shares go, and that nothing is lost."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import Log, exchange, normal
from wirebench import compressors
from wirebench.compressors import quantised_sum
from wirebench.compressors.bits.narrow import message_bytes, quantised, restored
from wirebench.compressors.quantised_sum import QuantisedSum
from wirebench.errors import UserError
from wirebench.gradient.error_memory import RESIDUAL
from wirebench.gradient.requests import Route

FORMS = ("int4", "int8", "fp8")
STEP = {"int4": 1 / 7, "int8": 1 / 127, "fp8": 1 / 8}
"""Distance of neighbours, of a chunk's largest magnitude: of fp8 (three bits behind the point) at the upper end."""


def coded(values: Tensor, chunk: int, form: Any) -> tuple[Tensor, Tensor]:
    """The message of these numbers, and what arrives of them; what is left is the difference."""
    left = values.clone()
    message = quantised(left, chunk, form, values.numel())
    arriving = restored([message], chunk, form, torch.empty_like(values))
    assert torch.equal(left, values - arriving)
    return message, arriving


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1.0, 1e-28, 1e-38, 1e-41, 1e-42, 1e-44])
def test_what_arrives_is_near_or_nothing(form: Any, scale: float) -> None:
    values = normal(1, 0, 1024)[0] * (scale * torch.logspace(-6, 6, 1024) if scale > 1e-36 else scale)
    values[256:320] = 0
    message, arriving = coded(values, 64, form)
    assert message.dtype == torch.uint8 and message.numel() == message_bytes(1024, 64, form)
    if scale > 1e-36:
        off, largest = (each.view(-1, 64).abs().amax(1) for each in (values - arriving, values))
        assert bool((off <= 0.5001 * STEP[form] * largest).all())
        assert not arriving[256:320].any()
    else:
        assert not arriving.any()


@pytest.mark.parametrize("form", FORMS)
def test_what_waits_of_a_gradient_that_has_ended_fades(form: Any) -> None:
    """What ranks hold back shrinks with every step down to where scales are no normal numbers, and stays there."""
    methods = [QuantisedSum(form, chunk=64) for _ in range(2)]
    exchange(methods, normal(2, 0, 256))
    waiting = [float("inf")]
    for _ in range(60):
        assert all(bool(each.isfinite().all()) for each in exchange(methods, [torch.zeros(256)] * 2))
        waiting.append(sum(float(each.memory.state_dict()[RESIDUAL].double().norm()) for each in methods))
        assert waiting[-1] < 0.5 * waiting[-2] or waiting[-1] < 1e-34
    assert waiting[-1] < 1e-34


@pytest.mark.parametrize("form", FORMS)
def test_without_feedback_the_average_is_near(form: Any) -> None:
    given = normal(4, 0, 1000)
    results = exchange([QuantisedSum(form, chunk=64, feedback=False) for _ in range(4)], given)
    assert all(torch.equal(result, results[0]) for result in results)
    wanted = torch.stack(given).mean(0)
    # A worker's rounding and that of the sum, half a step of the largest entry each.
    largest = max(float(each.abs().max()) for each in given)
    assert float((results[0] - wanted).abs().max()) < STEP[form] * largest


def test_int4_by_hand() -> None:
    values = torch.tensor([7.0, -7.0, 3.4, -0.6])
    message, arriving = coded(values, 4, "int4")
    assert arriving.tolist() == [7.0, -7.0, 3.0, -1.0]
    assert message[:4].view(torch.float32).item() == 1.0
    assert message[4:].tolist() == [0x7 | (0x9 << 4), 0x3 | (0xF << 4)], "two's complement, the first one low"


@pytest.mark.sampled(16)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("size", "group"), [(1, 0), (3, 0), (4, 0), (4, 2), (6, 3), (4, 4), (4, 1)])
@pytest.mark.parametrize("numel", [1, 1000, 4096])
def test_all_ranks_have_the_same_and_nothing_is_lost(form: Any, size: int, group: int, numel: int) -> None:
    methods = [QuantisedSum(form, chunk=16, group=group) for _ in range(size)]
    applied, total = torch.zeros(numel, dtype=torch.float64), torch.zeros(numel, dtype=torch.float64)
    for step in range(3):
        given = normal(size, step, numel)
        results = exchange(methods, given)
        assert all(torch.equal(result, results[0]) for result in results)
        applied += size * results[0].double()
        total += torch.stack(given).double().sum(0)
    held = torch.stack([method.memory.state_dict()[RESIDUAL].double() for method in methods]).sum(0)
    assert torch.allclose(applied + held, total, atol=1e-5)
    assert float(held.norm()) < 0.5 * float(total.norm()) + 1


@pytest.mark.parametrize("group", [0, 2])
def test_a_rank_sends_what_it_says_and_less_between_machines(group: int) -> None:
    log: Log = []
    methods = [QuantisedSum("int4", group=group, feedback=False) for _ in range(4)]
    exchange(methods, normal(4, 0, 8192), log=log)
    mine = [requests[0] for requests in log]
    first = message_bytes(8192, 256, "int4")
    routes = [request for request in mine if isinstance(request, Route)]
    wanted = [first, first // 2] if group else [first]
    assert [sum(part.numel() for part in route.parts) for route in routes] == wanted
    assert mine[-1].tensor.numel() == first // 4  # type: ignore[union-attr]
    if group:
        assert [part.numel() > 0 for part in routes[0].parts] == [True, True, False, False]
        assert [part.numel() > 0 for part in routes[1].parts] == [True, False, True, False]
    # A byte has two numbers; 256 of them have a scale of four bytes, which is no value.
    assert [request.values for request in mine if not isinstance(request, Route)] == [8192 // 2 // 4]
    assert [route.values for route in routes] == ([4096, 2048] if group else [4096])
    assert methods[0].wire_bytes(8192, 4) == first + (first // 2 if group else 0) + first // 4


def test_the_form_within_machines_is_that_of_the_first_stage_alone() -> None:
    log: Log = []
    exchange([QuantisedSum("int4", group=2, within="bf16") for _ in range(4)], normal(4, 0, 8192), log=log)
    first, second, last = (requests[0] for requests in log)
    assert isinstance(first, Route) and isinstance(second, Route)
    sent = [sum(part.numel() for part in each.parts) for each in (first, second)]
    assert sent == [2 * 8192, message_bytes(4096, 256, "int4")]
    assert last.tensor.numel() == message_bytes(2048, 256, "int4")  # type: ignore[union-attr]


def test_ranks_and_steps_draw_apart_and_a_run_draws_again_alike() -> None:
    """Draws that ranks share would add up their errors, and draws that steps share would never even out."""
    given = [torch.linspace(-1, 1, 512)] * 2

    def sent(step: int, rank: int) -> Tensor:
        log: Log = []
        exchange(
            [QuantisedSum("int4", feedback=False, rounding="stochastic") for _ in given], given, log=log, step=step
        )
        route = log[0][rank]
        assert isinstance(route, Route)
        return torch.cat(list(route.parts))

    assert torch.equal(sent(0, 0), sent(0, 0))
    assert not torch.equal(sent(0, 0), sent(0, 1)) and not torch.equal(sent(0, 0), sent(1, 0))


def test_a_rotation_is_random_and_keeps_lengths() -> None:
    """Without random signs it would put a constant stretch into one number."""
    matrix = quantised_sum._rotation(64, 0, torch.device("cpu"))
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(64))
    assert float((torch.ones(64) @ matrix).abs().max()) < 5
    assert not torch.equal(matrix, quantised_sum._rotation(64, 1, torch.device("cpu")))


@pytest.mark.parametrize(("size", "group", "divisor"), [(3, 2, 1), (6, 4, 2)])
def test_groups_that_do_not_divide_the_ranks_are_cut_smaller(size: int, group: int, divisor: int) -> None:
    """As in an elastic run that has lost a rank."""
    ours, alike = ([QuantisedSum(group=each) for _ in range(size)] for each in (group, divisor))
    assert torch.equal(exchange(ours, normal(size, 0, 100))[0], exchange(alike, normal(size, 0, 100))[0])
    assert ours[0].wire_bytes(8192, size) == alike[0].wire_bytes(8192, size)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chunk": 6}, "chunk needs a multiple of 4 up to 65536, got 6"),
        ({"chunk": 0}, "chunk needs a multiple of 4 up to 65536, got 0"),
        ({"chunk": 10**9}, "chunk needs a multiple of 4 up to 65536, got 1000000000"),
        ({"form": "mxfp4", "chunk": 64}, "chunk is of no use to mxfp4, got 64"),
        ({"form": "nvfp4", "chunk": 64, "group": 2, "within": "bf16"}, "chunk is of no use to nvfp4 and bf16, got 64"),
        ({"within": "bf16"}, "needs their ranks"),
        ({"within": "bf16", "group": 1}, "needs their ranks"),
        ({"group": -1}, "group is a number of ranks, or 0 for all, got -1"),
        ({"rotate": 3}, "rotate is a power of two up to 1024, or 0 for none, got 3"),
        ({"rotate": 2048}, "rotate is a power of two up to 1024, or 0 for none, got 2048"),
        ({"form": "fp32", "rounding": "stochastic"}, "rounding=stochastic rounds nothing with form=fp32"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        QuantisedSum(**options)


@pytest.mark.parametrize("options", [{"form": "int8", "within": "mxfp4", "chunk": 64}, {"form": "mxfp4", "chunk": 256}])
def test_a_chunk_that_one_form_needs_is_taken(options: dict[str, Any]) -> None:
    assert QuantisedSum(**options, group=2).chunk == options["chunk"]


@pytest.mark.parametrize(("form", "chunk"), [("int8", 6), ("int8", 1 << 17), ("mxfp4", 64), ("bf16", 8)])
def test_a_wire_format_refuses_a_chunk_as_the_compressor_does(form: str, chunk: int) -> None:
    with pytest.raises(UserError, match=f"compressors.wire: chunk .*, got {chunk}"):
        compressors.wire(form, chunk)
    assert compressors.wire("int4", 64).chunk == 64
