"""The exchange in a training loop of the user's own: `synchronise`, a hook for DistributedDataParallel, `profile`.

Objects go in, no names and no config. It imports the machinery up to `profiling`, and no plugin folder.
"""
