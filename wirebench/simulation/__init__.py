"""A training step on paper: computation, messages, traces of models.

May import costmodel and all below.
"""
