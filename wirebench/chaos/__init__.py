"""Faults injected into an elastic job on an emulated cluster, and what they cost.

`faults` has a way to deliver each kind, `job` keeps a launcher on every host, `rank` is what they start, `trial` makes
one fault and measures, `campaign` makes many and goes on with them, `report` says what they show. Imports up to train.
"""
