"""Draw a topology, and price collectives on it.

wirebench topology "(2+2)+(3+1)"
wirebench topology 2+3_1gbit.toml --figure topology.png
wirebench topology 8x_10gbe_gtx1080ti.toml --collective ring flexreduce --items 11000000
wirebench topology 2+3 --collective ring flexreduce --items 1000000 --chakra plans
wirebench topology 4+4 --collective ring one_hop hierarchical --wire int8 --wire-within bf16
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from wirebench import collectives
from wirebench.compressors.bits.coded import code_of
from wirebench.errors import UserError
from wirebench.formats import chakra
from wirebench.inspect.topology import chakra_traces, price_row, show
from wirebench.topology.topology_file import describe
from wirebench.utils.cli import naming, parser_of


def main(arguments: Sequence[str]) -> int:
    """Draw and price what the command line names."""
    options = _parser().parse_args(arguments)
    described = describe(options.topology)
    between, within = code_of(options.wire, "--wire"), code_of(options.wire_within, "--wire-within")
    if between and not options.collective:
        raise UserError("--wire: is the format of a collective's messages; name some with --collective")
    with naming({"collective.name": "--collective"}):
        built = {
            name: collectives.formatted(collectives.build(name), between, within)
            for name in dict.fromkeys(options.collective)
        }
    traces = chakra_traces(options.chakra, built, described.topology, options.items) if options.chakra else {}
    rows = [price_row(name, collective, described.topology, options.items) for name, collective in built.items()]
    if options.figure:
        from wirebench.inspect import tree  # only here: charts take most of a second to import

        tree.write(described.topology, options.figure, described.note)
    for name, of_ranks in traces.items():
        about = {"collective": name, "topology": described.topology.layout, "items": str(options.items)}
        chakra.save(options.chakra, name, of_ranks, about)
    show(described, rows, options.items)
    if options.chakra:
        print(f"{options.chakra}: written")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("topology", __doc__)
    parser.add_argument(
        "topology",
        metavar="TOPOLOGY",
        help='a layout such as "2+3", a .toml file, or the name of a shipped one (docs/topology.md)',
    )
    parser.add_argument("--figure", type=Path, metavar="FILE", help="also draw it into this .png, .svg or .pdf")
    parser.add_argument(
        "--collective",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"price these on it: {', '.join(collectives.available())}",
    )
    parser.add_argument("--wire", default="", metavar="FORMAT", help="of their messages, as in docs/sums.md (fp32)")
    parser.add_argument("--wire-within", default="", metavar="FORMAT", help="within machines (as --wire)")
    parser.add_argument(
        "--chakra", type=Path, metavar="FOLDER", help="write their plans as Chakra traces, one for each rank"
    )
    parser.add_argument("--items", type=_count, default=11_000_000, metavar="N", help="fp32 items to sum (%(default)s)")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"needs a whole number of at least 1, got {text!r}")
    return int(text)
