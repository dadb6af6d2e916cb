"""What a run leaves: writing, reading, comparing records and benchmark results.

May import telemetry and all below it.
"""
