"""Plugins of a user's own, found through PYTHONPATH: small, and able to fail on demand."""
