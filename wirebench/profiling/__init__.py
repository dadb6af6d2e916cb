"""What a run times before it counts: layers, messages, and the cut that follows.

May import simulation and all below.
"""
