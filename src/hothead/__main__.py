"""``python -m hothead``."""

from hothead.cli.main import run

run()
