"""The command `wirebench`: one module per verb.

May import everything below; nothing imports it but the command itself.
"""
