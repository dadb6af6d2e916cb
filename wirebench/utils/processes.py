"""This process, as the system knows it."""

import time

import psutil


def age() -> float:
    """Seconds since this process was started, or forked."""
    return max(0.0, time.time() - float(psutil.Process().create_time()))
