"""hothead: a small, hot draft vocabulary for speculative decoding."""
