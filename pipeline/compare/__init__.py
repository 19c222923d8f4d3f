"""Comparisons: many runs under one protocol, and the table of them."""
