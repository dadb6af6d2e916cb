"""The trainer: its state, steps, checkpoints, guards and summary.

The top of the machinery: may import all of wirebench.
"""
