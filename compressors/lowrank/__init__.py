"""Low-rank factors of the gradient, and the base of the methods that send them."""
