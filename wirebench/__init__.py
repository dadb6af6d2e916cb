"""Wirebench: what data-parallel training puts on the wire, composed, measured and explained."""

__version__ = "0.1.0"
