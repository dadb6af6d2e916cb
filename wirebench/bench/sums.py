"""The error of a sum in few bits: by wire format, by the way that the sum takes, by the number of ranks.

  wirebench bench sums                                          ResNet-20 on the digits images, 2 to 64 ranks
  wirebench bench sums smoke --rounding stochastic --ranks 2 4 8 --json cells.jsonl
  wirebench bench sums smoke --forms bf16 fp8 int4 --ways one_hop ring --figures figures

The config is trained dense with as many virtual ranks as --ranks asks for at most. At the named steps the gradients of
the ranks are added up in each format, and the sum compared with that in fp64. Ways:

  one_hop       each share goes quantised to one rank, which adds up in fp32; the sum is quantised once more
                (quantised_sum, torchcomms, Megatron-LM)
  scatter       the same without the second time: the reduce-scatter of FSDP
  tree          pairs of ranks, pairs of pairs, ...: what is sent at each level is quantised
  ring          each of the P - 1 hops adds one gradient and quantises anew
  hierarchical  groups of 8 ranks (half of them below 16) sum in bf16, then the groups sum in the format, in one hop

Error is the root of the squares of what is off, over the root of the squares of the sum. `law` is what docs/sums.md
derives from the error of one gradient's numbers and from the norms of the partial sums. `gain` is the sum's own part in
what arrives (1: no bias); `worst` is the largest error, over the sum's root mean square.
"""

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from wirebench.compose.build import compose
from wirebench.compressors.bits.narrow import Form, chunk_of, quantised, restored
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.files import save
from wirebench.figures.provenance import provenance
from wirebench.figures.style import Figure, around, grid
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.requests import Gather, Sum
from wirebench.telemetry.environment import capture
from wirebench.training.loop import conduct
from wirebench.training.progress import silent
from wirebench.utils import extras, json_lines
from wirebench.utils.cli import check_outputs, parser_of
from wirebench.utils.console import columns, console
from wirebench.utils.rng import generator

NAME = "wirebench bench sums"
KIND = "wirebench sums"
SHOWN = ("bf16", "fp8", "mxfp8", "int8", "mxfp6", "int4", "nvfp4", "mxfp4")
COLOURS = dict(zip(SHOWN, (colours.INK, colours.BLUE, colours.SKY, colours.GREEN, colours.PINK, colours.VERMILLION,
                           colours.ORANGE, colours.WINE), strict=True))  # fmt: skip
GROUP = 8
"""Ranks of a machine."""
WIDTH = 120

Code = Callable[[Tensor, int], Tensor]
"""What arrives of a vector that was quantised in this number of parts."""


@dataclass(frozen=True)
class SumError:
    """A sum's error: relative, what the law predicts, the gain, and the worst element, as the module's text says."""

    step: int
    form: str
    way: str
    ranks: int
    error: float
    law: float
    gain: float
    worst: float


def _nothing(step: int, grads: Tensor) -> None:
    """No gradients are asked for."""


class Watched(Method):
    """Dense training, whose gradients are looked at in some steps: at a sample of them, the same places each time.

    steps   in which to look; sample: elements at most, neighbours
    report  called by rank 0 with the step and all ranks' samples, fp32 (ranks, n)
    """

    report: Callable[[int, Tensor], None] = staticmethod(_nothing)

    def __init__(self, steps: tuple[int, ...] = (), sample: int = 1 << 18) -> None:
        super().__init__()
        self.steps, self.sample = steps, sample

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """A gather of the samples where they are asked for, and the dense sum."""
        if world.step in self.steps:
            first = max(bucket.grad.numel() - self.sample, 0) // 2
            answers = yield Gather(bucket.grad[first:][: self.sample].clone())
            if world.rank == 0:
                Watched.report(world.step, torch.stack([*answers]))
        total = yield Sum(bucket.grad)
        assert isinstance(total, Tensor)
        return total.div_(world.size)

    def wire_bytes(self, numel: int, size: int) -> int:
        """Four bytes an element."""
        return 4 * numel


