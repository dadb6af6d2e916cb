"""Where the package is, and what is shipped in it."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
TOP = PACKAGE.parent
"""The folder that holds the package: a checkout, or where Python installs packages."""
CONFIGS = (PACKAGE / "configs").resolve()
"""Configs, traces and topologies; in a checkout a link to the folder at its root."""
