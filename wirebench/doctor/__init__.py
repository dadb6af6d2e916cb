"""Before a run on several hosts: do they have the same code and versions, do they reach each other, how fast?

  agent.py    what runs on each host: it answers requests
  hosts.py    start it by ssh and ask it
  answers.py  which answers are odd
  facts.py    what a host knows of itself
  wire.py     time a connection
  group.py    time an all-reduce between all hosts
  visit.py    ask all hosts, let them time links and the all-reduce
  compare.py  what differs between hosts
  choices.py  which interface Gloo and NCCL take
  links.py    what is wrong with the links, and what it costs
  sums.py     what is normal for an all-reduce
  tables.py   the hosts' interfaces and the links' times

Imports up to wirebench.compose.
"""
