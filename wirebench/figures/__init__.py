"""Figures: one look, one table of colours, and the few builders that every figure of a study or a tool is made of.

A figure is an Altair chart. May import wirebench.errors and wirebench.utils alone: it is told what to draw.
"""
