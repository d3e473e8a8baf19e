"""`python -m headrace` and the `headrace` command."""

import sys

from headrace.cli.main import main


def run() -> None:
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
