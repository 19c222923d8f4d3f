"""Units of time, size and count, as people type them."""

UNITS = {
    "": 1.0,
    **{"%": 1.0},
    **{"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0},
    **{"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3},
    **{"K": 1e3, "M": 1e6, "G": 1e9},
}
