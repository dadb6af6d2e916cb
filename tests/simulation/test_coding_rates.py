"""Rates of coding by wire format, as wirebench bench compressors --formats measures them."""

from pathlib import Path

import pytest

from tests.cli.verbs import verb
from wirebench.errors import UserError
from wirebench.record import compressor_results
from wirebench.record.compressor_results import PARTS, CompressorResult, Part
from wirebench.simulation.compress_rates import ONE_HOP, Rates

COPY, CALL, ENCODING, DECODING = 1e-9, 1e-6, 4e-9, 3e-9
"""Seconds to copy an element, of a call, to code and to decode an element."""


def of_int8(path: Path, device: str = "", times: int = 1, workers: int = 4) -> Path:
    """A file of int8 as four workers find it: a gradient and a share are coded, gradients and the sum decoded.

    times  as long as ENCODING and so on have it
    """
    cells = []
    for numel in (4000, 270_000, 14_700_000):
        took = {"encode": 2 * CALL + 1.25 * numel * ENCODING, "decode": 2 * CALL + 2 * numel * DECODING}
        seconds: dict[Part, tuple[float, ...]] = {part: (times * took.get(part, 0.0),) * 4 for part in PARTS}
        label = ONE_HOP.format("int8").replace(":", " ")
        cells.append(CompressorResult(label, False, "x", numel, 1, seconds, (COPY * numel,) * 4))
    header: dict[str, object] = {"workers": workers, "density": None, "threads": 1, "device": device, "environment": {}}
    compressor_results.save(path, header, cells)
    return path


def test_a_call_costs_what_it_cost_in_an_exchange(tmp_path: Path) -> None:
    rates = Rates(of_int8(tmp_path / "formats.jsonl"))
    coding = rates.coding(rates.bytes_per_second)
    for numel in (3000, 100_000, 5_000_000):
        assert coding.encode("int8", numel) == pytest.approx(CALL + numel * ENCODING, rel=0.05)
        assert coding.decode("int8", numel) == pytest.approx(CALL + numel * DECODING, rel=0.05)
    twice = rates.coding(2 * rates.bytes_per_second)
    assert twice.decode("int8", 5e6) == pytest.approx(CALL + 5e6 * DECODING / 2, rel=0.01)
    assert rates.codes("int8") and not rates.codes("fp8")
    with pytest.raises(UserError, match="how long coding in fp8 takes was not measured"):
        coding.encode("fp8", 1)
    assert not rates.knows("quantised_sum"), "its coding of one hop is not the method"
    words = "quantised_sum:feedback=false:form=int8"
    assert rates.knows(words) and not rates.knows("quantised_sum:form=int8") and not rates.times("quantised_sum")


def test_other_options_count_as_the_compressors_own() -> None:
    rates = Rates.shipped(on_gpu=False)
    eight, other = "quantised_sum:feedback=false:form=int8", "quantised_sum:form=nvfp4"
    seconds = {name: rates.on(name, 1e10)(10**6) for name in (eight, other, "quantised_sum")}
    assert rates.knows(eight) and not rates.knows(other) and rates.times(other)
    assert seconds[other] == seconds["quantised_sum"] != seconds[eight] > 0


def test_on_a_gpu_the_start_of_kernels_stays(tmp_path: Path) -> None:
    rates = Rates(of_int8(tmp_path / "formats.jsonl", "NVIDIA H200"))
    slower = rates.coding(4.8e12 / 2)
    same = rates.coding(4.8e12)
    assert same.decode("int8", 5_000_000) == pytest.approx(CALL + 5e6 * DECODING, rel=0.01)
    assert slower.decode("int8", 5_000_000) == pytest.approx(CALL + 2 * 5e6 * DECODING, rel=0.01)
    assert slower.decode("int8", 1) == same.decode("int8", 1) > CALL


def test_formats_keep_their_gpu_and_workers_among_other_rates(tmp_path: Path) -> None:
    given = Rates(of_int8(tmp_path / "formats.jsonl", "NVIDIA A100-SXM4-80GB", workers=2))
    rates = Rates.shipped(on_gpu=True)
    method = rates.on("quantised_sum", 1e12)(10**6)
    rates.take(given)
    assert rates.on("quantised_sum", 1e12)(10**6) == method > 0 and rates.workers_of("quantised_sum") == 4
    mine, theirs = (each.coding(1e12) for each in (given, rates))
    for numel in (3000, 5_000_000):
        assert theirs.encode("int8", numel) == mine.encode("int8", numel)
        assert theirs.decode("int8", numel) == mine.decode("int8", numel)


def test_one_command_measures_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "formats.jsonl"
    options = ["--formats", "--sizes", "4k", "--repeats", "1", "--warmup", "1", "--quiet", "--json", str(path)]
    assert verb("bench", "compressors")(options) == 0
    rates = Rates(path)
    coding = rates.coding(rates.bytes_per_second)
    for form in ("fp32", "bf16", "int8", "fp8", "mxfp6", "nvfp4"):
        assert rates.codes(form) and 0 < coding.encode(form, 8000) < coding.encode(form, 8e6)
    assert "quantised_sum form=mxfp4 feedback=false" in capsys.readouterr().out
