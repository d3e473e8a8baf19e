"""`headrace COMMAND`: finds the command, turns errors into one clear line and an exit status."""

import argparse
import importlib
import os
import sys

import headrace
from headrace.core.errors import ConfigError, HeadraceError

DONE, FAILED, OPERATOR_MUST_ACT, INTERRUPTED = 0, 1, 2, 130


# The modules of cli/ in the order of `headrace --help`, each with the commands that it adds.
COMMANDS = {
    "up": ("up",),
    "status": ("status",),
    "deploy": ("plan", "apply", "rollback"),
    "deployments": ("deployments",),
    "rollout": ("rollout",),
    "decisions": ("decisions",),
    "tenants": ("tenants",),
    "keys": ("keys",),
    "admins": ("admins",),
    "audit": ("audit",),
    "prices": ("prices",),
    "usage": ("usage",),
    "invoice": ("invoice", "adjust"),
    "reconcile": ("reconcile",),
    "models": ("models",),
    "contract": ("contract", "openapi"),
    "evaluate": ("eval",),
    "workload": ("workload",),
    "replay": ("replay",),
    "measure": ("measure",),
    "slo": ("slo",),
    "capacity": ("capacity",),
    "simulate": ("simulate",),
    "experiment": ("experiment",),
    "load": ("load",),
    "drill": ("drill",),
    "certify": ("certify",),
    "reload": ("reload",),
    "db": ("db",),
    "engine": ("engine",),
}


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The whole command line; docs/reference/cli.md is checked against it. With the name of a command, that command alone:
    who runs one needn't wait until what all of them need was imported."""
    root = argparse.ArgumentParser(
        prog="headrace",
        description="An inference provider in a box.",
        epilog="example: headrace up --port 8000\n         headrace keys create --tenant demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"headrace {headrace.__version__}")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = [module for module, added in COMMANDS.items() if command in added]
    for module in asked or (() if command == "--version" else COMMANDS):
        importlib.import_module(f"headrace.cli.{module}").add(commands)
    return root


def main(argv: list[str]) -> int:
    """Runs one command; returns 0 done, 1 failed, 2 the operator must change something, 130 interrupted."""
    if not argv:  # who types the name alone wants to know what there is
        parser().print_help(sys.stderr)
        return OPERATOR_MUST_ACT
    arguments = parser(argv[0]).parse_args(argv)
    try:
        status = int(arguments.run(arguments) or DONE)
        print(end="", flush=True)  # what can't be written is told here, not by the interpreter on its way out
        return status
    except ConfigError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return OPERATOR_MUST_ACT
    except HeadraceError as error:
        print(f"headrace: {error.message}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        _settle_output()  # the reader of a pipe has enough (`headrace usage | head`)
        return DONE
    except OSError as error:
        # A full disk, a file that isn't ours: the system's own words are the best there are.
        where = f"{error.filename}: " if error.filename else ""
        print(f"headrace: {where}{error.strerror or error}", file=sys.stderr)
        _settle_output()
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _settle_output() -> None:
    """Drops what can't be written: the interpreter would try once more on its way out, and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
