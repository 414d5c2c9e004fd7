"""`python -m specqd`: the command line, for whoever has no `specqd` on the path."""

import sys

from specqd.cli import main

if __name__ == "__main__":
    sys.exit(main())
