"""What a rank hands over, in bytes, and how many of its elements are values of the gradient."""

from typing import Any

import pytest
import torch

from tests.helpers import Log, exchange, lay_out
from wirebench import compressors
from wirebench.gradient.requests import handed_over

FOUR = [(6, 8), (5,), (3, 2, 2), (7, 3)]
SKETCH: dict[str, Any] = {"rows": 5, "columns": 48}
PRINTED: dict[str, Any] = SKETCH | {"fill": "random", "p1": 0.0, "p2": 1, "broadcast": "sketch", "agree": "majority"}
Row = tuple[str, dict[str, Any], list[tuple[int, ...]], int, list[tuple[str, int, int]], int]
MESSAGES: list[Row] = [
    ("none", {}, [(6,)], 1, [("Sum", 24, 6)], 24),
    ("fp16", {}, [(6,)], 1, [("Sum", 12, 6)], 12),
    ("bf16", {}, [(6,)], 1, [("Sum", 12, 6)], 12),
    # A place and a value for each entry, at least one.
    ("topk", {"density": 0.001}, [(10, 1)], 1, [("Gather", 8, 4)], 8),
    ("topk", {"density": 0.001}, [(1999, 1)], 1, [("Gather", 8, 4)], 8),
    ("randomk", {"density": 0.1}, [(50, 1)], 2, [("Sum", 20, 5)], 20),
    ("randomk", {"density": 0.1, "values": "fp16"}, [(50, 1)], 2, [("Sum", 10, 5)], 10),
    # Scales, and whole words of numbers; an estimate knows of no layers, and counts one scale.
    ("int8", {"sum_bits": 8}, [(1000, 1), (1,)], 2, [("Merge", 8, 0), ("Sum", 1004, 251)], 1008),
    ("int8", {"sum_bits": 32, "chunk": 100}, [(1000, 1), (1,)], 2, [("Merge", 44, 0), ("Sum", 4004, 1001)], 4048),
    # A bit for each element and two numbers for each row of 64 elements or more, or for the layer.
    ("onebit", {}, [(8, 64)], 2, [("Gather", 128, 16)], 72),
    ("onebit", {}, [(8, 63)], 2, [("Gather", 72, 16)], 72),
    ("onebit", {}, [(1, 1)], 2, [("Gather", 12, 1)], 12),
    ("qsgd", {"bits": 2, "chunk": 64}, [(10000, 1)], 2, [("Gather", 3128, 625)], 3128),
    ("qsgd", {"bits": 4, "chunk": 512}, [(1, 1)], 2, [("Gather", 8, 1)], 8),
    ("qsgd", {"bits": 8, "chunk": 1000}, [(511, 1)], 2, [("Gather", 516, 128)], 516),
    ("signsgd", {}, [(32, 1)], 2, [("Gather", 8, 1)], 8),
    ("signsgd", {}, [(33, 1)], 2, [("Gather", 12, 2)], 12),
    # In a word 16, 10 or 4 elements: as many bits as the sum of all ranks' needs.
    ("terngrad", {}, [(1001, 1)], 1, [("Merge", 4, 0), ("Sum", 252, 63)], 256),
    ("terngrad", {}, [(1001, 1)], 2, [("Merge", 4, 0), ("Sum", 404, 101)], 408),
    ("terngrad", {}, [(1001, 1)], 127, [("Merge", 4, 0), ("Sum", 1004, 251)], 1008),
    ("terngrad", {"form": "gather"}, [(1600, 1)], 9, [("Merge", 4, 0), ("Gather", 400, 100)], 404),
    ("lion_sign", {}, [(6, 8), (5,)], 3, [("Gather", 16, 2)], 12),
    # 41 frequencies, each with a value and a place of 12 bits.
    ("demo", {"chunk": 4, "k": 3}, FOUR, 3, [("Gather", 226, 164)], 94),
    ("dion", {}, FOUR, 3, [("Sum", 108, 27), ("Sum", 92, 23)], 240),
    # Four tables of four values, and 149 entries of 12 bits and of 2.
    ("chunk_topk", {}, [(5000,), (7,), (4096,), (300,)], 1, [("Gather", 64 + 224 + 38, 38)], 274),
    ("fetch_sgd", {"density": 0.04} | SKETCH, [(300, 1)], 1, [("Sum", 960, 240)], 960),
    ("gs_sgd", {"k": 12} | PRINTED, [(300, 1)], 2, [("Sum", 960, 240), ("Sum", 48, 12)], 1008),
    # 1.3 cells for each of 3 k entries, and 2 columns more, of 4 bytes twice; or the gradient.
    ("iblt", {"density": 0.01}, [(2000, 1)], 3, [("Sum", 348, 87), ("Sum", 348, 0)], 696),
    ("iblt", {"density": 0.2}, [(2000, 1)], 3, [("Sum", 8000, 2000)], 8000),
]


@pytest.mark.parametrize(("name", "options", "shapes", "size", "wanted", "estimate"), MESSAGES)
def test_bytes_and_values_are_as_stated(
    name: str, options: dict[str, Any], shapes: list[tuple[int, ...]], size: int, wanted: Any, estimate: int
) -> None:
    layers = lay_out(shapes)
    log: Log = []
    ranks = [compressors.build(name, **options) for _ in range(size)]
    exchange(ranks, [torch.ones(layers[-1].stop)] * size, layers, log)
    found = []
    for request, *_ in log:
        parts = handed_over(request)
        values = sum(part.numel() for part in parts) if request.values is None else request.values
        found.append((type(request).__name__, sum(part.nbytes for part in parts), values))
    assert found == wanted
    assert ranks[0].wire_bytes(layers[-1].stop, size) == estimate


def test_a_share_of_chunks() -> None:
    assert compressors.build("demo").sent_share(4096) == 32 / 4096
