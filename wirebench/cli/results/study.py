"""Studies, which are not installed: of papers and of questions, with their runs and reports; a checkout has them."""

import importlib
from collections.abc import Sequence
from pathlib import Path

from wirebench.errors import UserError
from wirebench.utils.package import TOP

PAPERS = TOP / "papers"


def main(arguments: Sequence[str]) -> int:
    """Hand the command line to the checkout's own command; UserError where the package is not in one."""
    if not (PAPERS / "cli.py").is_file():
        raise UserError("studies are not installed; in a checkout: git clone, pip install -e ., wirebench study")
    cli = importlib.import_module("papers.cli")
    found = Path(str(cli.__file__)).resolve().parent
    if found != PAPERS:
        raise UserError(f"another package papers comes first: {found}; start it from {TOP}")
    return int(cli.main(arguments))
