"""Figures: one look, one table of colours, and the few builders that every figure of a study or a tool is made of.

A figure is an Altair chart. May import only wirebench.errors and wirebench.utils: callers pass all data.
"""
