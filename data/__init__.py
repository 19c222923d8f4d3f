"""Data sets: one file each, and where their files come from."""
