"""The parts of the results page, a subject a module."""
