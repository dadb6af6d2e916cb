"""What methods that sum Count-Sketches share: how many entries, how large a table, with which hashes."""

import math

from wirebench.compressors.sketch.count_sketch import MAX_AGREEING, MAX_ROWS, Agree, CountSketch, Hash
from wirebench.compressors.sparse.gaps import places_of
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Method
from wirebench.gradient.flat import Bucket, Layer
from wirebench.utils.rng import seed_of

BYTES_PER_FLOAT = 4
DENSITY = 0.01
"""The density where neither `density` nor `k` is given."""


class Sketched(Method):
    """Base of methods that find `k` or `density` of the entries by a sketch of (rows, columns).

    `k` and `columns` are for the whole model, of which a bucket takes its share. While a warm-up sets `density`, that
    counts and `k` does not.
    """

    bounded_by = "density"
    density: float
    columns_each: float
    """The default of `columns_per_entry`."""
    values_per_entry = 0
    """Exact values that are summed for each of the entries, beside the table."""

    def __init__(
        self,
        density: float,
        k: int,
        rows: int,
        columns: int,
        ratio: float,
        columns_per_entry: float,
        hash: Hash,
        reseed: bool = False,
        agree: Agree = "majority",
    ) -> None:
        super().__init__()
        if agree == "all" and rows > MAX_AGREEING:
            raise ValueError(f"agree = all takes at most {MAX_AGREEING} rows, got {rows}")
        if columns_per_entry <= 0:
            raise ValueError(f"columns_per_entry is positive, got {columns_per_entry}")
        if not 0 < density <= 1:
            raise ValueError(f"density lies in (0, 1], got {density}")
        if k < 0 or columns < 0:
            raise ValueError(f"k and columns are positive, or 0 where others decide, got k = {k}, columns = {columns}")
        if k and density != DENSITY:
            raise ValueError(f"k = {k} and density = {density} both set how many entries are sent: give one of them")
        if rows % 2 == 0 or not 0 < rows <= MAX_ROWS:
            raise ValueError(f"rows is an odd number up to {MAX_ROWS}, got {rows}")
        if not 0 <= ratio <= 1:
            raise ValueError(f"ratio lies in [0, 1], got {ratio}")
        widths = {"columns": columns, "ratio": ratio}
        if columns_per_entry != self.columns_each:
            widths["columns_per_entry"] = columns_per_entry
        if len(given := [f"{name} = {value}" for name, value in widths.items() if value]) > 1:
            raise ValueError(f"{' and '.join(given)} both set the width: give one of them")
        # 0, which is no density: only a warm-up sets another value, which then counts in place of `k`.
        self.density = 0.0 if k else density
        if k:
            self.bounded_by = "k"
        self.k, self.rows, self.columns, self.ratio = k, rows, columns, ratio
        self.columns_per_entry = columns_per_entry
        self.hash, self.reseed, self.agree = hash, reseed, agree
        self._model: tuple[Layer, ...] = ()
        self._model_numel = 0
        self._sketches: dict[int, tuple[tuple[object, ...], CountSketch]] = {}

    def sent_share(self, numel: int) -> float:
        """See Method.sent_share."""
        return self.k / numel if self.k else self.density

    def entries(self, numel: int, model_numel: int) -> int:
        """Entries that a bucket of `numel` of the model's `model_numel` elements sends; both without dense layers."""
        return max(int(numel * self.density if self.density else numel * self.k / model_numel), 1)

    def width(self, numel: int, model_numel: int) -> int:
        """Columns of a bucket's table."""
        if self.ratio:
            return math.ceil(self.ratio * numel)
        if self.columns:
            return math.ceil(numel * self.columns / model_numel)
        return math.ceil(self.columns_per_entry * self.entries(numel, model_numel))

    def is_dense(self, numel: int, model_numel: int, value_bytes: int = BYTES_PER_FLOAT) -> bool:
        """Whether a bucket's table, of fp32, and values would not be smaller than itself, or all entries are wanted."""
        entries = self.entries(numel, model_numel)
        table = BYTES_PER_FLOAT * self.rows * self.width(numel, model_numel)
        return table + value_bytes * self.values_per_entry * entries >= value_bytes * numel or entries >= numel

    def goes_dense(self, bucket: Bucket) -> bool:
        """Whether `bucket`, with its dtype on the wire, goes dense (`is_dense`)."""
        value_bytes = bucket.wire_dtype.itemsize if bucket.wire_dtype else BYTES_PER_FLOAT
        return self.is_dense(bucket.numel, self.model_numel(bucket), value_bytes)

    def sketch_of(self, bucket: Bucket, world: ExchangeContext) -> CountSketch:
        """The bucket's hashes, the same on all ranks; new ones every step with `reseed`."""
        numel, device, places = bucket.grad.numel(), bucket.grad.device, places_of(bucket)
        columns = self.width(places.numel, self.model_numel(bucket))
        seed = seed_of("count sketch", world.seed, bucket.start)
        key = (numel, columns, seed, device, places)
        known = self._sketches.get(bucket.index)
        if known is None or known[0] != key:
            sketch = CountSketch(numel, self.rows, columns, seed, self.hash, device, places, self.agree)
            known = self._sketches[bucket.index] = (key, sketch)
        if self.reseed:
            known[1].hash.redraw(seed_of("count sketch", world.seed, bucket.start, world.step))
        return known[1]

    def bytes_of(self, numel: int) -> int:
        """Bytes of a table and of the values, or of the dense bucket.

        Before the first exchange the model's size is not known: the bucket is then taken for the model.
        """
        model_numel = max(self._model_numel, numel)
        if self.is_dense(numel, model_numel):
            return BYTES_PER_FLOAT * numel
        values = self.values_per_entry * self.entries(numel, model_numel)
        return BYTES_PER_FLOAT * (self.rows * self.width(numel, model_numel) + values)

    def model_numel(self, bucket: Bucket) -> int:
        """Elements of the model that are compressed; remembered for `bytes_of`."""
        layers = bucket.model or bucket.layers
        if layers is not self._model:
            self._model, self._model_numel = layers, sum(layer.numel for layer in layers)
        return self._model_numel
