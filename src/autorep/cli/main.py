"""The console command `autorep`: one table of sub-commands, each loaded only when asked for."""

from __future__ import annotations

import errno
import importlib
import os
import select
import sys
from collections.abc import Sequence

from autorep.errors import AutorepError, ConfigError
from autorep.lazy import missing
from autorep.settings import nearest, parse

# name -> (module, settings class with a `run` method, one line of help)
Commands = dict[str, tuple[str, str, str]]
GROUPS: dict[str, Commands] = {
    "try it": {
        "demo": ("autorep.cli.demo", "Demo", "the whole chain on embedded digits: train, replace, compile, serve, ask"),
        "zoo": ("autorep.cli.predict", "Zoo", "list the finished models that ship with the package"),
        "predict": ("autorep.cli.predict", "Predict", "classify images privately"),
    },
    "make a model ready": {
        "check": ("autorep.cli.compile", "Check", "list every operation the compiler cannot translate"),
        "count": ("autorep.cli.train", "Count", "count a network's ReLUs, site by site"),
        "cost": ("autorep.cli.compile", "Cost", "rounds, bytes and latency before any run"),
        "train": ("autorep.cli.train", "Train", "train an all-ReLU baseline"),
        "replace": ("autorep.cli.train", "Replace", "replace ReLUs down to a budget and fine-tune"),
        "evaluate": ("autorep.cli.train", "Evaluate", "accuracy of a saved model, and images that leave its range"),
        "report": ("autorep.cli.report", "Report", "one self-contained HTML file from runs and benchmarks"),
        "experiment": ("autorep.cli.experiment", "Experiment", "run a grid of replacements and check what it claims"),
    },
    "compile it": {
        "compile": ("autorep.cli.compile", "Compile", "make a trained model a fixed-point program and split it"),
        "calibrate": ("autorep.cli.compile", "Calibrate", "store a model's ranges: it then compiles without data"),
        "compare": ("autorep.cli.compile", "Compare", "per-layer difference between float, fixed and secure"),
    },
    "serve it": {
        "serve": ("autorep.cli.local", "", "run one of the two servers, or with --local all roles here"),
        "keys": ("autorep.cli.keys", "", "certificates of the roles and tokens of clients"),
        "dealer": ("autorep.cli.serve", "Dealer", "serve correlated randomness to server pairs"),
        "prepare": ("autorep.cli.serve", "Prepare", "write correlated randomness for two parties to disk"),
        "import": ("autorep.cli.serve", "Import", "move prepared kits into a server's store"),
        "ping": ("autorep.cli.serve", "Ping", "check every link and say what is wrong"),
    },
    "measure": {
        "bench": ("autorep.cli.bench", "", "pi, cost, peers, kernels, train, growth, depth, serve, and more"),
    },
}
COMMANDS: Commands = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def usage(title: str, groups: dict[str, Commands], prog: str) -> str:
    """Help text of a command table."""
    width = max(len(name) for commands in groups.values() for name in commands)
    lines = [title, "", f"usage: {prog} COMMAND [OPTIONS]"]
    for heading, commands in groups.items():
        lines += ["", f"{heading}:", *(f"  {name:<{width}}  {text}" for name, (_, _, text) in commands.items())]
    return "\n".join([*lines, "", f"{prog} COMMAND --help explains one command."])


def dispatch(title: str, groups: dict[str, Commands], prog: str, arguments: Sequence[str]) -> int:
    """Run the command named by the first argument; its module is imported only now."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(title, groups, prog))
        return 0 if arguments else 2
    commands = {name: entry for group in groups.values() for name, entry in group.items()}
    name, rest = arguments[0], arguments[1:]
    if name not in commands:
        raise ConfigError(f"unknown command {name!r}; {nearest(name, list(commands))}")
    module_name, class_name, _ = commands[name]
    module = importlib.import_module(module_name)
    if not class_name:  # a command with sub-commands of its own
        return module.main(f"{prog} {name}", rest)
    return parse(getattr(module, class_name), rest, f"{prog} {name}").run() or 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: 0 on success, 1 when a check failed, 2 on a clear error, 130 when interrupted.

    141 when whoever read the output went away, as after `| head`.
    """
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _nobody_reads():
            raise  # it was another pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere, silently
        return 141


def _nobody_reads() -> bool:
    """Whether the other end of standard output was closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _run(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in ("--version", "-V", "version"):
        from autorep import __version__

        print(f"autorep {__version__}")
        return 0
    try:
        title = (
            "AutoReP: two servers classify a picture, and neither sees the picture, the weights or the answer.\n"
            "New here? `autorep demo` shows it all; docs/tutorials/own-model.md is for a model of your own."
        )
        return dispatch(title, GROUPS, "autorep", arguments)
    except AutorepError as error:
        print(f"autorep: error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (text := missing(error, f"autorep {arguments[0]}")) == str(error):
            raise
        print(f"autorep: error: {text}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise  # not about a file that the user named
        place = "" if error.filename is None else f"{error.filename}: "
        print(f"autorep: error: {place}{error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("autorep: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
