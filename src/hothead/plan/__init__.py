"""Which draft vocabulary pays on a machine: acceptance of every size, joined with measured times."""
