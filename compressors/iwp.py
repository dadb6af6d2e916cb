"""Importance Weighted Pruning: a few ranks choose by |gradient / weight| what all ranks sum, without indices.

Cheng and Xu, "Bandwidth Reduction using Importance Weighted Pruning on Ring AllReduce", arXiv 1901.01544, Algorithm 1.
We read it so that nothing is lost: chosen entries leave the accumulated gradient v, all others stay. The masks of
`voters` ranks are gathered and united. All ranks know the union, so its values are one dense sum. Biases and
normalisation go dense.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.bits.blocks import SQUARES, by_layer, reduce
from wirebench.compressors.common.feedback import Feedback
from wirebench.compressors.sparse.encoding import BITS
from wirebench.compressors.sparse.importance import (
    LOWS,
    Chooser,
    Luck,
    Moments,
    Piece,
    all_finite,
    least_divisors,
    moments_of,
)
from wirebench.compressors.sparse.importance_thresholds import MOST, Mode, Thresholds, due, note, typical_ratio
from wirebench.compressors.sparse.mask_code import (
    AS_BITS,
    AS_GAPS,
    NOT_FINITE,
    Head,
    MaskCode,
    Masks,
    Vote,
    places,
    runs,
)
from wirebench.compressors.sparse.places import write_average
from wirebench.errors import UserError
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Keeps, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather, Sum
from wirebench.utils.names import suggest
from wirebench.utils.rng import generator, seed_of

EXPECTED_SHARE = 1 / 64  # of coordinates that are sent: the paper's fixed threshold; for estimates of bytes only
LEAST_RHO = 1e-9  # of one coordinate in 1 / rho some luck is drawn: a number of 32 bits
VALUE_BYTES = 4
LAST_SENT = "last_sent"
SCHEDULED: tuple[Mode, ...] = ("schedule", "layerwise")
MODES_OF: dict[str, tuple[Mode, ...]] = {
    "threshold": ("fixed",),
    "schedule": SCHEDULED,
    "schedule_epochs": SCHEDULED,
    "beta": ("layerwise",),
    "limit": ("layerwise",),
}
"""Options that other modes do not read."""

Draw = Literal["layer", "bucket"]


class Iwp(Method):
    """All ranks sum the coordinates that any of a few ranks finds important: |v| / |w| above a threshold.

    mode       fixed: `threshold` for the whole run; schedule: the epoch's threshold in `schedule`; layerwise: the same,
               raised for layers whose importance varies much and lowered for others (equation 4)
    threshold  of mode fixed: a share of the weight. The learning rate is no part of it, so early in a run, on small
               batches, most of a model exceeds 0.05; `density` is measured
    schedule   thresholds of the other modes, the smallest first as a warm-up
    schedule_epochs  the epochs from which on the second, third ... of them hold: end of the warm-up, then where the
               learning rate drops
    beta       layerwise: by what share the threshold of a layer moves whose variance over mean is the typical one
    limit      layerwise: how many times larger or smaller a threshold may become
    voters     ranks whose masks count, sampled again in every step
    draw       whether every layer has voters of its own, or all layers of a bucket the same
    rho        a coordinate below the threshold is chosen with probability rho I / threshold. 1: as the paper writes it,
               which sends several times as much; 0: never; else at least 1e-9
    epsilon    |w| counts as no less than this share of its layer's root mean square; 0: no lower limit, so that weights
               of 0 are infinitely important
    masks      how they travel: bits, delta (gaps), or for each message the smaller
    waiting    keep the step in which each coordinate was last sent, to measure how long it waits
    momentum, nesterov, clip  momentum correction (feedback.py); momentum replaces the optimizer's
    histograms names of layers whose distribution of importance is measured, in readings of output.health_every
    masking    clear the momentum of sent coordinates (DGC; this paper does not mention it): if most are sent, as at the
               usual thresholds, that leaves SGD without momentum

    Memory: residual and momentum, 2 d; 1 d with momentum = 0; another d (int32) with waiting. While it works: the
    values sent, twice as much for their places, d / 32 for each mask, and at most 4.3 MB of scratch. Where kernels
    work it is a byte for each element in place of places and scratch, two with masks as gaps, and luck is another draw
    than on a CPU.
    Measures: density; mask_bytes, of all voters; ratio_with_masks, the compression ratio if each rank had sent the
    values and all masks; waiting_mean and waiting_max, in steps; of each layer importance_mean/LAYER and
    importance_var/LAYER; and of those in `histograms` importance_share/LAYER/LOW, the share of coordinates whose
    importance lies between LOW and the next LOW (importance.LOWS), as the voters' masks find it.
    """

    keeps: Keeps = "exactly"
    bounded_by = "threshold"
    reads_weights = True
    dense_below = 1
    collective = "ring"
    uncaptured = "the lengths of its messages depend on values"

    def __init__(
        self,
        mode: Mode = "fixed",
        threshold: float = 0.05,
        schedule: Sequence[float] = (0.005, 0.01, 0.05, 0.1),
        schedule_epochs: Sequence[int] = (5, 30, 60),
        beta: float = 0.25,
        limit: float = 4.0,
        voters: int = 2,
        draw: Draw = "layer",
        rho: float = 0.05,
        epsilon: float = 0.01,
        masks: Masks = "bits",
        waiting: bool = False,
        momentum: float = 0.9,
        nesterov: bool = False,
        clip: float = 0.0,
        masking: bool = False,
        histograms: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if voters < 1:
            raise ValueError(f"voters are 1 or more, got {voters}")
        if rho and not LEAST_RHO <= rho <= 1:
            raise ValueError(f"rho lies in [{LEAST_RHO:g}, 1], or is 0, got {rho}")
        if not 0 <= epsilon <= MOST:
            raise ValueError(f"epsilon lies in [0, {MOST:g}], got {epsilon}")
        self.bounded_by = "threshold" if mode == "fixed" else "schedule"
        _refuse_unused(mode, threshold=threshold, schedule=schedule, schedule_epochs=schedule_epochs)
        _refuse_unused(mode, beta=beta, limit=limit)
        self.thresholds = Thresholds(mode, threshold, schedule, schedule_epochs, beta, limit)
        self.voters, self.draw, self.rho, self.epsilon, self.waiting = voters, draw, rho, epsilon, waiting
        self.code, self.histograms = MaskCode(masks), frozenset(histograms)
        self.feedback = self.memory = Feedback(momentum, nesterov, clip, masking or not momentum)
        self.owns_momentum = momentum > 0
        self.whole_model = self.feedback.whole_model or self.whole_model

        self._longest_wait = (-1, 0)

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One gather of masks, then one sum of the values in them, where there are any.

        Passes over the whole bucket of a rank that chooses for all of it: both vectors are read once, the parameters
        once more for their size, and the gradient is cleared. Of a rank that chooses for none: one reading and the
        clearing.
        """
        if world.measuring and self.histograms:  # on every rank: the others would wait for one that stops
            _refuse_unknown(self.histograms, [layer.name for layer in bucket.model or bucket.layers])
        grad, layers = bucket.grad, bucket.layers
        with phase("update"):
            residual = self.feedback.accumulate(bucket, world)
        wanted = self._wanted(bucket, world)
        if kernels.usable(grad):
            return (yield from self._exchange_at_once(bucket, world, residual, wanted))
        with phase("select"):
            vote, moments = self._vote(bucket, world, residual, wanted)
        with phase("encode"):
            message = self.code.encode(vote, layers, grad.device)
        messages = yield Gather(message, values=0)
        with phase("decode"):
            read = self.code.decode(messages, layers, wanted)
            if read is None:
                return grad.fill_(torch.nan)
            self._learn(bucket, world, wanted, read.numbers)
            index = places(read.bits)
        with phase("encode"):
            values = residual.index_select(0, index)
            self.feedback.sent_narrow(bucket, index)
        if self.waiting:
            self._last_sent(bucket, world).index_fill_(0, index, world.step)
        if world.measuring:
            self._measure(bucket, world, index.numel(), sum(each.numel() for each in messages), moments)
        total = (yield Sum(bucket.narrow(values))) if index.numel() else values
        with phase("decode"):
            return write_average(grad, index, total, world.size)

    def wire_bytes(self, numel: int, size: int) -> int:
        """The values, and this rank's part of all voters' masks, if as much is sent as in the paper."""
        masks = min(self.voters, size) * self.code.expected_bytes(EXPECTED_SHARE, numel)
        return VALUE_BYTES * -(-numel // round(1 / EXPECTED_SHARE)) + -(-masks // size)

    def _exchange_at_once(
        self, bucket: Bucket, world: ExchangeContext, residual: Tensor, wanted: Mapping[int, int]
    ) -> Exchange:
        """The rest of an exchange, by kernels: as many of them for any number of layers. Luck is another draw."""
        from wirebench.compressors.kernels import votes

        grad, layers = bucket.grad, bucket.layers
        with phase("select"):
            message, moments = self._vote_at_once(bucket, world, residual, wanted)
        messages = yield Gather(message, values=0)
        with phase("decode"):
            heads = self.code.read_heads(messages, layers, wanted)
            if heads is None:
                return grad.fill_(torch.nan)
            self._learn(bucket, world, wanted, [head.numbers for head in heads])
            addresses = np.empty((len(messages), len(self._owners(bucket))), np.int64)
            for row, each, head in zip(addresses, messages, heads, strict=True):
                begins = self._begins(bucket, head) if head.form == AS_BITS else [None] * len(row)
                row[:] = [votes.NOWHERE if at is None else each.data_ptr() + at for at in begins]
            codes = [each[head.length :] for each, head in zip(messages, heads, strict=True) if head.form == AS_GAPS]
            found = votes.unite(grad, by_layer(bucket), addresses, codes)
            sent = int(found.counts.cpu().numpy().sum())  # the host waits, since this is the next message's length
        with phase("encode"):
            last, narrow = self._last_sent(bucket, world) if self.waiting else None, bucket.wire_dtype is not None
            values = votes.take(residual, self.feedback.masked(bucket), found, sent, narrow, last, world.step)
        if world.measuring:
            self._measure(bucket, world, sent, sum(each.numel() for each in messages), moments)
        total = (yield Sum(bucket.narrow(values))) if sent else values
        with phase("decode"):
            votes.write(grad, found, total.to(grad.dtype), world.size)
        return grad

    def _vote_at_once(
        self, bucket: Bucket, world: ExchangeContext, residual: Tensor, wanted: Mapping[int, int]
    ) -> tuple[Tensor, dict[int, Moments]]:
        """As `_vote`, with the message in place of the vote."""
        from wirebench.compressors.kernels import votes

        layers, groups, owners = bucket.layers, by_layer(bucket), self._owners(bucket)
        chosen = [number for number, layer in enumerate(layers) if self._votes(bucket, world, layer.start)]
        squares = residual
        if self.epsilon and chosen:
            (squares,) = reduce(bucket.param, groups, SQUARES)
        seed = seed_of("iwp", world.seed, world.rank, world.step, bucket.start)
        ballot = votes.Ballot(squares, self.epsilon, self.rho, seed)
        moments: dict[int, Moments] = {}
        if chosen and (world.measuring or self.thresholds.mode == "layerwise"):
            sums = votes.moments(residual, bucket.param, groups, ballot).tolist()
            moments = {
                owner: moments_of(total, square, layers[owner].numel)
                for owner, total, square in zip(owners, *sums, strict=True)
                if owner is not None and owner in chosen
            }
        if chosen and world.measuring and self.histograms:
            chooser = self._chooser(bucket, residual, chosen)
            self._add_shares(bucket, residual, self._pieces(bucket, chosen), chooser, moments)
        thresholds = self._thresholds_of(bucket, world, chosen, moments)
        limits = [-1.0 if owner is None else thresholds.get(owner, -1.0) for owner in owners]
        numbers = [moments[number].ratio for number in chosen if number in wanted]
        spread = None
        if chosen and self.code.masks != "bits":
            spread = torch.empty(-(-residual.numel() // BITS), dtype=torch.uint8, device=residual.device)
        form = AS_GAPS if chosen and self.code.masks == "delta" else AS_BITS
        head = self.code.head(layers, chosen, numbers, form)
        masks = sum(-(-stop // BITS) - start // BITS for start, stop in runs(layers, chosen))
        begins = self._begins(bucket, Head(chosen, {}, len(head)))
        length = len(head) + (masks if spread is None else residual.numel() + 8)
        room = votes.choose(residual, bucket.param, groups, ballot, limits, begins, head, length, NOT_FINITE, spread)
        if spread is None:
            return room[8:], moments
        least = residual.numel() + 9 if self.code.masks == "delta" else masks
        return self.code.encode_at_once(room, len(head), spread, layers, least), moments

    def _add_shares(
        self,
        bucket: Bucket,
        residual: Tensor,
        pieces: Mapping[int, Piece],
        chooser: Chooser,
        moments: dict[int, Moments],
    ) -> None:
        """The distributions of the importance of those layers of which they are measured."""
        for number, piece in pieces.items():
            if bucket.layers[number].name in self.histograms:
                shares = chooser.shares(residual[piece.start : piece.stop], piece.weights, piece.least)
                moments[number] = moments[number]._replace(shares=shares)

    @staticmethod
    def _owners(bucket: Bucket) -> list[int | None]:
        """For each of the groups of `by_layer` its layer's number in the bucket; None for a gap."""
        owners: list[int | None] = []
        place = bucket.start
        for number, layer in enumerate(bucket.layers):
            owners += [None, number] if layer.start > place else [number]
            place = layer.stop
        return owners

    def _begins(self, bucket: Bucket, head: Head) -> list[int | None]:
        """For each of these groups: where in a message the mask of the bucket's first place would be; None: nowhere."""
        of_layer: dict[int, int] = {}
        place, layers = head.length, iter(head.chosen)
        for start, stop in runs(bucket.layers, head.chosen):
            first, last = start // BITS, -(-stop // BITS)
            number = next(layers)
            of_layer[number] = place - first
            while bucket.layers[number].stop - bucket.start < stop:
                number = next(layers)
                of_layer[number] = place - first
            place += last - first
        owners = self._owners(bucket)
        begins = [None if owner is None else of_layer.get(owner) for owner in owners]
        for group, owner in enumerate(owners):
            if owner is None and begins[group - 1] == begins[group + 1]:  # a gap within a run is part of its mask
                begins[group] = begins[group - 1]
        return begins

    def _vote(
        self, bucket: Bucket, world: ExchangeContext, residual: Tensor, wanted: Mapping[int, int]
    ) -> tuple[Vote, dict[int, Moments]]:
        """This rank's vote, and the moments of the importance for the layers in `wanted`, by layer."""
        layers = bucket.layers
        chosen = [number for number, layer in enumerate(layers) if self._votes(bucket, world, layer.start)]
        others = sorted(set(range(len(layers))) - set(chosen))
        # What is not finite is chosen where this rank chooses, and so known to all.
        if not all_finite([residual[start:stop] for start, stop in runs(layers, others)]):
            return Vote(finite=False), {}
        if not chosen:
            return Vote(), {}
        chooser = self._chooser(bucket, residual, chosen)
        pieces = self._pieces(bucket, chosen)
        moments: dict[int, Moments] = {}
        if world.measuring or self.thresholds.mode == "layerwise":
            moments = {n: chooser.moments(residual[p.start : p.stop], p.weights, p.least) for n, p in pieces.items()}
        if world.measuring:
            self._add_shares(bucket, residual, pieces, chooser, moments)
        thresholds = self._thresholds_of(bucket, world, chosen, moments)
        pieces = {number: piece._replace(threshold=thresholds[number]) for number, piece in pieces.items()}
        luck = None
        if self.rho:
            rng = generator("iwp", world.seed, world.rank, world.step, bucket.start, device=residual.device)
            luck = Luck(self.rho, rng, chooser.blocks(list(pieces.values())), chooser.block)
        masks = [
            chooser.mask(residual, [p for p in pieces.values() if start <= p.start < stop], luck)
            for start, stop in runs(layers, chosen)
        ]
        numbers = [moments[number].ratio for number in chosen if number in wanted]
        return Vote(chosen, masks, numbers), moments

    def _pieces(self, bucket: Bucket, chosen: Sequence[int]) -> dict[int, Piece]:
        """The chosen layers by number, with a threshold of 0."""
        layers = [bucket.layers[number] for number in chosen]
        bounds = [(layer.start - bucket.start, layer.stop - bucket.start) for layer in layers]
        weights = [bucket.param[start:stop] for start, stop in bounds]
        parts = zip(chosen, bounds, weights, least_divisors(weights, self.epsilon), strict=True)
        return {number: Piece(*place, weight, 0.0, least) for number, place, weight, least in parts}

    @staticmethod
    def _chooser(bucket: Bucket, residual: Tensor, chosen: Sequence[int]) -> Chooser:
        return Chooser(residual, max(stop - start for start, stop in runs(bucket.layers, chosen)))

    def _thresholds_of(
        self, bucket: Bucket, world: ExchangeContext, chosen: Sequence[int], moments: Mapping[int, Moments]
    ) -> dict[int, float]:
        """The threshold of each chosen layer; only mode = layerwise needs their `moments`."""
        if self.thresholds.mode != "layerwise":
            return dict.fromkeys(chosen, self.thresholds.base(world.epoch))
        typical = typical_ratio(self.shared, world.epoch, _model_layers(bucket))
        return {n: self.thresholds.adapted(world.epoch, moments[n].ratio, typical) for n in chosen}

    def _votes(self, bucket: Bucket, world: ExchangeContext, start: int) -> bool:
        """Whether this rank chooses for the layer that begins at `start` of the flat gradient."""
        if self.voters >= world.size:
            return True
        # Drawn by place: layers that DDP gives a hook have no names.
        return world.rank in drawn(world, start if self.draw == "layer" else bucket.start, self.voters)

    def _wanted(self, bucket: Bucket, world: ExchangeContext) -> dict[int, int]:
        """Layers of the bucket whose ratio of importance is sent in this step: {place in bucket: place in model}."""
        if self.thresholds.mode != "layerwise":
            return {}
        count = _model_layers(bucket)
        typical_ratio(self.shared, world.epoch, count)  # on all ranks, before anything new is learnt
        place = {layer.name: place for place, layer in enumerate(bucket.model or bucket.layers)}
        mine = {number: place[layer.name] for number, layer in enumerate(bucket.layers)}
        wanted = set(due(self.shared, list(mine.values()), world.epoch, count))
        return {number: place for number, place in mine.items() if place in wanted}

    def _learn(
        self, bucket: Bucket, world: ExchangeContext, wanted: Mapping[int, int], numbers: Sequence[Mapping[int, float]]
    ) -> None:
        """Remember the ratios that ranks have sent, for the next epoch."""
        for number, place in wanted.items():
            ratios = [each[number] for each in numbers if number in each]
            note(self.shared, place, ratios, world.epoch, _model_layers(bucket))

    def _last_sent(self, bucket: Bucket, world: ExchangeContext) -> Tensor:
        """The step in which each of the bucket's coordinates was sent last, int32, to be written to."""
        last, device = self.own.get(LAST_SENT), bucket.grad.device
        if last is None:
            before = world.step - 1
            last = torch.full((bucket.model_numel,), before, dtype=torch.int32, device=device)
        self.own[LAST_SENT] = last = last.to(device)  # checkpoints are read to the CPU
        return last[bucket.start : bucket.stop]

    def _measure(
        self, bucket: Bucket, world: ExchangeContext, sent: int, mask_bytes: int, moments: Mapping[int, Moments]
    ) -> None:
        numel = bucket.numel
        self.measures.ratio("density", sent, numel)
        self.measures.ratio("ratio_with_masks", VALUE_BYTES * numel, VALUE_BYTES * sent + mask_bytes)
        self.measures.total("mask_bytes", mask_bytes)
        if self.waiting:
            last = torch.cat([self.own[LAST_SENT][layer.start : layer.stop] for layer in bucket.layers])
            self.measures.ratio("waiting_mean", world.step * numel - last.sum(dtype=torch.int64), numel)
            # Totals add up over buckets: each adds by how much it raises the longest of the step.
            before = self._longest_wait[1] if self._longest_wait[0] == world.step else 0
            longest = max(world.step - int(last.min()), before)
            self.measures.total("waiting_max", longest - before)
            self._longest_wait = (world.step, longest)
        for number, layer in enumerate(bucket.layers):
            of_layer = moments.get(number)
            known = of_layer is not None and math.isfinite(of_layer.variance)
            mean, variance, _ = of_layer if of_layer is not None and known else Moments(0.0, 0.0)
            self.measures.ratio(f"importance_mean/{layer.name}", mean, float(known))
            self.measures.ratio(f"importance_var/{layer.name}", variance, float(known))
            if layer.name in self.histograms:
                shares = of_layer.shares if of_layer else (0.0,) * len(LOWS)
                for low, share in zip(LOWS, shares, strict=True):
                    self.measures.ratio(f"importance_share/{layer.name}/{low:.3g}", share, float(of_layer is not None))


def drawn(world: ExchangeContext, place: int, count: int) -> list[int]:
    """`count` different ranks, drawn alike on all ranks; new ones in every step and for every place."""
    return torch.randperm(world.size, generator=world.shared_rng("iwp", place))[:count].tolist()


def _refuse_unknown(names: frozenset[str], known: Sequence[str]) -> None:
    """UserError for a layer of `histograms` that is none of those that are compressed."""
    unknown = sorted(names - set(known))
    if unknown:
        raise UserError(f"compressor.histograms: no layer {unknown[0]!r} is compressed; {suggest(unknown[0], known)}")


def _model_layers(bucket: Bucket) -> int:
    return len(bucket.model or bucket.layers)


def _refuse_unused(mode: Mode, **options: float | Sequence[float]) -> None:
    """Raise ValueError where an option was set that `mode` does not read."""
    defaults = inspect.signature(Iwp.__init__).parameters
    for name, value in options.items():
        default = defaults[name].default
        as_given = tuple(value) if isinstance(value, Sequence) else value
        if mode not in MODES_OF[name] and as_given != default:
            raise ValueError(f"{name} is for mode = {' or '.join(MODES_OF[name])}, not for mode = {mode}")
