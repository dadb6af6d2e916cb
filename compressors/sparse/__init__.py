"""A few entries of the gradient: selection, thresholds, encodings, and the base of the methods that send them."""
