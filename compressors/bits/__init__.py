"""Few bits for each entry: fields, blocks, levels, signs, and casts."""
