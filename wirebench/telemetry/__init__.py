"""What a run measures of itself: time, steps, bytes, the network interface, the GPU, the environment.

May import collectives and all below.
"""
