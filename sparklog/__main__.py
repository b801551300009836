"""`python -m sparklog`: the command line, where the console script is not on the PATH."""

from sparklog.cli.main import main

if __name__ == "__main__":
    main()
