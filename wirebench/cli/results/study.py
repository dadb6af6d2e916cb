"""Studies, which are not installed: of papers and of questions, with their runs and reports; a checkout has them."""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from wirebench.errors import UserError
from wirebench.utils.package import TOP

PAPERS = TOP / "papers"


def main(arguments: Sequence[str]) -> int:
    """Hand the command line to the checkout's own command; UserError where the package is not in one."""
    if not (PAPERS / "cli.py").is_file():
        raise UserError("studies are not installed; in a checkout: git clone, pip install -e ., wirebench study")
    spec = importlib.util.find_spec("papers")
    if spec is None or spec.origin is None or Path(spec.origin).resolve().parent != PAPERS:
        raise UserError(f"another papers comes first: {spec and spec.origin}; start it from {TOP}")
    return int(importlib.import_module("papers.cli").main(arguments))
