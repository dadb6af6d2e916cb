"""Layers as matrices and their low-rank factors: which layers have them, and how they are packed into one message.

A layer's slice of the flat gradient is a matrix M: its first dimension by all the others. Its factors are kept
transposed, row by row, `left` (rank, rows) and `right` (rank, columns), M ~ left^T right: so a batched product reads M
in the order in which it lies in memory. With rank 1, M of 512 x 4608 and one CPU core, M^T P takes 0.6 times as long
as a copy of M. With P stored as (rows, rank) it takes 8 times as long.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.compressors.sparse.gaps import joined
from wirebench.gradient.flat import Layer

EPSILON = 1e-8
ROUNDING = 1e-5
"""A part of a row below this share of it, or a row below this share of the longest one, is rounding in fp32."""
DEFINITE, TINY = 1e-13, 1e-200
"""Added to the diagonal of Cholesky's products, as a share of its sum: a row's rounding in fp32, squared."""
RUN_NUMEL = 1 << 20
"""Elements up to which layers are batched: small ones save calls; large ones, one by one, stay in the cache."""


@dataclass(frozen=True)
class Run:
    """Layers of one shape at equal distances: a batch of matrices that is a view of the gradient.

    rank  of their factors
    """

    layers: tuple[Layer, ...]
    rank: int

    @property
    def rows(self) -> int:
        """Rows of each matrix."""
        return self.layers[0].rows

    @property
    def columns(self) -> int:
        """Columns of each matrix."""
        return self.layers[0].numel // self.rows

    def matrices(self, flat: Tensor, start: int) -> Tensor:
        """View (count, rows, columns) of `flat`, a vector whose first element is number `start` of the gradient."""
        first = self.layers[0]
        distance = self.layers[1].start - first.start if len(self.layers) > 1 else first.numel
        return flat.as_strided(
            (len(self.layers), self.rows, self.columns),
            (distance, self.columns, 1),
            flat.storage_offset() + first.start - start,
        )


class Place(NamedTuple):
    """A layer's factor in a pack.

    layer, side  whose it is; first draws go by the layer's place, since a bucket of DDP does not tell a layer's name
    piece, shape  its slice, its shape (rank, size)
    """

    layer: Layer
    side: str
    piece: slice
    shape: tuple[int, int]

    @property
    def key(self) -> str:
        """Its name in the state."""
        return f"{self.layer.name}.{self.side}"


class Pack:
    """The factors of one side of all runs in one vector; equal sizes side by side, to be orthonormalised together."""

    def __init__(self, runs: Sequence[Run], sizes: Sequence[int], side: str) -> None:
        keys = [(size, run.rank) for run, size in zip(runs, sizes, strict=True)]
        self.places: list[Place] = []
        self._groups: list[tuple[slice, tuple[int, int, int]]] = []
        self._runs: list[tuple[int, slice]] = [(0, slice(0))] * len(runs)  # (group, its members)
        self.numel = 0
        for size, rank in sorted(set(keys)):
            begin, count = self.numel, 0
            for place in (place for place, key in enumerate(keys) if key == (size, rank)):
                layers = runs[place].layers
                self._runs[place] = (len(self._groups), slice(count, count + len(layers)))
                count += len(layers)
                for layer in layers:
                    piece = slice(self.numel, self.numel + rank * size)
                    self.places.append(Place(layer, side, piece, (rank, size)))
                    self.numel = piece.stop
            self._groups.append((slice(begin, self.numel), (count, rank, size)))

    def groups(self, packed: Tensor) -> list[Tensor]:
        """Views (count, rank, size) of the vector: one for each size and rank."""
        return [packed[piece].view(shape) for piece, shape in self._groups]

    def runs(self, packed: Tensor) -> list[Tensor]:
        """Views (count, rank, size) of the vector: one for each run."""
        return self._by_run(self.groups(packed))

    def orthonormal(self, packed: Tensor) -> list[Tensor]:
        """For each run a basis of its factors' rows, orthonormal but where rows depend on each other.

        There it has rows of its own choice (CPU), or rows that are shorter than 1 (GPU).
        """
        of_rows = basis_by_cholesky if packed.is_cuda else basis_by_householder
        return self._by_run([of_rows(group) for group in self.groups(packed)])

    def _by_run(self, groups: Sequence[Tensor]) -> list[Tensor]:
        return [groups[group][members] for group, members in self._runs]


class Plan:
    """How the layers of a bucket are sent: in runs of matrices, or dense.

    left, right  the two sides' factors
    """

    def __init__(self, layers: Sequence[Layer], rank: float, rate: float) -> None:
        sent = [layer for layer in layers if _pays(layer, rank, rate)]
        self.runs = list(_runs(sent, rank))
        self.left = Pack(self.runs, [run.rows for run in self.runs], "left")
        self.right = Pack(self.runs, [run.columns for run in self.runs], "right")
        names = {layer.name for layer in sent}
        self._dense = joined([layer for layer in layers if layer.name not in names], layers[0].start)
        self._dense_numel = sum(piece.stop - piece.start for piece in self._dense)

    def message(self, grad: Tensor, pack: Pack) -> tuple[Tensor, list[Tensor]]:
        """A vector that begins with what is dense, and views of the rest for each run's factors of one side."""
        message = grad.new_empty(self._dense_numel + pack.numel)
        if self._dense:
            torch.cat([grad[piece] for piece in self._dense], out=message[: self._dense_numel])
        return message, pack.runs(message[self._dense_numel :])

    def settle(self, total: Tensor, grad: Tensor, size: int) -> Tensor:
        """Write the average of what is dense to `grad`; return the sum of the factors, a view."""
        average, place = total[: self._dense_numel].div_(size), 0
        for piece in self._dense:
            target = grad[piece]
            target.copy_(average[place : place + target.numel()])
            place += target.numel()
        return total[self._dense_numel :]


