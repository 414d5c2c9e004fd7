"""Imports specqd from PYTHONPATH, not from the editable install of the environment."""

import sys

sys.meta_path[:] = [
    finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"
]
