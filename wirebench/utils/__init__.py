"""What every part uses and that knows no gradient: seeds, files, Markdown, figures, command lines.

It may import wirebench.errors and nothing else of the suite.
"""
