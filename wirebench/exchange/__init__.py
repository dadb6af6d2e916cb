"""Drivers of exchanges: they advance compressors' generators, in threads or in lockstep, and check what comes out.

May import collectives, telemetry and all below.
"""
