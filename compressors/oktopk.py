"""Ok-Topk: a balanced sparse all-reduce of the largest entries, in which a rank sends fewer than 6 k words.

Li and Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022 (Algorithms 1 and 2). Each
rank owns a region of the bucket. First each sends its own largest entries to the regions' owners, who add them up; then
all gather those sums that lie above a global threshold. The average has about k entries, whatever the number of ranks.

Thresholds and regions are computed from time to time and used again in between. Details that the paper leaves open
follow its authors' code: the factors below; and data are not balanced once more before the gather.
"""

from collections.abc import Generator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.common.own_steps import STEPS, OwnSteps
from wirebench.compressors.sparse.base import Sparse
from wirebench.compressors.sparse.encoding import Indices, SparseCode, Values
from wirebench.compressors.sparse.places import keep_rest
from wirebench.compressors.sparse.regions import Region, add_up, quantiles, regions, split
from wirebench.compressors.sparse.selection import top_k
from wirebench.compressors.sparse.thresholds import above, floor_of, largest_and_floor, limit_of
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather, Request, Route, Sum

# Counts, as shares of k, outside of which a threshold moves by a factor for the next step.
FEW, LOCAL_MANY, MANY = 2 / 3, 5 / 4, 4 / 3
LOCAL_FACTOR, GLOBAL_FACTOR = 1.012, 1.008
# While a rank has more than MANY, its threshold rises at once by JUMP_FACTOR, at most JUMPS times.
JUMP_FACTOR, JUMPS = 1.03, 5
# All regions give at most QUOTA k sums: EVEN of that evenly, the rest as they gave in the step before. So a rank sends
# at most 2 (MANY + QUOTA) k = 6 k words. For the exact threshold they show SHOWN k magnitudes: 2 k + 2 k + SHOWN k.
QUOTA, SHOWN, EVEN = 5 / 3, 2, 1 / 5
MEETINGS = 4
"""Launches of an exchange whose programs meet: those that write and read messages in bitmaps or gaps."""


class _Agreed(NamedTuple):
    """The state of a bucket that all ranks share.

    threshold  global threshold of this step
    bounds     places between the ranks' regions
    given      how many sums each region gave in the step before
    """

    threshold: float
    bounds: list[int]
    given: list[int]


