"""All studies' claims, tables and figures on one self-contained HTML page (wirebench study report --html).

It may import what the studies may, and the studies; only wirebench.cli imports it.
"""
