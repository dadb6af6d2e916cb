"""Running plans on a communicator: the executor of requests, a rank's program, segments, merges and routes.

May import the plans' base and wirebench.comm.
"""
