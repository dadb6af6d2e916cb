"""Say why a run is not faster: where its step goes, what is wrong, and what would help most.

wirebench diagnose results/runs/A
wirebench diagnose --link 1gbit results/runs/A
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from suite.diagnose import causes, evidence, render
from wirebench.topology.rates import parse_rate
from wirebench.utils.cli import parser_of


def main(arguments: Sequence[str]) -> int:
    """Look into the run that the command line names; 0 whatever is found."""
    options = _parser().parse_args(arguments)
    nominal = parse_rate(options.link) / 8 if options.link else None
    known = evidence.read(options.run)
    nominal = nominal or render.nominal_of(known)
    found = causes.findings(known, nominal)
    if options.json:
        print(json.dumps(render.as_json(known, found, nominal), indent=1))
    else:
        for line in render.lines(known, found, nominal):
            print(line)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("diagnose", __doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or a record.json")
    parser.add_argument("--link", metavar="RATE", help="what the network should carry, e.g. 1gbit")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser
