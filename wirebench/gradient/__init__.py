"""The gradient and what an exchange of it is made of: nearly all that a plugin's author imports.

flat (layout, buckets), requests, context, contract (compressor, scheduler), memories, metrics.
May import utils and config.
"""
