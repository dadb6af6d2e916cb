"""What plans are made of: groups of ranks, and FlexReduce's calls.

May import the plans' base and wirebench.topology.
"""
