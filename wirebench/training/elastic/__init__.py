"""Going on in another world: commits in the memory of hosts."""
