"""Drivers of exchanges: who advances a compressor's generator, when, and on what.

May import collectives, telemetry and all below.
"""
