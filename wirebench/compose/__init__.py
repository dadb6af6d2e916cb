"""A run put together from a config: resolve what was left open, build, connect, time virtual workers.

May import the machinery and the plugins.
"""
