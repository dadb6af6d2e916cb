"""What collectives share: rounds within a group of ranks, and FlexReduce's planner.

May import the plans' base and wirebench.topology.
"""
