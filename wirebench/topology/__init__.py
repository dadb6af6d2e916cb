"""Where ranks are: trees of hosts and switches with their links, as files, text, presets and rates.

May import utils and config.
"""
