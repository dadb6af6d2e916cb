"""What `wirebench torchrun -m MODULE ...` runs by its path: the module, as `python -m MODULE ...` would."""

import runpy
import sys

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
