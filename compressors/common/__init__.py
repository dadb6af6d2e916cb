"""What compressors of every family share: error feedback, and the wrappers that `build` puts around them.

May import wirebench.
"""
