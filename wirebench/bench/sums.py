"""The error of a sum in few bits: by wire format, by the way that the sum takes, by the number of ranks.

  wirebench bench sums                                          ResNet-20 on the digits images, 2 to 64 ranks
  wirebench bench sums smoke --rounding stochastic --ranks 2 4 8 --json cells.jsonl
  wirebench bench sums smoke --forms bf16 fp8 int4 --ways one_hop ring --figures figures
  wirebench bench sums tables/today_gpt --gradients gpt.safetensors
  wirebench bench sums student_t --sample 262144
  wirebench bench sums --read cells.jsonl --figures figures

A config is trained dense with four virtual ranks. With the weights of the named steps each rank's gradient is computed,
of a batch of its own; --gradients keeps them in a file, which a later call reads. A distribution's name draws them:
normal, laplace, student_t (3 degrees of freedom), sparse (1 % are not 0). They are added up in each format, and the sum
compared with that in fp64. Ways, each the plan of a collective as a job runs it:

  one_hop           each share goes coded to one rank, which adds up in fp32; the sum is coded once more
                    (torchcomms, Megatron-LM)
  scatter           its first half alone: the reduce-scatter of FSDP
  tree              pairs of ranks, pairs of pairs, ...: what is sent at each level is coded
  ring              each of the P - 1 hops adds one gradient and codes anew
  halving_doubling  log2 P rounds, which code a half, a quarter, ...
  hierarchical      groups of 8 ranks (half of them below 16) in one hop in bf16, then the groups in one hop

Error is the root of the squares of what is off, over the root of the squares of the sum; its square is the mean squared
error over the sum's. `law` is what docs/sums.md derives from the error of one gradient's numbers and from the energy of
what the plan codes. `gain` is the sum's own part in what arrives (1: nothing of it is lost), `bias` the mean of what is
off, `worst` the largest, both over the root mean square of the sum. `bytes` for an element: of the busiest rank.
"""

import argparse
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from wirebench.bench import lossless
from wirebench.bench.sum_inputs import DRAWN, Gradients, drawn, kept, trained
from wirebench.bench.sum_ways import WAYS, Way
from wirebench.bench.virtual_sums import Energies, coded_sum, through
from wirebench.collectives.plan import Plan
from wirebench.compressors.bits.coded import Coded
from wirebench.compressors.bits.narrow import CHUNK, Form, chunk_fault
from wirebench.costmodel.plan_cost import sent_bytes
from wirebench.errors import UserError
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.files import save
from wirebench.figures.provenance import provenance
from wirebench.figures.style import Figure, around, grid
from wirebench.telemetry.environment import capture
from wirebench.utils import extras, json_lines
from wirebench.utils.cli import check_outputs, parser_of
from wirebench.utils.console import columns, console
from wirebench.utils.rng import generator

NAME = "wirebench bench sums"
KIND = "wirebench sums"
SHOWN = ("bf16", "fp8", "mxfp8", "int8", "mxfp6", "int4", "nvfp4", "mxfp4")
COLOURS = dict(zip(SHOWN, (colours.INK, colours.BLUE, colours.SKY, colours.GREEN, colours.PINK, colours.VERMILLION,
                           colours.ORANGE, colours.WINE), strict=True))  # fmt: skip
MEASURING = ("ranks", "steps", "chunk", "rounding", "sample")
"""Options of what is measured, which a file of earlier errors no longer changes."""
WIDTH = 140


@dataclass(frozen=True)
class SumError:
    """A sum's error: relative, what the law predicts, gain, bias, the worst element, bytes, as the module's text says.

    Files of before have no `bias` and no `bytes`.
    """

    step: int
    form: str
    way: str
    ranks: int
    error: float
    law: float
    gain: float
    worst: float
    bias: float = math.nan
    bytes: float = math.nan


