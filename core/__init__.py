"""The foundation: errors, registries, import by name, trust, atomic files. It imports no other part of the package."""
