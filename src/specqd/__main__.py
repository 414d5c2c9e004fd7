"""`python -m specqd`: the command line where `specqd` is not on the path."""

import sys

from specqd.cli import main

if __name__ == "__main__":
    sys.exit(main())
