"""Optimizers: `build` makes the one that a config names, `rates` says how fast it learns, `muon` is one of them."""
