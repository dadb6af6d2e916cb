"""Verbs that measure, and show what was measured."""
