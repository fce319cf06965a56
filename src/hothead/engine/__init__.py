"""The embedded engine: draft, verify, commit; one sequence, one process."""
