"""Before a run on several hosts: do they have the same code and versions, do they reach each other, how fast?

`agent` is what runs on each host, `hosts` starts it by ssh and asks it, `facts` is what a host knows of itself, `wire`
times a connection, `compare` finds what differs and names the mend. Imports up to wirebench.compose.
"""
