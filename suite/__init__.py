"""What is made of machinery and plugins together: composing, planning, measuring, studying, showing, the command.

The only package that may import both wirebench and the plugin folders; only train.py and tests import it.
"""
