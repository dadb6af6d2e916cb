"""Studies: a paper's or a question's claims, the runs that put them to the test, and the report that judges them.

Each folder is one and is found by its published.toml: that, run.py and report.py are all it needs (study.py says what
they hold). The modules beside the folders are what all studies share. May import everything of the suite but its cli.
"""
