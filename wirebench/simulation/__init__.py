"""A simulated training step: computation from traces of models, messages from the cost model.

May import costmodel and all below.
"""
