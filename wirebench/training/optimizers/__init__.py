"""Optimizers: `build` makes the one that a config names, `rates` has the learning-rate schedules, `muon` is one."""
