"""train.py, with one more override on rank 1: python one_differs.py OVERRIDE CONFIG [OVERRIDE ...]."""

import sys

from wirebench.comm.launch import end_process, launched
from wirebench.compose import run as train

if __name__ == "__main__":
    extra, *arguments = sys.argv[1:]
    end_process(train.main(arguments + [extra] * (launched().rank == 1)))
