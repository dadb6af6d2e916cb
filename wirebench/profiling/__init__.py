"""Calibration: what a run times before its counted steps (layers, exchanges), and the buckets that follow from it.

May import simulation and all below.
"""
