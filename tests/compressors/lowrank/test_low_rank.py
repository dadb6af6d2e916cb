"""What low-rank methods share: which layers have factors, how they lie in messages, and what is refused."""

import pytest
import torch
from torch import nn

from tests.helpers import DEVICES, answer_all, cut, lay_out
from wirebench import compressors
from wirebench.compressors.lowrank.factors import RUN_NUMEL, FactorPlan, basis_by_cholesky, basis_by_householder
from wirebench.errors import UserError
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import FlatGradient

METHODS = ("powersgd", "acp_sgd")
SHAPES = [(4, 3, 2), (5,), (4, 6), (7,), (3, 8), (2,), (4, 6), (9, 5), (3,)]
LAYERS = lay_out(SHAPES)
NUMEL = LAYERS[-1].stop


def plan(rank=1, rate=1.0, layers=LAYERS):
    return FactorPlan(layers, rank, rate)


def named(some):
    return {layer.name for run in some.runs for layer in run.layers}


def test_a_layer_has_factors_where_they_are_smaller():
    # 4 x 6: 10 of 24 elements with rank 1, 20 with rank 2, 30 with rank 3; 3 x 8: 11, 22, 33; 9 x 5: 14, 28, 42 of 45.
    assert named(plan(1, 2.0)) == {"layer0", "layer2", "layer4", "layer6", "layer7"}
    assert named(plan(2, 1.0)) == {"layer0", "layer2", "layer4", "layer6", "layer7"}
    assert named(plan(1, 2.2)) == {"layer0", "layer2", "layer6", "layer7"}, "3 x 8: 11 times 2.2 is more than 24"
    assert named(plan(1, 2.4)) == {"layer7"}, "4 x 6: 10 times 2.4 is not less than 24"
    assert named(plan(3, 1.0)) == {"layer7"}
    assert named(plan(5, 0.5)) == {"layer0", "layer2", "layer4", "layer6", "layer7"}, "rank 5 is 4 in 4 x 6"


def test_equal_layers_at_equal_distances_are_one_batch():
    # Starts of 4 x 6: 0, 29, 94: the third is further from the second than that from the first.
    runs = sorted((tuple(layer.name for layer in run.layers) for run in plan().runs), key=str)
    assert runs == [("layer0", "layer2"), ("layer4",), ("layer6",), ("layer7",)]
    even = lay_out([(4, 6), (5,)] * 7)
    assert [len(run.layers) for run in plan(layers=even).runs] == [7]
    large = lay_out([(256, RUN_NUMEL // 512)] * 3)
    assert [len(run.layers) for run in plan(layers=large).runs] == [2, 1], "only as many as stay in the cache"


def test_a_channels_last_weight_is_a_matrix_of_its_output_channels():
    model = nn.Conv2d(3, 8, 3, bias=False).to(memory_format=torch.channels_last)
    flat = FlatGradient(model, ["weight"])
    weight = model.weight.detach()
    assert weight.is_contiguous(memory_format=torch.channels_last)
    matrices = plan(layers=flat.layers).runs[0].matrices(flat.gather_weights(), 0)
    assert torch.equal(matrices[0], weight.permute(0, 2, 3, 1).reshape(8, 27))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(3, 6, 40), (2, 192, 640)])
@pytest.mark.parametrize("kind", ["random", "tiny", "huge", "graded", "dependent", "combined", "few", "zero"])
def test_a_gpus_bases_are_a_cpus_but_for_rows_that_depend_on_others(kind, shape, device):
    rng = torch.Generator().manual_seed(1)
    rows = torch.randn(*shape, generator=rng)
    if kind == "dependent":
        rows[:] = rows[:, :1]
    elif kind == "combined":
        rows[:, 2] = 2 * rows[:, 0] + rows[:, 1]
    elif kind == "few":
        rows[:] = torch.randn(shape[0], shape[1], 2, generator=rng) @ rows[:, :2]
    elif kind == "graded":
        rows *= torch.logspace(0, -6, shape[1]).unsqueeze(1)
    rows *= {"zero": 0.0, "tiny": 1e-30, "huge": 1e30}.get(kind, 1.0)
    basis = basis_by_cholesky(rows.to(device)).cpu()
    products, unit = basis @ basis.mT, rows / rows.abs().max().clamp(min=1e-37)
    lengths = products.diagonal(dim1=1, dim2=2)
    assert basis.isfinite().all()
    torch.testing.assert_close(unit @ basis.mT @ basis, unit, atol=1e-5, rtol=0)
    assert (products - torch.diag_embed(lengths)).abs().max() < 1e-6 and lengths.max() < 1 + 1e-6
    if kind in ("random", "tiny", "huge", "graded"):
        other = basis_by_householder(rows)
        torch.testing.assert_close(basis.mT @ basis, other.mT @ other)
        assert ((basis * unit).sum(2) > 0).all()


def steps_of(name, grads, groups, **options):
    """Sizes of the messages of each step, for one rank."""
    method, sizes = compressors.build(name, **options), []
    for step, grad in enumerate(grads):
        log: list = []
        for bucket in cut(grad.clone(), LAYERS, groups):
            answer_all([method.exchange(bucket, ExchangeContext(0, 1, step))], log)
        sizes.append([requests[0].tensor.numel() for requests in log])
    return sizes


@pytest.mark.parametrize("name", METHODS)
def test_a_bucket_of_vectors_is_one_sum(name):
    assert steps_of(name, [torch.ones(NUMEL)], [range(1, 2), range(5, 6), range(8, 9)]) == [[5, 2, 3]]


@pytest.mark.parametrize("name", METHODS)
def test_the_first_steps_may_go_dense(name):
    grads = [torch.ones(NUMEL)] * 3
    sizes = steps_of(name, grads, [range(0, 9)], rank=1, start_step=2, min_compression_rate=1.0)
    assert sizes[:2] == [[NUMEL], [NUMEL]]
    assert max(sizes[2]) < NUMEL


@pytest.mark.parametrize(
    ("name", "before", "now"),
    [
        *(
            (name, {"rank": 2, "min_compression_rate": 1.0}, {"rank": 1, "min_compression_rate": 1.0})
            for name in METHODS
        ),
        ("dion", {}, {"rank_fraction": 0.9}),
    ],
)
def test_factors_of_another_rank_are_refused(name, before, now):
    saved, other = (compressors.build(name, **options) for options in (before, now))
    grad = torch.ones(NUMEL)
    for step in range(2):
        answer_all([saved.exchange(cut(grad, LAYERS, [range(0, 9)])[0], ExchangeContext(0, 1, step))])
    other.load_state_dict(saved.state_dict())
    option = next(iter(now))
    with pytest.raises(
        UserError, match=rf"saved factor layer\d\.(left|right) is \(\d, \d\), .* compressor\.{option}\b"
    ):
        answer_all([other.exchange(cut(grad, LAYERS, [range(0, 9)])[0], ExchangeContext(0, 1, 2))])


def test_bytes_are_those_of_a_square_matrix_or_dense():
    powersgd, acp = compressors.build("powersgd", rank=2), compressors.build("acp_sgd", rank=2)
    assert powersgd.wire_bytes(10_000, 4) == 4 * 2 * (100 + 100)
    assert acp.wire_bytes(10_000, 4) == 4 * 2 * 100
    assert powersgd.wire_bytes(7, 4) == acp.wire_bytes(3, 4) + 16 == 28
    assert powersgd.wire_bytes(2**40, 4) == 4 * 4 * 2**20, "in whole numbers"
