"""The site of docs, claims, tables and charts (make site), and what `wirebench study report --docs` writes.

It may import what the studies may, and the studies; only papers.cli imports it, and MkDocs runs its hooks.
"""
