"""Gradients of many ranks, to be summed: of a model that is trained, or drawn from a distribution.

A run of few virtual ranks trains dense, and leaves the weights with which the named steps begin. With them each rank's
gradient is computed one after another, of a batch of its own: 64 ranks take one model's memory, and their gradients can
be kept in a file.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Laplace, StudentT

from wirebench.compose.build import compose
from wirebench.config import loader
from wirebench.data.shard import Shard
from wirebench.errors import UserError
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.requests import Sum
from wirebench.training.loop import conduct
from wirebench.training.progress import silent
from wirebench.training.trainer import Trainer
from wirebench.utils.files import write_atomically
from wirebench.utils.rng import seed_of
from wirebench.utils.tensor_tree import pack, unpack

TRAINED = 4
"""Virtual ranks that train."""
STRETCHES = 16
"""Of a gradient that is longer than the sample: stretches of neighbours, evenly spread."""
FREEDOM = 3.0
"""Degrees of freedom of Student's t: its variance is finite, its fourth moment is not."""
DENSE_SHARE = 0.01
"""Elements of a sparse gradient that are not 0."""
Gradients = dict[int, Tensor]
"""By step the gradients of all ranks, fp32 (ranks, n)."""


def _normal(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape)


def _laplace(shape: tuple[int, ...]) -> Tensor:
    return cast(Tensor, Laplace(0.0, 1.0).sample(torch.Size(shape)))


def _student_t(shape: tuple[int, ...]) -> Tensor:
    return cast(Tensor, StudentT(FREEDOM).sample(torch.Size(shape)))


def _sparse(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape) * (torch.rand(shape) < DENSE_SHARE)


DRAWN: Mapping[str, Callable[[tuple[int, ...]], Tensor]] = {
    "normal": _normal,
    "laplace": _laplace,
    "student_t": _student_t,
    "sparse": _sparse,
}


def drawn(name: str, steps: Sequence[int], ranks: int, sample: int) -> Gradients:
    """Independent numbers of a distribution; each step draws anew."""
    found = {}
    with torch.random.fork_rng(devices=[]):  # distributions take no generator
        for step in steps:
            torch.manual_seed(seed_of("wirebench bench sums", name, step))
            found[step] = DRAWN[name]((ranks, sample))
    return found


class Watched(Method):
    """Dense training, which keeps the weights that the steps in `wanted` begin with, flat, in `weights`."""

    reads_weights = True
    wanted: Sequence[int] = ()
    weights: dict[int, Tensor] = {}  # noqa: RUF012  # of the class: what reads it has not built the object

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """The dense sum."""
        if world.rank == 0 and world.step in Watched.wanted:
            Watched.weights[world.step] = bucket.param.clone()
        total = yield Sum(bucket.grad)
        assert isinstance(total, Tensor)
        return total.div_(world.size)

    def wire_bytes(self, numel: int, size: int) -> int:
        """Four bytes an element."""
        return 4 * numel


def trained(
    config: str, overrides: Sequence[str], steps: Sequence[int], ranks: int, sample: int, folder: Path
) -> Gradients:
    """Gradients at these steps of a training; UserError for a config that cannot be run.

    sample  elements of a gradient at most; folder: for the run's own files
    """
    given = [
        "engine.name=local", f"engine.workers={TRAINED}", "compressor.name=wirebench.bench.sum_inputs.Watched",
        "scheduler.name=single", "collective.name=", "collective.wire=", f"train.max_steps={max(steps) + 1}",
        "train.eval_every=0", f"output.dir={folder}/run",
    ]  # fmt: skip
    run = compose(loader.load(config, [*given, *overrides]))
    run.progress = run.step_log.progress = silent()
    Watched.wanted, Watched.weights = steps, {}  # not before: a run begins with a trial of the exchange
    try:
        conduct(run)
    finally:
        Watched.wanted, weights = (), Watched.weights
        Watched.weights = {}
    return {step: _gradients(run, step, weights[step], ranks, sample) for step in steps}


def _gradients(run: Trainer, step: int, weights: Tensor, ranks: int, sample: int) -> Tensor:
    """Every rank's gradient with these weights, of a batch that is its own, (ranks, n)."""
    worker = run.workers[0]
    data, flat, seed = run.config.data, worker.flat, run.config.train.seed
    flat.set_weights(weights)
    worker.model.train()
    rows = []
    for rank in range(ranks):
        shard = Shard(worker.shard.dataset, rank, ranks, data.batch_size, data.eval_batch_size, seed, worker.device)
        images, labels = next(shard.train(epoch=step))
        loss = worker.forward(images, labels, step, 0, len(images))
        found = torch.autograd.grad(loss, flat.parameters, allow_unused=True)
        whole = torch.zeros_like(flat.grad)
        for view, each in zip(flat.views_of(whole), found, strict=True):
            if each is not None:
                view.copy_(each)
        rows.append(sampled(whole, sample))
    return torch.stack(rows)


def sampled(gradient: Tensor, sample: int) -> Tensor:
    """Stretches of a gradient, evenly spread, of `sample` elements together; all of one that has no more."""
    if gradient.numel() <= sample:
        return gradient.clone()
    length = sample // STRETCHES
    places = [number * (gradient.numel() - length) // (STRETCHES - 1) for number in range(STRETCHES)]
    return torch.cat([gradient[place : place + length] for place in places])


def kept(file: Path | None, about: Mapping[str, Any], make: Callable[[], Gradients]) -> Gradients:
    """The gradients of this file, or those that `make` gives, which are then written to it.

    about  what they are of. UserError for a file that has others
    """
    if file is None:
        return make()
    if file.exists():
        try:
            found = unpack(file.read_bytes())
            theirs, gradients = found["about"], {int(step): each for step, each in found["gradients"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"--gradients: {file}: holds no gradients of wirebench bench sums") from error
        if theirs != about:
            other = ", ".join(f"{key} {theirs.get(key)!r}" for key in about if theirs.get(key) != about[key])
            raise UserError(f"--gradients: {file}: has gradients of other settings: {other}")
        return gradients
    made = make()
    write_atomically(file, pack({"about": dict(about), "gradients": {str(step): each for step, each in made.items()}}))
    return made
