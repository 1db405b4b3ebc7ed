"""Files and folders that only this user can read: 0600 in 0700, whatever the umask says."""

from __future__ import annotations

import os
from pathlib import Path


def make_folder(path: Path) -> Path:
    """Create a folder and its missing parents with mode 0700; existing ones keep theirs."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    return path


def opener(path: str, flags: int) -> int:
    """For `open(..., opener=opener)`: a file that is created gets mode 0600."""
    return os.open(path, flags, 0o600)


def write(path: Path, data: bytes) -> None:
    """Write a whole file durably: after a crash it holds the old content or the new one."""
    make_folder(path.parent)
    draft = path.with_name(path.name + ".new")
    try:
        with open(draft, "wb", opener=opener) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """The same for text."""
    write(path, text.encode())


def shred(path: Path) -> None:
    """Overwrite a file, durably, and remove it; nothing happens if there is none.

    Disks that write elsewhere than where they read (flash, copy on write) may still hold the old blocks.
    """
    try:
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            for start in range(0, size, 1 << 20):
                file.write(bytes(min(1 << 20, size - start)))
            file.flush()
            os.fdatasync(file.fileno())
    except FileNotFoundError:
        return
    path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
