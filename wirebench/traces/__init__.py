"""Traces of models, layer by layer, from whatever is known of them: estimated, reconstructed, imported.

May import wirebench and the plugins.
"""
