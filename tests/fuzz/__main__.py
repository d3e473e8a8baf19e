"""`python -m tests.fuzz TARGET`: a target of tests/fuzz/targets.py under atheris, for a time.

What reaches new code joins tests/fuzz/corpus/TARGET; what breaks the target is kept in the present folder as `crash-...`.
"""

import argparse
import sys
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
INPUT_BYTES_MAX = 2048


def main() -> None:
    # Here and not at the top: atheris is not part of every installation, and instruments what is imported after it.
    import atheris

    with atheris.instrument_imports(include=["headrace.protocols", "headrace.gateway"]):
        from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument(
        "--corpus", type=Path, help="where to keep what is interesting; the project's by default"
    )
    options = parser.parse_args()
    kept = options.corpus or CORPUS / options.target
    flags = [
        f"-max_total_time={options.seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        "-timeout=5",
        "-print_final_stats=1",
    ]
    folders = dict.fromkeys([str(kept), str(CORPUS / options.target)])
    atheris.Setup([sys.argv[0], *flags, *folders], TARGETS[options.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
