"""Benchmarks of the suite's parts: all-reduces, compressors, the harness, the input pipeline; and their figures.

May import wirebench, the plugins and wirebench.compose.
"""
