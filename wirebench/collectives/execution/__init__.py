"""Running a plan on a communicator: a rank's program, segments, merges, routes, and who answers requests.

May import the plans' base and wirebench.comm.
"""
