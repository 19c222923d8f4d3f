"""The command line. Commands load lazily; only `_render` imports rich."""
