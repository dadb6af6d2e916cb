"""What there is to look at without running anything long: results, what goes with what, topologies.

May import wirebench, the plugins, wirebench.compose and the studies.
"""
