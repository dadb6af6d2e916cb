"""Layers as matrices and their low-rank factors: which layers have them, and how they are packed into one message.

A layer's slice of the flat gradient is a matrix M: its first dimension by all the others. Its factors are kept
transposed, row by row, `left` (rank, rows) and `right` (rank, columns), M ~ left^T right: so a batched product reads M
in the order in which it lies in memory. With rank 1, M of 512 x 4608 and one CPU core, M^T P takes 0.6 times as long
as a copy of M. With P stored as (rows, rank) it takes 8 times as long.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.common.lion import Lion
from wirebench.compressors.sparse.gaps import joined
from wirebench.gradient.flat import Bucket, Layer
from wirebench.utils.device_tables import device_table

if TYPE_CHECKING:
    from wirebench.compressors.kernels.bases import FactorSizes
    from wirebench.compressors.kernels.thin import Table

THIN = 16
"""The highest rank whose bases kernels/thin.py finds."""
EPSILON = 1e-8
ROUNDING = 1e-5
"""A part of a row below this share of it, or a row below this share of the longest one, is rounding in fp32."""
DEFINITE, TINY = 1e-13, 1e-200
"""Added to the diagonal of Cholesky's products, as a share of its sum: a row's rounding in fp32, squared."""
RUN_NUMEL = 1 << 20
"""Elements up to which layers are batched: small ones save calls; large ones, one by one, stay in the cache."""


@dataclass(frozen=True)
class MatrixRun:
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


class FactorPlace(NamedTuple):
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

    def __init__(self, runs: Sequence[MatrixRun], sizes: Sequence[int], side: str) -> None:
        keys = [(size, run.rank) for run, size in zip(runs, sizes, strict=True)]
        self.places: list[FactorPlace] = []
        self._groups: list[tuple[slice, tuple[int, int, int]]] = []
        self._runs: list[tuple[int, slice]] = [(0, slice(0))] * len(runs)  # (group, its members)
        self._tables: dict[torch.device, FactorSizes] = {}
        self.numel = 0
        for size, rank in sorted(set(keys)):
            begin, count = self.numel, 0
            for place in (place for place, key in enumerate(keys) if key == (size, rank)):
                layers = runs[place].layers
                self._runs[place] = (len(self._groups), slice(count, count + len(layers)))
                count += len(layers)
                for layer in layers:
                    piece = slice(self.numel, self.numel + rank * size)
                    self.places.append(FactorPlace(layer, side, piece, (rank, size)))
                    self.numel = piece.stop
            self._groups.append((slice(begin, self.numel), (count, rank, size)))

    def groups(self, packed: Tensor) -> list[Tensor]:
        """Views (count, rank, size) of the vector: one for each size and rank."""
        return [packed[piece].view(shape) for piece, shape in self._groups]

    def runs(self, packed: Tensor) -> list[Tensor]:
        """Views (count, rank, size) of the vector: one for each run."""
        return self._by_run(self.groups(packed))

    def of(self, packed: Tensor) -> "PackedFactors":
        """The factors that lie in this vector."""
        return PackedFactors(packed, self.runs(packed))

    def orthonormal(self, packed: Tensor, instead: Tensor | None = None) -> "PackedFactors":
        """For each run a basis of its factors' rows, orthonormal but where rows depend on each other.

        There it has rows of its own choice (CPU), or rows that are shorter than 1 (GPU).

        instead  another vector, from which a row comes that is zero, or not finite
        """
        if kernels.usable(packed):
            return self.of(self._basis_at_once(packed, instead, drop=False))
        if instead is not None:
            self.mend(packed, instead)
        of_rows = basis_by_cholesky if packed.is_cuda else basis_by_householder
        return PackedFactors(packed, self._by_run([of_rows(group) for group in self.groups(packed)]))

    def mend(self, packed: Tensor, instead: Tensor) -> None:
        """Replace rows that are zero or not finite with another vector's; nothing makes the host wait."""
        for now, new in zip(self.groups(packed), self.groups(instead), strict=True):
            sound = now.any(2, keepdim=True) & now.isfinite().all(2, keepdim=True)
            now.copy_(torch.where(sound, now, new))

    def to_unit(self, packed: Tensor, size: int, orthonormal: bool, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of length 1, made of the sum over `size` ranks of all factors, orthonormal or unchanged; and these
        again to start from, with rows of `draws` for lost ones where kernels work. May overwrite `packed`.
        """
        if not kernels.usable(packed):
            for group in self.groups(packed.div_(size)):
                (orthonormalise if orthonormal else normalise)(group)
            return packed, packed
        from wirebench.compressors.kernels import bases

        sizes, start = self._sizes(packed.device), torch.empty_like(packed)
        if orthonormal:
            packed = self._basis_at_once(packed, None, drop=True)
            bases.sound(packed, draws, sizes, start, unit=None, divisor=1)
        else:
            bases.sound(packed, draws, sizes, start, unit=packed, divisor=size)
        return packed, start

    def _basis_at_once(self, packed: Tensor, instead: Tensor | None, drop: bool) -> Tensor:
        from wirebench.compressors.kernels import bases, thin

        basis = torch.empty_like(packed)
        if not self.places:
            return basis
        sizes = self._sizes(packed.device)
        if sizes.rank <= THIN:
            thin.orthonormal(packed, instead, sizes.factors, sizes.rank, basis, drop)
            return basis
        if instead is not None:
            bases.sound(packed, instead, sizes, mended := torch.empty_like(packed), unit=None, divisor=1)
            packed = mended
        bases.orthonormal(packed, sizes, basis, drop)
        return basis

    def _sizes(self, device: torch.device) -> "FactorSizes":
        if device not in self._tables:
            from wirebench.compressors.kernels.bases import SPAN, FactorSizes

            numbers = [(place.piece.start, *place.shape) for place in self.places]
            columns = [(i, first) for i, (_, _, size) in enumerate(numbers) for first in range(0, size, SPAN)]
            factors, programs = (_table(each, device) for each in (numbers, columns))
            self._tables[device] = FactorSizes(factors, programs, max(rank for _, rank, _ in numbers))
        return self._tables[device]

    def _by_run(self, groups: Sequence[Tensor]) -> list[Tensor]:
        return [groups[group][members] for group, members in self._runs]


class OnDevice(NamedTuple):
    """A plan as tables of the kernels: places of what goes dense, int64; and kernels.thin's."""

    dense: Tensor
    programs: "Table"

    @classmethod
    def of(cls, plan: "FactorPlan", dense: Sequence[slice], device: torch.device) -> "OnDevice":
        """The tables of a plan."""
        from wirebench.compressors.kernels.thin import BLOCK, Table

        lefts, rights = ({place.layer: place for place in pack.places} for pack in (plan.left, plan.right))
        layers = sorted(lefts, key=lambda layer: -layer.numel)  # what takes longest begins first
        shapes = [(layer.rows, layer.numel // layer.rows) for layer in layers]
        matrices = [
            (
                layer.start - plan.start,
                *shape,
                lefts[layer].shape[0],
                lefts[layer].piece.start,
                rights[layer].piece.start,
            )
            for layer, shape in zip(layers, shapes, strict=True)
        ]
        rows = [(i, row) for i, (many, _) in enumerate(shapes) for row in range(0, many, BLOCK)]
        columns = [(i, column) for i, (_, many) in enumerate(shapes) for column in range(0, many, BLOCK)]
        both = [(i, row, column) for i, row in rows for column in range(0, shapes[i][1], BLOCK)]
        numbers, by_rows, by_columns, by_both = (_table(each, device) for each in (matrices, rows, columns, both))
        ratios = torch.tensor([(rows / columns) ** 0.5 for rows, columns in shapes]).to(device)
        rank = max((factor.shape[0] for factor in plan.left.places), default=0)
        places = [torch.arange(piece.start, piece.stop) for piece in dense] or [torch.empty(0, dtype=torch.int64)]
        return cls(torch.cat(places).to(device), Table(numbers, by_rows, by_columns, by_both, ratios, rank))


def _table(rows: Sequence[tuple[int, ...]], device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64).T.contiguous().to(device)


class PackedFactors(NamedTuple):
    """Factors of one side: packed, and by run. A basis that a CPU has made lies in `runs` alone."""

    packed: Tensor
    runs: list[Tensor]


class FactorPlan:
    """How the layers of a bucket are sent: in runs of matrices, or dense.

    left, right  the two sides' factors
    """

    def __init__(self, layers: Sequence[Layer], rank: float, rate: float) -> None:
        sent = [layer for layer in layers if _pays(layer, rank, rate)]
        self.runs = list(_runs(sent, rank))
        self.start = layers[0].start
        self.left = Pack(self.runs, [run.rows for run in self.runs], "left")
        self.right = Pack(self.runs, [run.columns for run in self.runs], "right")
        names = {layer.name for layer in sent}
        self._dense = joined([layer for layer in layers if layer.name not in names], layers[0].start)
        self._dense_numel = sum(piece.stop - piece.start for piece in self._dense)
        self._tables: dict[torch.device, OnDevice] = {}

    def message(self, grad: Tensor, pack: Pack) -> tuple[Tensor, PackedFactors]:
        """A vector that begins with what is dense, and the rest of it for the factors of one side."""
        message = grad.new_empty(self._dense_numel + pack.numel)
        if kernels.usable(grad):
            torch.index_select(grad, 0, self._table(grad.device).dense, out=message[: self._dense_numel])
        elif self._dense:
            torch.cat([grad[piece] for piece in self._dense], out=message[: self._dense_numel])
        return message, pack.of(message[self._dense_numel :])

    def settle(self, total: Tensor, grad: Tensor, size: int, lion: Lion | None = None) -> Tensor:
        """Write the average of what is dense to `grad`; return the sum of the factors, a view.

        lion  where kernels work: its update is written in the average's place
        """
        if kernels.usable(grad):
            from wirebench.compressors.kernels import steps

            steps.settle(total, self._table(grad.device).dense, grad, size, lion)
            return total[self._dense_numel :]
        average, place = total[: self._dense_numel].div_(size), 0
        for piece in self._dense:
            target = grad[piece]
            target.copy_(average[place : place + target.numel()])
            place += target.numel()
        return total[self._dense_numel :]

    def matrices(self, flat: Tensor) -> list[Tensor]:
        """Views (count, rows, columns) of a vector of the bucket's elements: one for each run."""
        return [run.matrices(flat, self.start) for run in self.runs]

    def factors(
        self,
        flat: Tensor,
        basis: PackedFactors,
        out: PackedFactors,
        to_left: bool,
        added: Tensor | None = None,
        leaving: Bucket | None = None,
        share: float = 1.0,
        energies: list[tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        """The factors of `flat`'s matrices M on the other side of a basis, to `out`: right M^T, or left M.

        added     a vector of the bucket's elements, which is added to M first; None: nothing is
        leaving   `share` of left^T right leaves M, as this bucket's factor arrives; None: nothing does
        energies  gets the squares of M before and after that
        """
        if kernels.usable(flat):
            self._factors_at_once(flat, basis, out, to_left, added, leaving, share, energies)
            return
        more = [None] * len(self.runs) if added is None else self.matrices(added)
        for each, plus, base, factor in zip(self.matrices(flat), more, basis.runs, out.runs, strict=True):
            if plus is not None:
                each.add_(plus)
            torch.bmm(base, each.mT if to_left else each, out=factor)
            if leaving is not None:
                before = _energy(each) if energies is not None else None
                sent = leaving.arriving(factor)
                left, right = (sent, base) if to_left else (base, sent)
                if left.shape[1] == 1 and share == 1:
                    each.addcmul_(left.mT, right, value=-1)
                else:
                    each.baddbmm_(left.mT, right, alpha=-share)
                if energies is not None and before is not None:
                    energies.append((before, _energy(each)))

    def _factors_at_once(
        self,
        flat: Tensor,
        basis: PackedFactors,
        out: PackedFactors,
        to_left: bool,
        added: Tensor | None,
        leaving: Bucket | None,
        share: float,
        energies: list[tuple[Tensor, Tensor]] | None,
    ) -> None:
        """`factors`, by kernels."""
        if not self.runs:
            return
        from wirebench.compressors.kernels import thin

        table, taken = self._table(flat.device).programs, None
        if leaving is not None and energies is None:
            taken = thin.Taken(share, leaving.wire_dtype is not None)
        (thin.to_left if to_left else thin.to_right)(flat, basis.packed, out.packed, table, added, taken)
        if leaving is not None and energies is not None:
            squares = [_energy(each) for each in self.matrices(flat)]
            sent = leaving.arriving(out.packed)
            left, right = (sent, basis.packed) if to_left else (basis.packed, sent)
            thin.product(flat, left, right, table, subtract=True)
            energies += [(one, _energy(each)) for one, each in zip(squares, self.matrices(flat), strict=True)]

    def write(self, flat: Tensor, left: PackedFactors, right: PackedFactors, shaped: bool = False) -> None:
        """Write left^T right to `flat`'s matrices; shaped: each times the root of its rows over its columns."""
        if kernels.usable(flat):
            from wirebench.compressors.kernels import thin

            if self.runs:
                table = self._table(flat.device).programs
                thin.product(flat, left.packed, right.packed, table, subtract=False, shaped=shaped)
            return
        for run, each, one, other in zip(self.runs, self.matrices(flat), left.runs, right.runs, strict=True):
            if one.shape[1] == 1:  # several times faster than a product of matrices
                torch.mul(one.mT, other, out=each)
            else:
                torch.bmm(one.mT, other, out=each)
            if shaped:
                each.mul_((run.rows / run.columns) ** 0.5)

    def _table(self, device: torch.device) -> "OnDevice":
        if device not in self._tables:
            self._tables[device] = OnDevice.of(self, self._dense, device)
        return self._tables[device]


def _energy(matrices: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrices, dtype=torch.float64).square()


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


@device_table(maxsize=4096)
def plan_of(layers: tuple[Layer, ...], rank: float, rate: float) -> FactorPlan:
    """The plan of these layers: factors where `rate` times the elements of both are fewer than the matrix has.

    rank  of the factors, no more than a matrix's smaller side; below 1 a share of that side
    """
    return FactorPlan(layers, rank, rate)


def _rank_of(layer: Layer, rank: float) -> int:
    smaller = min(layer.rows, layer.numel // layer.rows)
    return min(int(rank), smaller) if rank >= 1 else ceil(rank * smaller)


def _pays(layer: Layer, rank: float, rate: float) -> bool:
    both = _rank_of(layer, rank) * (layer.rows + layer.numel // layer.rows)
    return layer.ndim > 1 and both * rate < layer.numel


def _runs(layers: Sequence[Layer], rank: float) -> Iterator[MatrixRun]:
    """Layers of one shape together, as long as their distance stays the same."""
    alike: dict[tuple[int, int], list[list[Layer]]] = defaultdict(list)
    for layer in layers:
        runs = alike[layer.rows, layer.numel]
        if runs and _continues(runs[-1], layer):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    for runs in alike.values():
        yield from (MatrixRun(tuple(run), _rank_of(run[0], rank)) for run in runs)


def _continues(run: Sequence[Layer], layer: Layer) -> bool:
    even = len(run) == 1 or layer.start - run[-1].start == run[1].start - run[0].start
    return even and (len(run) + 1) * layer.numel <= RUN_NUMEL
