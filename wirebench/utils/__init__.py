"""Helpers that every part uses and that know nothing of gradients: seeds, files, Markdown, figures, command lines.

It may import wirebench.errors and nothing else of the suite.
"""
