"""Talking: the command line. Commands load lazily; only `_render` knows rich."""
