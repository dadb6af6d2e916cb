import math

import pytest
import torch

from tests.helpers import lay_out
from wirebench.compressors.sparse.encoding import pack_bits
from wirebench.compressors.sparse.mask_code import Head, MaskCode, Vote, pack, places, runs

LAYERS = lay_out([(3, 7), (5, 1), (2, 11), (3,), (1, 1), (9, 9)])  # most begin within a byte
NUMEL = LAYERS[-1].stop
CPU = torch.device("cpu")


def flags_of(numel, density, seed=0):
    return torch.rand(numel, generator=torch.Generator().manual_seed(seed)) < density


def vote_of(flags, chosen, numbers=()):
    """The vote of a rank that chose `flags` in the layers `chosen`."""
    masks = []
    for start, stop in runs(LAYERS, chosen):
        mask = torch.zeros(stop - start // 8 * 8, dtype=torch.bool)
        mask[start % 8 :] = flags[start:stop]
        masks.append(pack(mask))
    return Vote(chosen, masks, numbers)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("numel", [1, 8, 1003, 2_500_000])
@pytest.mark.parametrize("density", [0.0, 1e-4, 0.01, 0.03, 0.1, 0.5, 1.0])
def test_places_are_those_of_the_ones(numel, density):
    flags = flags_of(numel, density)
    assert torch.equal(places(pack(flags)), flags.nonzero().squeeze(1))


@pytest.mark.parametrize("masks", ["bits", "delta", "smaller"])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.4, 1.0])
def test_what_all_ranks_chose_is_united(masks, density):
    code = MaskCode(masks)
    choices = [[0, 1, 2, 3, 4, 5], [], [1, 3, 4], [0], [5], [2, 5]]
    flags = [flags_of(NUMEL, density, seed) for seed in range(len(choices))]
    wanted = torch.zeros(NUMEL, dtype=torch.bool)
    for mine, chosen in zip(flags, choices, strict=True):
        for number in chosen:
            place = slice(LAYERS[number].start, LAYERS[number].stop)
            wanted[place] |= mine[place]
    messages = [code.encode(vote_of(mine, c), LAYERS, CPU) for mine, c in zip(flags, choices, strict=True)]
    read = code.decode(messages, LAYERS, ())
    assert read is not None
    assert torch.equal(read.bits, pack_bits(wanted))
    assert read.numbers == [{}] * len(choices)


def test_numbers_travel_with_the_layers_that_are_wanted():
    code, flags = MaskCode(), flags_of(NUMEL, 0.3)
    messages = [
        code.encode(vote_of(flags, [0, 2, 5], [0.1, -math.inf]), LAYERS, CPU),
        code.encode(Vote(), LAYERS, CPU),
        code.encode(vote_of(flags, [1]), LAYERS, CPU),
    ]
    read = code.decode(messages, LAYERS, {0, 5, 4})
    assert read is not None
    assert read.numbers == [{0: 0.1, 5: -math.inf}, {}, {}]


def test_a_message_by_hand():
    flags = torch.zeros(NUMEL, dtype=torch.bool)
    flags[[0, 22, 25, 26, 51]] = True  # 26 belongs to the third layer
    message = MaskCode().encode(vote_of(flags, [1, 4]), LAYERS, CPU)
    # As bits; of the second and the fifth layer; places 22 and 25 of bytes 2 and 3, place 51 of byte 6.
    assert message.tolist() == [0, 0b010010, 1 << 6, 1 << 1, 1 << 3]
    message = MaskCode("delta").encode(vote_of(flags, [1, 4]), LAYERS, CPU)
    assert message.tolist() == [1, 0b010010, 3, 0, 0, 0, 22, 2, 25, 0]


def test_flags_and_numbers_of_more_layers_than_a_byte_has_bits():
    layers, code = lay_out([(8,)] * 10), MaskCode()
    masks = [pack(flags_of(stop - start, 0.5)) for start, stop in runs(layers, [0, 7, 8, 9])]
    message = code.encode(Vote([0, 7, 8, 9], masks, [0.5, -1.0]), layers, CPU)
    assert message[:3].tolist() == [0, 1 << 7 | 1, 0b11]
    assert code.read_heads([message], layers, {8, 0, 3}) == [Head([0, 7, 8, 9], {0: 0.5, 8: -1.0}, 3 + 2 * 8)]


def test_who_chose_nothing_sends_a_byte_and_so_does_who_is_not_finite():
    code = MaskCode()
    silent, bad = code.encode(Vote(), LAYERS, CPU), code.encode(Vote(finite=False), LAYERS, CPU)
    assert (silent.tolist(), bad.tolist()) == ([0], [2])
    chose = code.encode(vote_of(flags_of(NUMEL, 0.3), [0, 1]), LAYERS, CPU)
    assert code.decode([silent, bad, chose], LAYERS, ()) is None
    assert code.decode([chose, chose, bad], LAYERS, ()) is None
    nothing = code.decode([silent, silent], LAYERS, ())
    assert nothing is not None
    assert not nothing.bits.any()


@pytest.mark.parametrize("density", [0.001, 0.05, 0.5])
def test_the_smaller_code_is_taken(density):
    layers = lay_out([(100, 100)])
    vote = Vote([0], [pack(flags_of(10_000, density))])
    sizes = {masks: MaskCode(masks).encode(vote, layers, CPU).numel() for masks in ("bits", "delta", "smaller")}
    assert sizes["smaller"] == min(sizes["bits"], sizes["delta"])
    assert (sizes["delta"] < sizes["bits"]) == (density < 0.1)


@pytest.mark.parametrize("masks", ["bits", "delta", "smaller"])
@pytest.mark.parametrize("density", [1 / 64, 0.2])
def test_bytes_are_estimated(masks, density):
    numel, layers = 100_000, lay_out([(1000, 100)])
    message = MaskCode(masks).encode(Vote([0], [pack(flags_of(numel, density))]), layers, CPU)
    assert MaskCode(masks).expected_bytes(density, numel) == pytest.approx(message.numel(), rel=0.03)
