"""`python -m photinus` is the command `photinus`."""

from photinus.cli.main import main

if __name__ == "__main__":
    main()
