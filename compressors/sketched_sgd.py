"""Sketched-SGD: gs-SGD with a parameter server, which sums the Count-Sketches and asks for the exact entries.

Ivkin et al., "Communication-efficient Distributed SGD with Sketching", NeurIPS 2019, arXiv 1903.04488. All ranks send
to one, which answers all: P messages through one link, where gs-SGD's tree takes ceil(log2 P) rounds. The defaults come
from the authors' code: 5 rows of 10 k columns, and the 4 k largest estimates as candidates, whose places are sent down
instead of the table; biases go dense.
"""

from typing import Literal

from wirebench.compressors.gs_sgd import GsSgd
from wirebench.compressors.sketch.base import DENSITY
from wirebench.compressors.sketch.count_sketch import Agree, Hash
from wirebench.compressors.sparse.encoding import Indices


class SketchedSgd(GsSgd):
    """Does gs-SGD's work, on a star; the options are gs-SGD's, with other defaults.

    density    share of a bucket's entries to send, at least one
    k          entries to send of the whole model, in place of density (not of a warm-up's); 0: density counts. Of the
               two one is given
    rows, columns, ratio, columns_per_entry    size of the table
    fill, p2   `random` or `estimate`; p2 k candidates
    p1         a rank sketches its p1 k largest entries only; 0: all
    agree      whether an estimate is the median of the rows, or all have to agree
    broadcast, indices      who looks into the sum of sketches, and how its choice is coded
    hash, reseed            of the sketch
    momentum, nesterov, clip, masking  of the memory

    Memory and measures: as gs_sgd.
    """

    collective = "star"
    columns_each = 10.0
    dense_below = 1

    def __init__(
        self,
        density: float = DENSITY,
        k: int = 0,
        rows: int = 5,
        columns: int = 0,
        ratio: float = 0.0,
        columns_per_entry: float = 10.0,
        fill: Literal["random", "estimate"] = "estimate",
        p2: int = 4,
        p1: float = 0.0,
        agree: Agree = "majority",
        broadcast: Literal["sketch", "indices"] = "indices",
        indices: Indices = "int32",
        hash: Hash = "block",
        reseed: bool = False,
        momentum: float = 0.9,
        nesterov: bool = False,
        clip: float = 0.0,
        masking: bool = True,
    ) -> None:
        super().__init__(
            density, k, rows, columns, ratio, columns_per_entry, fill, p2, p1, agree, broadcast, indices, hash, reseed,
            momentum, nesterov, clip, masking,
        )  # fmt: skip
