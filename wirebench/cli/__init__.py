"""The command `wirebench`: one module per verb, in `jobs`, `planning` and `results`.

May import everything below; nothing imports it but the command itself.
"""
