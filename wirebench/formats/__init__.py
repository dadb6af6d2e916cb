"""What other tools read: measured all-reduces as nccl-tests writes its own, runs as MLPerf's log.

May import errors, utils, record, costmodel, simulation and all below; the verbs write the files that users ask for.
"""
