"""`python -m magnitude_tune` is the console script."""

from magnitude_tune.cli.start import main

if __name__ == "__main__":
    main()
