"""Emulated clusters on one machine: hosts are network namespaces, links are shaped, and the kernel cleans up.

A cluster is the first process of a process-number (PID) namespace; a job in it is the first process of another one
below. When such a process ends, however it ends, the kernel kills all processes inside. With the last process the
network namespaces and their interfaces are gone.

  plan.py        what is to be built: hosts, switches, cables
  namespaces.py  whether namespaces can be made here, and the commands that make and enter them
  network.py     build the plan with ip and tc
  switch.py      the first process of a cluster: builds the network and keeps it
  launcher.py    start a cluster, find its hosts, run a job in it
  ranks.py       the environment variables of each rank
  job.py         the first process of a job: starts the ranks, passes on what they print, ends them
  supervisor.py  how a job ends: a rank's failure, the user's signals, the end of the user's command
  signals.py     signals to the user's command, passed on to a job
  state.py       clusters with a name, which outlive the command that made them
  traffic.py     what the links carried, as tables

May import topology and all below.
"""
