"""Verbs that answer without a run: traces, networks, simulated steps, advice, what goes with what."""
