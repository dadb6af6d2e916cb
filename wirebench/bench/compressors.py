"""Time and memory of every compressor's own work on one rank, in copies of the vector that it compresses.

  wirebench bench compressors                                        all of them on four models (about 30 min)
  wirebench bench compressors --sizes 14.7m --compressors topk dgc:momentum=0.9 none
  wirebench bench compressors --sizes 14.7m --json cells.jsonl --figures figures
  wirebench bench compressors --formats --json formats.jsonl         what coding in each wire format takes

There is no network: each request is answered at once from the rank's own messages, as if all P workers had sent the
same. The time of answering is not counted. A message is merged with messages of earlier steps, whose entries lie at
other places. wirebench/gradient/phases.py defines the parts: recover selects entries again in a later round, merge is
the ceil(log2 P) merges of a tree's root, other is the rest. The whole model is one bucket; methods send dense what
their papers send dense (dense_below). The one step in 32 in which oktopk finds exact thresholds is not timed.

All methods take turns, and beside each turn the vector is copied: that is the unit. With one thread of a CPU the clock
is the process's CPU time, which leaves out other processes. The first steps (--warmup) are left out. Parts and copies
are means of the middle half of the turns over the median copy; [p10 - p90] are turns over the copies beside them; least
is the quickest turn over the quickest copy. Where the memories of all do not fit, methods take turns in groups.

--formats measures `quantised_sum` without feedback in each wire format: the coding of one hop, and nothing else. From
these times `advise --wire` and `simulate --wire` price the coding at each hop of a plan.

Memory is measured in separate steps, as multiples of the vector (d). It leaves out the gradient, the parameters and the
messages of other ranks. state is what a checkpoint holds; peak is the most that is allocated in a step, with the state.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from rich.table import Table

from wirebench import compressors
from wirebench.bench import plot_compressors
from wirebench.bench.baselines import rivals
from wirebench.bench.inputs import GRADIENTS, REAL, parse_size
from wirebench.bench.turns import REPEATS, WARMUP, Bench, Contender
from wirebench.compressors.bits.narrow import Form
from wirebench.errors import UserError
from wirebench.figures.provenance import provenance
from wirebench.record import compressor_results
from wirebench.record.compressor_results import PARTS, CompressorResult
from wirebench.simulation.compress_rates import ONE_HOP
from wirebench.telemetry.environment import capture
from wirebench.utils import extras
from wirebench.utils.cli import INTERRUPTED, check_outputs, naming, parser_of
from wirebench.utils.console import columns, console
from wirebench.utils.parsing import plugin_of

NAME = "wirebench bench compressors"
OF_FORMATS = ("4k", "0.27m", "14.7m")
"""Sizes at which formats are measured: a call's own cost, and a vector in the processor's cache and one that is not."""
RIVALS_DENSITY = 0.001
"""What `torch.topk` and the like choose where --density does not say."""
USUAL = {"iwp": "threshold=3"}
REMARKS = {
    "iwp threshold=3": "weights are as initialised and gradients are noise: the default threshold, 0.05, lets 10 to "
    "25 % through; 3 lets 1 to 2 % through, as the paper's threshold does in training"
}
"""Options for these gradients in place of a method's own defaults, and why."""
LEAST_SHOWN = 0.005
WIDTH = 180
"""Characters: no number is cut, also where the terminal is narrower."""


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line names: 1 where a method failed."""
    options = _parser().parse_args(arguments)
    _check(options)
    check_outputs(json=options.json, figures=options.figures / "figure.png" if options.figures else None)
    extras.check(extras.FIGURES if options.figures else ())
    return measure(options)


def measure(options: argparse.Namespace) -> int:
    """Measure, show, write; what was measured before Ctrl-C too."""
    torch.set_num_threads(options.threads)
    sizes = [parse_size(text) for text in options.sizes or (OF_FORMATS if options.formats else REAL)]
    named = [ONE_HOP.format(form) for form in get_args(Form)] if options.formats else options.compressors
    contenders = choose(named, options.density, not options.formats if options.rivals is None else options.rivals)
    say = (lambda text: None) if options.quiet else _say
    bench = Bench(torch.device(options.device), options.workers, options.warmup, options.repeats, say)
    code = 0
    try:
        for size in sizes:
            bench.measure(size, contenders)
            _write(options, bench)
    except KeyboardInterrupt:
        print(f"{NAME}: interrupted; what was measured stays", file=sys.stderr)
        code = INTERRUPTED
    note = plot_compressors.note_of(header(options, bench))
    show(bench.cells, note, REMARKS)
    _write(options, bench)
    where = provenance([header(options, bench)["environment"]])
    for path in plot_compressors.draw(bench.cells, options.figures, note, where) if options.figures else []:
        print(path)
    failed = [cell for cell in bench.cells if cell.error]
    for cell in failed:
        print(f"{NAME}: {cell.method} failed on {cell.model}: {cell.error}", file=sys.stderr)
    return code or (1 if failed else 0)


def choose(texts: Sequence[str] | None, density: float | None, with_rivals: bool) -> list[Contender]:
    """The contenders: the compressors that the command line names, or else all of them, and the rivals.

    Raises UserError for a named compressor that does not exist or does not take its options. Its other errors are
    reported when it is measured.
    """
    usual = [f"{name}:{USUAL[name]}" if name in USUAL else name for name in compressors.available()]
    contenders = [parse_compressor(text, density) for text in texts or usual]
    for contender in contenders if texts else []:
        try:
            contender.make()
        except Exception as error:
            if isinstance(error, UserError):
                raise
    if with_rivals:
        contenders += [Contender(name, make, rival=True) for name, make in rivals(density or RIVALS_DENSITY).items()]
    names = [contender.name for contender in contenders]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"--compressors: named twice: {', '.join(twice)}")
    return contenders


def parse_compressor(text: str, density: float | None) -> Contender:
    """`name:key=value:key=value`: options as in the section [compressor] of a config, dense_below and warmup too.

    Without dense_below, what the method's paper sends dense is.
    """
    try:
        name, given = plugin_of(text)
    except ValueError as error:
        raise UserError(f"--compressors: {error}") from error

    keys = {f"compressor.{key}": f"--compressors {name}:{key}" for key in given}

    def make() -> Any:
        with naming({"compressor.name": "--compressors", **keys}):
            options: dict[str, Any] = {"dense_below": compressors.dense_below_of(name)}
            if density is not None and "density" in compressors.PLUGINS.options(name) and not given.get("k"):
                options["density"] = density
            return compressors.build(name, **options | given)

    return Contender(text.replace(":", " "), make)


def header(options: argparse.Namespace, bench: Bench) -> dict[str, Any]:
    """How and where it was measured."""
    return {
        "workers": options.workers,
        "density": options.density,
        "warmup": options.warmup,
        "repeats": options.repeats,
        "threads": options.threads,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "",
        "clock": bench.watch.clock,
        "gradients": GRADIENTS,
        "environment": capture(bench.device),
        "load": bench.load.load(),
    }


def _write(options: argparse.Namespace, bench: Bench) -> None:
    """The file, anew: what was measured so far."""
    if options.json is not None:
        compressor_results.save(options.json, header(options, bench), bench.cells)


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def show(cells: Sequence[CompressorResult], title: str, remarks: Mapping[str, str]) -> None:
    """Print one table for each size, and below the last what is to say of methods in it, by name."""
    shown_on = console(WIDTH, markup=False)
    shown_on.width = WIDTH
    for items in dict.fromkeys(cell.items for cell in cells):
        shown_on.print(table([cell for cell in cells if cell.items == items], title))
    shown = {cell.method for cell in cells}
    for method, text in remarks.items():
        if method in shown:
            shown_on.print(f"{method}: {text}")


def table(cells: Sequence[CompressorResult], title: str) -> Table:
    """Cells of one size."""
    first = cells[0]
    copies = [cell.copy for cell in cells if not cell.error]
    copy = f", one copy {1e3 * min(copies):.3g} ms" if copies else ""
    heading = f"{first.model}: {first.items:,} floats in {first.layers} layers; {title}{copy}"
    heads = ("method", *PARTS, "copies", "[p10 - p90]", "least", "ms", "state/d", "peak/d", "bytes")
    shown = columns(heads, left=("method",), gap=1, title=heading, title_justify="left")
    for cell in cells:
        if cell.error:
            shown.add_row(cell.method, "failed")
        else:
            shown.add_row(cell.method, *row(cell))
    return shown


def row(cell: CompressorResult) -> list[str]:
    """All columns but the name."""
    low, high = cell.spread
    parts = cell.copies
    return [
        *(f"{parts[part]:.2f}" if parts[part] >= LEAST_SHOWN else "" for part in PARTS),
        f"{cell.total:.2f}",
        f"[{low:.2f} - {high:.2f}]",
        f"{cell.least:.2f}",
        f"{1e3 * cell.total_seconds:.2f}",
        multiple_text(cell.multiple(cell.state_bytes)),
        multiple_text(cell.multiple(cell.peak_bytes)),
        f"{sum(cell.message_bytes) / cell.turns:,.0f}",
    ]


def multiple_text(multiple: float | None) -> str:
    """A multiple of the vector."""
    return "-" if multiple is None else f"{multiple:.2f}"


def _check(options: argparse.Namespace) -> None:
    least = {"workers": 1, "threads": 1, "repeats": 1, "warmup": 1}
    for name, limit in least.items():
        if getattr(options, name) < limit:
            raise UserError(f"--{name}: at least {limit}, got {getattr(options, name)}")
    if options.density is not None and not 0 < options.density <= 1:
        raise UserError(f"--density: lies in (0, 1], got {options.density}")
    if options.formats and options.compressors:
        raise UserError("--formats: measures wire formats, and --compressors compressors; name one of them")
    if options.formats and options.density is not None and not options.rivals:
        raise UserError("--density: is of compressors and of --rivals, and --formats measures wire formats")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device: there is no CUDA device here")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("bench compressors", __doc__)
    add: Callable[..., Any] = parser.add_argument
    add("--compressors", nargs="+", metavar="NAME[:KEY=VALUE...]", help="default: all, with their default options")
    add("--density", type=float, help="of all methods that have one (each method's own default)")
    sizes = ", ".join(f"{name} {entry[0]}" for name, entry in REAL.items())
    add("--formats", action="store_true", help=f"wire formats in place of compressors; sizes: {' '.join(OF_FORMATS)}")
    add("--sizes", nargs="+", metavar="SIZE", help=f"floats: {sizes} (all); or any number (4k)")
    add("--workers", type=int, default=4, help="ranks whose messages are decoded (%(default)s)")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--threads", type=int, default=1, help="of PyTorch (%(default)s)")
    add("--warmup", type=int, default=WARMUP, help="steps of each method that are left out (%(default)s)")
    add("--repeats", type=int, default=REPEATS, help="turns of each method (%(default)s)")
    add("--rivals", action=argparse.BooleanOptionalAction, help="PyTorch's hooks, the obvious ways (beside methods)")
    add("--json", type=Path, metavar="FILE", help="write a line of JSON for each method and size")
    add("--figures", type=Path, metavar="FOLDER", help="draw one figure for each size (bench plot-compressors)")
    add("--quiet", action="store_true", help="no progress")
    return parser
