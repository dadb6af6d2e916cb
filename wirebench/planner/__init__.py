"""What a training step would take on a network that is not at hand: simulated schedules, compositions ranked.

May import everything below, and wirebench.traces.
"""
