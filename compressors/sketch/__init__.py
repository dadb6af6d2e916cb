"""Count-Sketches: hashes, tables, heavy hitters, and the base of the methods that send them."""