def errors(
    step: int, grads: Tensor, forms: Sequence[str], chunk: int, ways: Sequence[str], ranks: Sequence[int], rounding: str
) -> Iterator[SumError]:
    """The errors of sums of the first ranks' gradients, fp32 (ranks, n), which have `least` elements or more."""
    codes = {form: _code(form, chunk, rounding, step) for form in forms}
    lost = {form: _lost(code, grads) for form, code in codes.items()}
    lost_within = _lost(Coded("bf16"), grads)
    for count in ranks:
        # As many elements as shares of whole chunks have; a longer vector would be padded.
        some = grads[:count, : grads.shape[1] // _unit(codes.values(), count) * _unit(codes.values(), count)]
        wanted = some.double().sum(0)
        for name in ways:
            if name == "hierarchical" and count < 4:
                continue
            way, energies = WAYS[name], None
            for form, code in codes.items():
                plan = way.plan(count, code, some.shape[1])
                # Of exact sums, and so the same for all formats.
                energies = energies or Energies(plan, some, way.gathers)
                law = lost[form] * energies.between + lost_within * energies.within
                found = coded_sum(plan, some, way.gathers)
                yield _measured(step, form, name, count, found.double(), wanted, law, _bytes(plan, way) / len(wanted))


def _measured(
    step: int, form: str, way: str, ranks: int, found: Tensor, wanted: Tensor, law: float, sent: float
) -> SumError:
    energy, off = float(wanted.square().sum()), found - wanted
    size = math.sqrt(energy / wanted.numel())
    return SumError(
        step, form, way, ranks,
        error=math.sqrt(float(off.square().sum()) / energy), law=math.sqrt(law / energy),
        gain=float(found @ wanted) / energy, worst=float(off.abs().max()) / size, bias=float(off.mean()) / size,
        bytes=sent,
    )  # fmt: skip


def _bytes(plan: Plan, way: Way) -> float:
    """Bytes that the busiest rank sends."""
    sent = sent_bytes(plan if way.gathers else Plan(plan.name, plan.reduce, (), plan.wire), 0)
    return max(sent.values())


def _code(form: str, chunk: int, rounding: str, seed: int) -> Coded:
    draws = rounding == "stochastic" and form != "fp32"
    return Coded(form, chunk, generator(NAME, seed, form) if draws else None)  # type: ignore[arg-type]


def _lost(code: Coded, grads: Tensor) -> float:
    """The share of the gradients' energy that coding them cuts off."""
    some = grads[:, : grads.shape[1] // code.unit * code.unit]
    off = sum(float((through(code, each[None])[0] - each).double().square().sum()) for each in some)
    return off / float(some.double().square().sum())


def _unit(codes: Iterable[Coded], ranks: int) -> int:
    """Elements that give each rank as many whole chunks."""
    return ranks * math.lcm(32, *(code.unit for code in codes))


def main(arguments: Sequence[str]) -> int:
    """Train or draw, measure, show, write."""
    parser = _parser()
    options = parser.parse_args(arguments)
    _check(options)
    if options.read:
        _refuse_measuring(parser, options)
        header, cells = load(options.read)
        cells = [each for each in cells if each.form in options.forms and each.way in options.ways]
        if not cells:
            raise UserError(f"--read: {options.read}: has none of these formats and ways")
    else:
        header, cells = _made(options)
    show(cells)
    if header.get("lossless"):
        lossless.show([lossless.Lossless(**each) for each in header["lossless"]])
    if options.json:
        json_lines.save(options.json, header, map(asdict, cells))
    if options.figures:
        drawn_of = figure(cells, header["config"], provenance([header["environment"]]))
        print(save(drawn_of, options.figures / "sums.svg"))
    return 0


def load(path: Path) -> tuple[dict[str, Any], list[SumError]]:
    """The header and the cells of a file that --json wrote; UserError for another file."""
    header, lines = json_lines.load(path, KIND, NAME)
    try:
        return header, [SumError(**line) for line in lines]
    except TypeError as error:
        raise UserError(f"{path}: cannot be read as {KIND} ({error})") from error


def _made(options: argparse.Namespace) -> tuple[dict[str, Any], list[SumError]]:
    cells: list[SumError] = []
    exact: list[lossless.Lossless] = []
    for step, grads in _gradients(options).items():
        if grads.shape[1] < _least(options):
            raise UserError(
                f"--ranks: the gradient has {grads.shape[1]} elements; --chunk and --ranks need {_least(options)}"
            )
        ways, ranks = list(dict.fromkeys(options.ways)), sorted(set(options.ranks))
        found = errors(step, grads, options.forms, options.chunk, ways, ranks, options.rounding)
        cells.extend(sorted(found, key=lambda each: options.forms.index(each.form)))
        exact.extend(lossless.measured(step, grads) if options.lossless else ())
    header = {"kind": KIND, "config": options.config, "overrides": options.overrides, "chunk": options.chunk,
              "rounding": options.rounding, "lossless": [asdict(each) for each in exact],
              "environment": capture(torch.device("cpu"))}  # fmt: skip
    return header, cells


def _gradients(options: argparse.Namespace) -> Gradients:
    steps, ranks, sample = sorted(set(options.steps)), max(options.ranks), options.sample
    if options.config in DRAWN:
        return drawn(options.config, steps, ranks, sample)
    about = {"config": options.config, "overrides": options.overrides, "steps": steps, "ranks": ranks, "sample": sample}
    with tempfile.TemporaryDirectory() as folder:
        make = partial(trained, options.config, options.overrides, steps, ranks, sample, Path(folder))
        return kept(options.gradients, about, make)


def show(cells: Sequence[SumError]) -> None:
    """A table: a row for each format and way, a column for each number of ranks."""
    ranks = sorted({cell.ranks for cell in cells})
    of_most = ("law", "gain", "bias", "worst", "bytes")
    heads = ("step", "format", "way", *(f"{count} ranks" for count in ranks), *of_most)
    shown = columns(heads, left=("format", "way"))
    for key in dict.fromkeys((cell.step, cell.form, cell.way) for cell in cells):
        mine = {cell.ranks: cell for cell in cells if (cell.step, cell.form, cell.way) == key}
        last = mine[max(mine)]
        each = (f"{mine[count].error:.3%}" if count in mine else "" for count in ranks)
        more = f"{last.law:.3%}", f"{last.gain:.4f}", f"{last.bias:.1g}", f"{last.worst:.2g}", f"{last.bytes:.3g}"
        shown.add_row(str(key[0]), *key[1:], *each, *more)
    console(WIDTH).print(shown)
    print(f"Errors of the sum; {', '.join(of_most)} are of the most ranks.")


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
    if fault := chunk_fault(options.chunk, *options.forms):
        raise UserError(f"--chunk: {fault}")
    if options.sample < _least(options):
        raise UserError(f"--sample: at least {_least(options)} elements, a chunk for each rank, got {options.sample}")
    if options.ways == ["hierarchical"] and max(options.ranks) < 4:
        raise UserError("--ways: hierarchical needs --ranks of 4 or more")
    if options.config in DRAWN and options.overrides:
        raise UserError(f"{options.overrides[0]}: of a config, and {options.config} is a distribution")
    if options.gradients and (options.config in DRAWN or options.read):
        raise UserError("--gradients: keeps gradients of a training")
    if options.read and options.lossless:
        raise UserError("--lossless: is measured, and --read measures nothing; it shows what the file has")
    if options.read and options.json:
        raise UserError("--json: writes what is measured, and --read measures nothing")
    figure_file = options.figures / "sums.svg" if options.figures else None
    check_outputs(json=options.json, gradients=options.gradients, figures=figure_file)
    extras.check(extras.FIGURES if options.figures else ())


def _refuse_measuring(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """UserError for an option of what is measured."""
    for name in ("config", "overrides", *MEASURING):
        if (given := getattr(options, name)) != parser.get_default(name):
            named = f"--{name}" if name in MEASURING else " ".join([given] if name == "config" else given)
            raise UserError(f"{named}: is of what is measured, and --read measures nothing")


def _least(options: argparse.Namespace) -> int:
    """Elements that give each rank a chunk, and each stretch of a sample."""
    return _unit([_code(form, options.chunk, "nearest", 0) for form in options.forms], max(options.ranks))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("bench sums", __doc__)
    add: Callable[..., Any] = parser.add_argument
    add("config", nargs="?", default="smoke", help=f"what to train, or one of {', '.join(DRAWN)} (%(default)s)")
    add("overrides", nargs="*", default=[], metavar="section.key=value", help="of the config")
    add("--forms", nargs="+", default=list(SHOWN), metavar="FORM", help=f"of {', '.join(get_args(Form))}")
    add("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), metavar="WAY", help=f"of {', '.join(WAYS)}")
    add("--ranks", nargs="+", type=int, default=[2, 4, 8, 16, 32, 64], metavar="P", help="powers of two (2 to 64)")
    add("--steps", nargs="+", type=int, default=[1, 20], metavar="STEP", help="steps to look at (1 20)")
    add("--chunk", type=int, default=CHUNK, help="elements of a scale, where a format lets choose (%(default)s)")
    add("--rounding", choices=["nearest", "stochastic"], default="nearest")
    add("--sample", type=int, default=1 << 17, metavar="N", help="elements of a gradient to look at (%(default)s)")
    add("--gradients", type=Path, metavar="FILE", help="keep the gradients of a training, or read an earlier one's")
    add("--lossless", action="store_true", help="also what coding exponents without loss saves, and where it pays")
    add("--read", type=Path, metavar="FILE", help="show and draw a file of --json in place of measuring")
    add("--json", type=Path, metavar="FILE", help="write a line of JSON for each error")
    add("--figures", type=Path, metavar="FOLDER", help="draw a figure")
    return parser
