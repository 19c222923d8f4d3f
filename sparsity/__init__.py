"""Sparse training inside of any loop: Sparsifier, methods, distributions, schedules, and what a method costs."""
