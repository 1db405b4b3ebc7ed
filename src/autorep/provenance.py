"""Where a figure comes from: machine, commit, versions, date and command of this very process."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PACKAGES = ("autorep", "torch", "numpy", "cryptography")


def provenance(command: str | None = None) -> dict[str, Any]:
    """Machine, commit, versions, date and command of this very process."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command or own_command(),
        "commit": commit(Path(__file__).parent),
        "machine": machine(),
        "versions": versions(),
    }


def own_command() -> str:
    """The command line, without the folder of the interpreter's scripts."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])


def machine() -> dict[str, Any]:
    """What the processor is called, its cores and the instruction set that the kernels use."""
    from autorep import _native

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "simd": _native.simd(),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": round(os.getloadavg()[0], 2),  # what else ran, as far as it can be told
        "niceness": os.nice(0),
    }


def versions() -> dict[str, str]:
    """Python and the packages that matter for speed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit(folder: Path | None = None) -> str:
    """The checkout's commit, with `+` when files differ from it; empty outside a checkout."""
    head = _git(["rev-parse", "HEAD"], folder)
    changed = _git(["status", "--porcelain", "--untracked-files=no"], folder)
    return head + ("+" if changed else "")


def _git(arguments: Sequence[str], folder: Path | None) -> str:
    try:
        run = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""


def _processor() -> str:
    """The model name, and family and model numbers, since virtual machines hide the name."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
    except OSError:
        return platform.processor() or platform.machine()
    name = fields.get("model name", platform.machine())
    return f"{name} (family {fields['cpu family']}, model {fields['model']})" if "model" in fields else name
