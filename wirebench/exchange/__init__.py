"""Drivers of exchanges: they advance compressors' generators, in threads or in lockstep, and check the results.

May import collectives, telemetry and all below.
"""
