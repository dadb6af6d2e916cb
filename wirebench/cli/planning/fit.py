"""Fit the cost model to measured all-reduces, and write a topology file that predictions are made from.

  wirebench fit CELLS.jsonl --out topology.toml              fit
  wirebench fit CELLS.jsonl --runs FOLDER --out topology.toml   with what messages cost the machine's processors
  wirebench fit OTHER.jsonl --judge topology.toml            how well a file predicts other cells

CELLS is what wirebench bench collectives --json wrote, of one layout; cells in wire formats are left out. Start-up time
(alpha) and rate (1 / beta) are fitted per level of the topology, the cost of adding (gamma) once; lines are broken
where one line does not fit. FOLDER has runs of `wirebench study planner run`: once per machine, their steps show what a
request, a message and its bytes cost the cores that play all hosts, which compressors share (docs/topology.md).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from wirebench.bench.fit_network import fitted, judged, load, show
from wirebench.planner.resimulated import fit as fit_processor
from wirebench.planner.resimulated import rates_of, replayed
from wirebench.topology import ascii, processor, topology_file
from wirebench.topology.processor import IDLE
from wirebench.utils.cli import check_outputs, parser_of


def main(arguments: Sequence[str]) -> int:
    """Fit or judge."""
    options = _parse(arguments)
    check_outputs(out=options.out, reads=options.cells)
    measured = load(options.cells)
    if options.judge:
        show(judged(options.judge, measured), measured)
        return 0
    machine = IDLE
    if options.runs:
        machine = fit_processor(list(replayed(options.runs, "--runs", rates_of(options.runs)).values()))
        print(f"processor: {', '.join(f'{key} {value:.3g}' for key, value in processor.written(machine).items())}")
    fit = fitted(measured, machine)
    show(fit, measured)
    planned = sum(cell.segments > 0 for cell in measured)
    if fit.constants >= planned:
        print(f"{fit.constants} constants were fitted to {planned} cells of plans, so that small errors say nothing of "
              "other sizes: measure more sizes or collectives")  # fmt: skip
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
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the topology to this file")
    parser.add_argument("--judge", help="do not fit: compare this topology file with the cells")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="runs that show what messages cost processors")
    options = parser.parse_args(arguments)
    if options.judge and options.out:
        parser.error("--judge fits nothing that --out could write")
    if options.judge and options.runs:
        parser.error("--judge fits nothing that --runs could show")
    return options
