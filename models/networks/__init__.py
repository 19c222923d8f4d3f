"""Networks by family: one file each, registered by a decorator."""
