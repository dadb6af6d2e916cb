"""Verbs about jobs: emulated clusters, what comes before a run, faults in it, and why it is slow."""
