"""Exact acceptance of any draft vocabulary, replayed on the target's own paths; see ``law`` for the formula."""
