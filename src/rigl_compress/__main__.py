"""`python -m rigl_compress`, which torchrun starts."""

from rigl_compress.cli.main import main

if __name__ == "__main__":
    main()
