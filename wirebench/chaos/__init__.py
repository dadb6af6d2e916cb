"""Faults injected into an elastic job on an emulated cluster, and what they cost.

`faults` delivers each kind of fault. `job` keeps a launcher on every host, and the launchers start `rank`. `trial`
injects one fault and measures its cost; `campaign` runs many trials and resumes a series; `report` summarises them.
Imports up to train.
"""