class OkTopK(OwnSteps, Sparse):
    """Each rank offers about the `density` of its entries, k; of their sums, about the k largest are applied.

    An entry leaves the residual only where it was both offered by the rank and applied.
    reevaluate_every  steps between exact thresholds: the k-th largest entry of each rank, and of all sums (exact if no
                      region holds more of those than its share of 2 k, even at first, then as it gave before)
    rebalance_every   steps between new regions: the mean over ranks of those that cut each one's entries evenly
    dense_steps       steps at the start that send everything (the authors' code: 512; 0 here, so that short runs do
                      what long ones do)
    values, indices   how entries are coded (encoding.py); the words below assume fp32 and int32
    Words (of 4 bytes) that each of P ranks sends: about 4 k (P-1)/P, and 6 k (P-1)/P where thresholds are exact. The
    code's factors alone lag behind a residual that grows, and would send several times as much for many steps. So a
    rank with more than 4/3 k entries offers the k largest; a region gives no more than its share of 5/3 k sums, and
    the rest stays in the residuals; and more than 4/3 k sums lift the global threshold at once.
    Thresholds and regions are kept for each bucket, and computed again when the model is cut into other buckets.
    Memory: the residual, 1 d; while it works some 40 bytes for every entry that is offered: 0.1 d with density 0.01.
    Measures: `offered` and `applied`, as shares of k.
    """

    uncaptured = "the lengths of its messages depend on values"

    def __init__(
        self,
        density: float = 0.01,
        reevaluate_every: int = 32,
        rebalance_every: int = 64,
        dense_steps: int = 0,
        values: Values = "fp32",
        indices: Indices = "int32",
    ) -> None:
        super().__init__(density, values, indices)
        for name, steps in (("reevaluate_every", reevaluate_every), ("rebalance_every", rebalance_every)):
            if steps < 1:
                raise ValueError(f"{name} is a number of steps, at least 1, got {steps}")
        if dense_steps < 0:
            raise ValueError(f"dense_steps is a number of steps, or 0 for none, got {dense_steps}")
        self.reevaluate_every, self.rebalance_every, self.dense_steps = reevaluate_every, rebalance_every, dense_steps

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """A route and a gather; before them a sum of bounds, between them a gather of sums, where it is time for that.

        Passes over the bucket: reading both and writing one for the sum with the residual, a reading for the selection
        (on a GPU two), one writing to clear the gradient. All else touches chosen entries only. On a GPU the host waits
        twice for a number of entries (four times with gaps), and starts twelve kernels at most; more in a step with an
        exact threshold or new regions, or where a threshold lets too many through.
        """
        with phase("update"):
            residual = self.feedback.accumulate(bucket, world)
        count, code = self.count(bucket.numel), self.code.of(bucket)
        begins = self.dense_steps and self.own_step(world.step) < self.dense_steps
        if count >= bucket.numel or begins:
            return (yield from self.feedback.exchange_all(bucket, world))
        agreed = self._recall(bucket, world, count)
        exact = agreed is None or world.step % self.reevaluate_every == 0
        fast = kernels.usable(residual)
        zeros = _zeros(residual, code) if fast else [None] * MEETINGS
        threshold, bounds, given = agreed or _Agreed(0.0, [], [0] * world.size)
        anew = agreed is None or world.step % self.rebalance_every == 0
        index, arriving, messages, bounds = yield from self._offered(
            bucket, world, count, exact, anew, bounds, zeros[0]
        )
        parts = regions(bounds, residual.numel())
        messages = yield Route(messages, values=index.numel() * code.value_bytes)
        with phase("decode"):
            mine, grad = parts[world.rank], bucket.grad if fast else bucket.grad.zero_()
            places, sums = add_up(messages, grad[mine.start : mine.stop], code, zeros[1])
        if exact:
            shown = _share(SHOWN * count, given, world.rank)
            threshold, given = yield from _common_threshold(sums, count, shown, bucket)
        with phase("encode"):
            quota = _share(QUOTA * count, given, world.rank)
            part = residual[mine.start : mine.stop]
            message, chosen = self._best(places, sums, threshold, quota, part, code, zeros[2])
        messages = yield Gather(message, values=chosen * code.value_bytes)
        with phase("decode"):
            if zeros[3] is not None:
                given = _keep_and_average(bucket, messages, parts, residual, index, arriving, code, zeros[3])
                values = _values(messages, given, code) if sum(given) > MANY * count else sums[:0]
            else:
                applied, values, given = _read(messages, parts, code)
                hit = bucket.grad.index_fill_(0, applied, 1.0).index_select(0, index) > 0
                keep_rest(residual, index[hit], arriving[hit])
                bucket.grad.index_copy_(0, applied, values / world.size)
            found = sum(given)
            if found > MANY * count:
                threshold = max(threshold * GLOBAL_FACTOR, floor_of(values, count))
            elif found < FEW * count:
                threshold /= GLOBAL_FACTOR
        self._agree(bucket, count, _Agreed(threshold, bounds, given))
        self._measure(index.numel(), found, count, world)
        return bucket.grad

    def wire_bytes(self, numel: int, size: int) -> int:
        """A rank's offered entries, and the applied sums of its region; dense if that is every entry."""
        count = self.count(numel)
        if count >= numel:
            return 4 * numel
        return self.code.expected_bytes(count, numel) + self.code.expected_bytes(-(-count // size), -(-numel // size))

    def _recall(self, bucket: Bucket, world: ExchangeContext, count: int) -> _Agreed | None:
        """The shared state of this bucket, for this k and world size; None on all ranks if there is none.

        State that belongs to other buckets with some of these places is then forgotten.
        """
        kept, size = self.shared.get(_name(bucket)), world.size
        if kept is not None and kept.numel() == 2 * size + 1:
            known, threshold, *numbers = kept.tolist()
            if known == count:
                whole = [int(number) for number in numbers]
                return _Agreed(threshold, whole[: size - 1], whole[size - 1 :])
        for state in (self.shared, self.own):
            for name in state.keys() - {STEPS}:
                start, stop = map(int, name.split("-"))
                if start < bucket.stop and bucket.start < stop:
                    del state[name]
        return None

    def _agree(self, bucket: Bucket, count: int, on: _Agreed) -> None:
        numbers = [count, on.threshold, *on.bounds, *on.given]
        self.shared[_name(bucket)] = torch.tensor(numbers, dtype=torch.float64)

    def _offer(self, bucket: Bucket, count: int, exact: bool) -> tuple[Tensor, float]:
        """This rank's largest entries, and a threshold that they lie above; moves its threshold for the next step."""
        residual, name = self.feedback.slice(bucket), _name(bucket)
        if exact or name not in self.own:
            index, threshold = largest_and_floor(residual, count)
            used = threshold
        else:
            threshold = self.own[name].item()
            index = above(residual, threshold, count / residual.numel())
            values = residual.index_select(0, index)
            for _ in range(JUMPS):
                if index.numel() <= MANY * count:
                    break
                threshold *= JUMP_FACTOR
                kept = above(values, threshold)
                index, values = index[kept], values[kept]
            used = threshold
            if index.numel() > MANY * count:
                kept, used = largest_and_floor(values, count)
                index, threshold = index[kept], used
            else:
                threshold = _own_moved(threshold, index.numel(), count)
        self._set_own(bucket, threshold)
        return index, used

    def _offered(
        self, bucket: Bucket, world: ExchangeContext, count: int, exact: bool, anew: bool, bounds: list[int],
        arrived: Tensor | None,
    ) -> Generator[Request, Any, tuple[Tensor, Tensor, list[Tensor], list[int]]]:  # fmt: skip
        """What this rank offers: places, values as they arrive, a message for each region; and the regions' bounds.

        exact    by an exact threshold
        anew     in new regions
        arrived  with kernels a 0
        """
        residual, code = self.feedback.slice(bucket), self.code.of(bucket)
        if arrived is not None and not exact and not anew:
            with phase("select"):
                offered = self._offer_at_once(bucket, count, bounds, arrived)
            if offered is not None:
                return *offered, bounds
        with phase("select"):
            index, used = self._offer(bucket, count, exact)
        if anew:
            bounds = yield from _common_bounds(index, bucket, world)
        with phase("encode"):
            if arrived is not None:
                from wirebench.compressors.kernels.region_messages import Above

                found = Above(residual, [0, *bounds, residual.numel()], [limit_of(used)])
                if int(found.counts.sum()) == index.numel():  # more lie above where several equal the least of these
                    return *found.messages(0, code.dtype, code.indices, arrived=arrived), bounds
            arriving = code.rounded(residual.index_select(0, index))
            return index, arriving, split(index, arriving, regions(bounds, residual.numel()), code), bounds

    def _offer_at_once(
        self, bucket: Bucket, count: int, bounds: list[int], arrived: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]] | None:
        """`_offer` with its own threshold, and its values and messages, by kernels; None where these find too many."""
        if _name(bucket) not in self.own:
            return None
        from wirebench.compressors.kernels.region_messages import Above

        residual, code = self.feedback.slice(bucket), self.code.of(bucket)
        thresholds = self.own[_name(bucket)].tolist()
        while len(thresholds) <= JUMPS:
            thresholds.append(thresholds[-1] * JUMP_FACTOR)
        above = Above(residual, [0, *bounds, residual.numel()], [limit_of(each) for each in thresholds])
        for number, found in enumerate(above.counts.sum(1).tolist()):
            if found <= MANY * count:
                self._set_own(bucket, _own_moved(thresholds[number], found, count))
                return above.messages(number, code.dtype, code.indices, arrived=arrived)
        return None

    def _best(
        self, places: Tensor | None, sums: Tensor, threshold: float, quota: int, residual: Tensor, code: SparseCode,
        arrived: Tensor | None,
    ) -> tuple[Tensor, int]:  # fmt: skip
        """The message of the sums that are applied, at most `quota` of a region, and how many they are.

        places    of the sums in the region; None: they are of all places
        residual  of the region: what rounding cuts off waits in it
        arrived   with kernels a 0
        """
        rest = residual if code.values != "fp32" else None
        if places is None:
            from wirebench.compressors.kernels.region_messages import Above

            found = Above(sums, [0, sums.numel()], [limit_of(threshold)])
            if int(found.counts.sum()) <= quota:
                index, _, messages = found.messages(0, code.dtype, code.indices, rest, arrived)
                return messages[0], index.numel()
        best = above(sums, threshold)
        if best.numel() > quota:
            best = best[top_k(sums[best], quota)]
        values, index = sums[best], best if places is None else places[best]
        arriving = code.rounded(values)
        if rest is not None:
            left = values - arriving
            rest.index_add_(0, index, torch.where(left.isfinite(), left, 0.0))
        return code.encode(index, arriving, residual.numel()), index.numel()

    def _set_own(self, bucket: Bucket, threshold: float) -> None:
        self.own[_name(bucket)] = torch.tensor([threshold], dtype=torch.float64)

    def _measure(self, offered: int, applied: int, count: int, world: ExchangeContext) -> None:
        if world.measuring:
            self.measures.ratio("offered", offered, count)
            self.measures.ratio("applied", applied, count)


def _name(bucket: Bucket) -> str:
    return f"{bucket.start}-{bucket.stop}"


def _common_bounds(index: Tensor, bucket: Bucket, world: ExchangeContext) -> Generator[Request, Any, list[int]]:
    """The mean over ranks of the bounds that would suit each."""
    if world.size == 1:
        return []
    total = yield Sum(quantiles(index, bucket.grad.numel(), world.size).to(index.device), values=0)
    return (total // world.size).tolist()


def _common_threshold(
    sums: Tensor, count: int, shown: int, bucket: Bucket
) -> Generator[Request, Any, tuple[float, list[int]]]:
    """The threshold that `count` of the regions' `shown` largest sums lie above, and how many of each region do."""
    messages = yield Gather(bucket.narrow(sums[top_k(sums, min(shown, count))].abs()))
    if kernels.usable(sums):
        from wirebench.compressors.kernels.region_messages import Above

        together = torch.cat(messages).to(sums.dtype)
        threshold = floor_of(together, count)
        starts = [0, *accumulate(each.numel() for each in messages)]
        return threshold, Above(together, starts, [limit_of(threshold)]).counts[0].tolist()
    magnitudes = [each.to(sums.dtype) for each in messages]
    threshold = floor_of(torch.cat(magnitudes), count)
    return threshold, [above(each, threshold).numel() for each in magnitudes]


def _share(total: float, given: list[int], rank: int) -> int:
    """This rank's part of `total`, at least 1."""
    even = 1 / len(given)
    share = given[rank] / sum(given) if any(given) else even
    return max(int(total * (EVEN * even + (1 - EVEN) * share)), 1)


def _own_moved(threshold: float, found: int, count: int) -> float:
    """A rank's threshold of the next step, from what it found in this one."""
    if found > LOCAL_MANY * count:
        return threshold * LOCAL_FACTOR
    return threshold / LOCAL_FACTOR if found < FEW * count else threshold


def _read(messages: list[Tensor], parts: list[Region], code: SparseCode) -> tuple[Tensor, Tensor, list[int]]:
    """All regions' sums that are applied: places in the bucket, int64, ascending; values; how many each region gave."""
    entries = [code.decode(message, part.stop - part.start) for message, part in zip(messages, parts, strict=True)]
    index = torch.cat([places + part.start for (places, _), part in zip(entries, parts, strict=True)])
    return index, torch.cat([values for _, values in entries]), [places.numel() for places, _ in entries]


def _zeros(residual: Tensor, code: SparseCode) -> Sequence[Tensor]:
    """A 0, int32 (1,), for each launch whose programs meet; with `indices=int32` there is none, and nothing is 0."""
    zeros = torch.zeros if code.indices != "int32" else torch.empty
    return zeros(MEETINGS, dtype=torch.int32, device=residual.device).split(1)


def _values(messages: list[Tensor], given: list[int], code: SparseCode) -> Tensor:
    """By kernels, the values at the end of each message, fp32."""
    sizes = [code.value_bytes * count for count in given]
    parts = [each[each.numel() - size :] for each, size in zip(messages, sizes, strict=True)]
    return torch.cat(parts).view(code.dtype).float()


def _keep_and_average(
    bucket: Bucket, messages: list[Tensor], parts: list[Region], residual: Tensor, index: Tensor, arriving: Tensor,
    code: SparseCode, arrived: Tensor,
) -> list[int]:  # fmt: skip
    """Write the average, take out of the residual what of `index` is in it; how many sums each region gave."""
    from wirebench.compressors.kernels.entries import average
    from wirebench.compressors.kernels.region_messages import keep_rest_of

    bases = [part.start for part in parts]
    listed = code.listed_at_once(messages, [part.stop - part.start for part in parts], arrived, bases)
    average(bucket.grad, messages, code.dtype, len(messages), bases, listed)
    keep_rest_of(residual, index, arriving, messages, bases, code.dtype, listed)
    if listed is None:
        return [message.numel() // (4 + code.value_bytes) for message in messages]
    return [int(count) for count in listed[1][1].tolist()]
