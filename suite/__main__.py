"""The command `wirebench`, where it is not installed: python -m suite VERB ..."""

import sys

from suite.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
