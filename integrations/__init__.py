"""Sparse training in the loops of other packages, and loggers for our own; each is an optional extra."""
