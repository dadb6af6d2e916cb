"""Measurements of parts of the suite itself: all-reduces, compressors, the trunk, the input pipeline; their figures.

May import wirebench, the plugins and wirebench.compose.
"""
