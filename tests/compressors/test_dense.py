import pytest
import torch

from tests.helpers import exchange
from wirebench.compressors.bf16 import Bf16
from wirebench.compressors.fp16 import Fp16
from wirebench.compressors.none import NoCompression


@pytest.mark.parametrize("method", [NoCompression(), Fp16(), Bf16()])
def test_the_division_is_not_rounded_to_the_wire(method):
    for result in exchange([method] * 3, [torch.ones(1), torch.zeros(1), torch.zeros(1)]):
        assert result.item() == torch.tensor(1 / 3).item()


def test_narrow_types_round_as_they_say():
    gradient = [torch.tensor([1 + 2**-9]), torch.zeros(1)]
    assert exchange([Fp16()] * 2, gradient)[0].item() == (1 + 2**-9) / 2
    assert exchange([Bf16()] * 2, gradient)[0].item() == 0.5


def test_fp16_overflows_to_infinity_on_all_ranks_and_bf16_does_not():
    gradient = [torch.tensor([60000.0]), torch.tensor([60000.0])]
    assert all(r.isinf().all() for r in exchange([Fp16()] * 2, gradient))
    assert all(r.isfinite().all() for r in exchange([Bf16()] * 2, gradient))
