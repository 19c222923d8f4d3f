"""Verbs: recipes, run folders and the stages that turn one artifact into the next."""