def errors(
    step: int, grads: Tensor, form: Form, chunk: int, ways: Sequence[str], ranks: Sequence[int], rounding: str
) -> Iterator[SumError]:
    """The errors of sums of the first ranks' gradients, (ranks, n)."""
    code = coder(form, chunk, rounding, step)
    apart = sum(float((code(each, 1) - each).double().square().sum()) for each in grads)
    lost = apart / float(grads.double().square().sum())
    for count in ranks:
        # As many elements as shares of whole chunks have; a longer vector would be padded.
        unit = count * max(chunk_of(form, chunk), 32)
        some = grads[:count, : grads.shape[1] // unit * unit]
        wanted = some.double().sum(0)
        energy = float(wanted.square().sum())
        for way in ways:
            if way == "hierarchical" and count < 4:
                continue
            found, law = WAYS[way](some, code, lost)
            off = found.double() - wanted
            yield SumError(
                step, form, way, count,
                error=math.sqrt(float(off.square().sum()) / energy), law=math.sqrt(law / energy),
                gain=float(found.double() @ wanted) / energy,
                worst=float(off.abs().max()) / math.sqrt(energy / wanted.numel()),
            )  # fmt: skip


def coder(form: Form, chunk: int, rounding: str, seed: int) -> Code:
    """How vectors are quantised."""
    rng = generator(NAME, seed, form) if rounding == "stochastic" and form != "fp32" else None
    own = chunk_of(form, chunk)

    def code(values: Tensor, parts: int) -> Tensor:
        numel = -(-values.numel() // (own * parts)) * own * parts
        message = quantised(values.clone(), own, form, numel, parts, keep=False, generator=rng)
        return restored(message.chunk(parts), own, form, torch.empty_like(values))

    return code


def _energy(values: Tensor) -> float:
    return float(values.double().square().sum())


def _scatter(grads: Tensor, code: Code, lost: float) -> tuple[Tensor, float]:
    total = torch.stack([code(each, len(grads)) for each in grads]).sum(0)
    return total, lost * _energy(grads)


def _one_hop(grads: Tensor, code: Code, lost: float) -> tuple[Tensor, float]:
    total, law = _scatter(grads, code, lost)
    return code(total, len(grads)), law + lost * _energy(grads.sum(0))


def _ring(grads: Tensor, code: Code, lost: float) -> tuple[Tensor, float]:
    """Share s starts at rank s + 1: hop h adds the gradient of rank s + 1 + h to it."""
    count = len(grads)
    shares = grads.view(count, count, -1)
    share = torch.arange(count)
    partial, exact, law = torch.zeros_like(shares[0]), torch.zeros_like(shares[0]), 0.0
    for hop in range(count):
        if hop:
            partial = code(partial.reshape(-1), count).view_as(partial)
            law += lost * _energy(exact)
        mine = shares[(share + 1 + hop) % count, share]
        partial, exact = partial + mine, exact + mine
    return code(partial.reshape(-1), count), law + lost * _energy(exact)


def _tree(grads: Tensor, code: Code, lost: float) -> tuple[Tensor, float]:
    partial, exact, law = list(grads), list(grads), 0.0
    while len(partial) > 1:
        law += lost * sum(_energy(each) for each in exact[1::2])
        partial = [a + code(b, 1) for a, b in zip(partial[::2], partial[1::2], strict=True)]
        exact = [a + b for a, b in zip(exact[::2], exact[1::2], strict=True)]
    return code(partial[0], 1), law + lost * _energy(exact[0])


def _hierarchical(grads: Tensor, code: Code, lost: float) -> tuple[Tensor, float]:
    group = min(GROUP, len(grads) // 2)
    within = coder("bf16", 2, "nearest", 0)
    rounding = sum(_energy(within(each, 1) - each) for each in grads)
    machines = torch.stack([
        torch.stack([within(each, group) for each in some]).sum(0) for some in grads.split(group)
    ])  # fmt: skip
    total, law = _one_hop(machines, code, lost)
    return total, law + rounding


WAYS = {"one_hop": _one_hop, "scatter": _scatter, "tree": _tree, "ring": _ring, "hierarchical": _hierarchical}


def main(arguments: Sequence[str]) -> int:
    """Train, measure, show, write."""
    options = _parser().parse_args(arguments)
    _check(options)
    cells: list[SumError] = []
    least = _least(options)

    def report(step: int, grads: Tensor) -> None:
        if grads.shape[1] < least:
            raise UserError(f"--ranks: the gradient has {grads.shape[1]} elements; --chunk and --ranks need {least}")
        for form in options.forms:
            cells.extend(errors(step, grads, form, options.chunk, options.ways, options.ranks, options.rounding))

    with tempfile.TemporaryDirectory() as folder:
        given = [
            "engine.name=local", f"engine.workers={max(options.ranks)}", "compressor.name=wirebench.bench.sums.Watched",
            f"compressor.steps={list(options.steps)}", f"compressor.sample={options.sample}", "scheduler.name=single",
            "collective.name=", f"train.max_steps={max(options.steps) + 1}", "train.eval_every=0",
            f"output.dir={folder}/run",
        ]  # fmt: skip
        run = compose(loader.load(options.config, [*given, *options.overrides]))
        run.progress = run.step_log.progress = silent()
        Watched.report = staticmethod(report)  # not before: a run begins with a trial of the exchange
        try:
            conduct(run)
        finally:
            Watched.report = staticmethod(_nothing)
    header = {"kind": KIND, "config": options.config, "overrides": options.overrides, "chunk": options.chunk,
              "rounding": options.rounding, "environment": capture(torch.device("cpu"))}  # fmt: skip
    show(cells)
    if options.json:
        json_lines.save(options.json, header, map(asdict, cells))
    if options.figures:
        print(save(figure(cells, options.config, provenance([header["environment"]])), options.figures / "sums.svg"))
    return 0


def show(cells: Sequence[SumError]) -> None:
    """A table: a row for each format and way, a column for each number of ranks."""
    ranks = sorted({cell.ranks for cell in cells})
    heads = ("step", "format", "way", *(f"{count} ranks" for count in ranks), "law", "gain", "worst")
    shown = columns(heads, left=("format", "way"))
    for key in dict.fromkeys((cell.step, cell.form, cell.way) for cell in cells):
        mine = {cell.ranks: cell for cell in cells if (cell.step, cell.form, cell.way) == key}
        last = mine[max(mine)]
        each = (f"{mine[count].error:.3%}" if count in mine else "" for count in ranks)
        shown.add_row(str(key[0]), *key[1:], *each, f"{last.law:.3%}", f"{last.gain:.4f}", f"{last.worst:.2g}")
    console(WIDTH).print(shown)
    print("Errors of the sum; law, gain and worst are of the most ranks.")


def figure(cells: Sequence[SumError], config: str, where: str) -> Figure:
    """A panel for each way, at the last step that was looked at: errors by the number of ranks, with the law's."""
    last = max(cell.step for cell in cells)
    cells = [cell for cell in cells if cell.step == last]
    ranks = sorted({cell.ranks for cell in cells})
    amounts = [100 * amount for cell in cells for amount in (cell.error, cell.law)]
    across = around("ranks", ranks, log=True, values=ranks)
    up = around("error of the sum, %", amounts, log=True)
    panels = []
    for way in dict.fromkeys(cell.way for cell in cells):
        lines = []
        for number, form in enumerate(dict.fromkeys(cell.form for cell in cells)):
            mine = [cell for cell in cells if (cell.form, cell.way) == (form, way)]
            colour = COLOURS.get(form) or colours.PURPLE
            at = [cell.ranks for cell in mine]
            lines.append(Curve(form, colour, at, [100 * cell.error for cell in mine]))
            law = [100 * cell.law for cell in mine]
            lines.append(Curve(f"law {number}", colour, at, law, dash=(2, 3), points=False, label="", width=1.0))
        panels.append(curves(lines, across, up, way.replace("_", " ")))
    return grid(
        panels, f"{config}, step {last}: the error of a sum", f"dotted: the law of docs/sums.md; {where}", 2, 900
    )


def _check(options: argparse.Namespace) -> None:
    if unknown := [form for form in options.forms if form not in get_args(Form)]:
        raise UserError(f"--forms: {unknown[0]} is no wire format; there are {', '.join(get_args(Form))}")
    if wrong := [count for count in options.ranks if count < 2 or count & (count - 1)]:
        raise UserError(f"--ranks: powers of two, got {wrong[0]}")
    if min(options.steps) < 0:
        raise UserError(f"--steps: from 0 on, got {min(options.steps)}")
    if options.chunk < 4 or options.chunk % 4:
        raise UserError(f"--chunk: a multiple of 4, got {options.chunk}")
    if options.sample < _least(options):
        raise UserError(f"--sample: at least {_least(options)} elements, a chunk for each rank, got {options.sample}")
    if options.ways == ["hierarchical"] and max(options.ranks) < 4:
        raise UserError("--ways: hierarchical needs --ranks of 4 or more")
    check_outputs(json=options.json, figures=options.figures / "sums.svg" if options.figures else None)
    extras.check(extras.FIGURES if options.figures else ())


def _least(options: argparse.Namespace) -> int:
    """Elements that give each rank a chunk."""
    return max(options.ranks) * max(32, *(chunk_of(form, options.chunk) for form in options.forms))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("bench sums", __doc__)
    add: Callable[..., Any] = parser.add_argument
    add("config", nargs="?", default="smoke", help="what to train, dense (%(default)s)")
    add("overrides", nargs="*", default=[], metavar="section.key=value", help="of the config")
    add("--forms", nargs="+", default=list(SHOWN), metavar="FORM", help=f"of {', '.join(get_args(Form))}")
    add("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), metavar="WAY", help=f"of {', '.join(WAYS)}")
    add("--ranks", nargs="+", type=int, default=[2, 4, 8, 16, 32, 64], metavar="P", help="powers of two (2 to 64)")
    add("--steps", nargs="+", type=int, default=[1, 20], metavar="STEP", help="steps to look at (1 20)")
    add("--chunk", type=int, default=256, help="elements that share a scale, where a format lets choose (%(default)s)")
    add("--rounding", choices=["nearest", "stochastic"], default="nearest")
    add("--sample", type=int, default=1 << 17, metavar="N", help="elements of a gradient to look at (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write a line of JSON for each error")
    add("--figures", type=Path, metavar="FOLDER", help="draw a figure")
    return parser
