"""Fit the cost model to measured all-reduces, and write a topology file that predictions are made from.

  wirebench fit CELLS.jsonl --out topology.toml              fit
  wirebench fit OTHER.jsonl --judge topology.toml            how well a file predicts other cells

CELLS is what wirebench bench collectives --json wrote, of one layout. Start-up time (alpha) and rate (1 / beta) are
fitted per level of the topology, the cost of adding (gamma) once; lines are broken where one line does not fit.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from suite.bench.fit_network import fitted, judged, load, show
from wirebench.topology import ascii, topology_file
from wirebench.utils.cli import parser_of


def main(arguments: Sequence[str]) -> int:
    """Fit or judge."""
    options = _parse(arguments)
    measured = load(options.cells)
    if options.judge:
        show(judged(options.judge, measured), measured)
        return 0
    fit = fitted(measured)
    show(fit, measured)
    print(ascii.draw(fit.topology))
    if fit.unseen:
        print(f"too fast to be seen in these cells: {', '.join(fit.unseen)}; levels count from the machines up")
    if options.out:
        note = f"fitted by wirebench fit to {', '.join(path.name for path in options.cells)}"
        topology_file.save(fit.topology, options.out, note, fit=fit.numbers)
        print(f"written to {options.out}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of("fit", __doc__)
    parser.add_argument("cells", nargs="+", type=Path, help="files of wirebench bench collectives --json")
    parser.add_argument("--out", help="write the topology to this file")
    parser.add_argument("--judge", help="do not fit: compare this topology file with the cells")
    options = parser.parse_args(arguments)
    if options.judge and options.out:
        parser.error("--judge fits nothing that --out could write")
    return options
