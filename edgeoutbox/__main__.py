"""`python -m edgeoutbox` is the command line."""

from edgeoutbox.cli import main

if __name__ == "__main__":
    main()