def basis_by_householder(rows: Tensor) -> Tensor:
    """Orthonormal rows that span what `rows`, (count, rank, size), span, and more where some depend on others.

    5 times as fast on a CPU as Gram and Schmidt in batches, and sound for rows that depend on each other.
    """
    return torch.linalg.qr(rows.mT).Q.mT


def basis_by_cholesky(rows: Tensor) -> Tensor:
    """Orthonormal rows that span what `rows`, (count, rank, size), span; near zero where one is a copy, or zero.

    A row that others give but for the rounding of fp32 gets a direction of that rounding, as Householder gives it one.

    On a GPU Householder takes a matrix's columns one after the other. These are products of matrices: on an H200 Dion's
    compression of a GPT takes a third of the time (results/README.md). They are in fp64, which holds the squares of
    what fp32 holds; a GPU that has little fp64 gains less, or nothing. The factor of the rows' products makes a basis,
    whose error is the square of the rows' condition, and once more one of that basis (Yamamoto et al., "Roundoff error
    analysis of the CholeskyQR2 algorithm", ETNA 44, 2015). What is added to the diagonal keeps the products definite;
    the idea is Fukaya et al.'s ("Shifted Cholesky QR", arXiv 1809.11085), the share is ours.
    """
    basis = rows.double()
    for _ in range(2):
        products = basis @ basis.mT
        diagonal = products.diagonal(dim1=1, dim2=2)
        diagonal.add_(diagonal.sum(1, keepdim=True).mul_(DEFINITE).add_(TINY))
        lower = torch.linalg.cholesky_ex(products).L  # without a look at errors, for which the host would wait
        basis = torch.linalg.solve_triangular(lower, basis, upper=False)
    return basis.to(rows.dtype)


def normalise(rows: Tensor) -> None:
    """Divide rows, (count, rank, size), by their norms, in place; what is zero stays so."""
    rows.div_(torch.linalg.vector_norm(rows, dim=2, keepdim=True).add_(EPSILON))


def orthonormalise(rows: Tensor) -> None:
    """Gram and Schmidt's basis of rows, (count, rank, size), in place; zero for one that has nothing of its own.

    A row of the basis points where its row does, which Householder's QR may turn round. Empty rows, which M^T P has
    while M has a lower rank, come last: the direction that QR gives to one is taken from those that follow. So is that
    of a row that depends on others without being empty.
    """
    lengths = torch.linalg.vector_norm(rows, dim=2)
    empty = lengths <= ROUNDING * lengths.amax(1, keepdim=True)
    order = empty.to(torch.uint8).argsort(dim=1, stable=True)
    places = order.unsqueeze(2).expand_as(rows)
    basis, triangle = torch.linalg.qr(rows.gather(1, places).mT)
    own = triangle.diagonal(dim1=1, dim2=2)
    sound = (own.abs() > ROUNDING * lengths.gather(1, order)) & ~empty.gather(1, order)
    rows.scatter_(1, places, basis.mT * (own.sign() * sound).unsqueeze(2))


@lru_cache(maxsize=4096)
def plan_of(layers: tuple[Layer, ...], rank: float, rate: float) -> Plan:
    """The plan of these layers: factors where `rate` times the elements of both are fewer than the matrix has.

    rank  of the factors, no more than a matrix's smaller side; below 1 a share of that side
    """
    return Plan(layers, rank, rate)


def _rank_of(layer: Layer, rank: float) -> int:
    smaller = min(layer.rows, layer.numel // layer.rows)
    return min(int(rank), smaller) if rank >= 1 else ceil(rank * smaller)


def _pays(layer: Layer, rank: float, rate: float) -> bool:
    both = _rank_of(layer, rank) * (layer.rows + layer.numel // layer.rows)
    return layer.ndim > 1 and both * rate < layer.numel


def _runs(layers: Sequence[Layer], rank: float) -> Iterator[Run]:
    """Layers of one shape together, as long as their distance stays the same."""
    alike: dict[tuple[int, int], list[list[Layer]]] = defaultdict(list)
    for layer in layers:
        runs = alike[layer.rows, layer.numel]
        if runs and _continues(runs[-1], layer):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    for runs in alike.values():
        yield from (Run(tuple(run), _rank_of(run[0], rank)) for run in runs)


def _continues(run: Sequence[Layer], layer: Layer) -> bool:
    even = len(run) == 1 or layer.start - run[-1].start == run[1].start - run[0].start
    return even and (len(run) + 1) * layer.numel <= RUN_NUMEL
