"""What a run is asked to do: sections, files, checks, plugins by name.

May import wirebench.utils and wirebench.errors.
"""
