"""Sparse training: the loop, the sparsifier, and the pure functions it is made of."""
