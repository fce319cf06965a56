"""Measuring: prompt sets, result records, statistics, and the runs that make them."""
