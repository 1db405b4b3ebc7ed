"""Programs as servers and dealer hold them: read from a bundle directory, or sent to the dealer as one archive."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autorep.errors import CheckpointError
from autorep.program.files import load_party, load_public, program_hash
from autorep.program.ir import Program

MODEL_LIMIT = 1 << 30


@dataclass(frozen=True)
class ServedModel:
    """A program at one server: `directory` holds public/ and this party's own folder."""

    directory: Path
    index: int
    program: Program
    hash: str

    @classmethod
    def load(cls, directory: Path, index: int) -> ServedModel:
        """Read and check both parts of a bundle directory."""
        program = load_public(directory / "public")
        model = cls(directory, index, program, program_hash(program))
        model.shares()
        return model

    def shares(self) -> Mapping[str, np.ndarray]:
        """This party's shares of the parameters, read afresh."""
        folder = self.directory / f"party{self.index}"
        bundle = load_party(folder, self.program)
        if bundle.party != self.index:
            raise CheckpointError(f"{folder}: holds the shares of party {bundle.party}, not of party {self.index}")
        return bundle.shares

    def archive(self) -> bytes:
        """The public part as one archive, for the dealer."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted((self.directory / "public").iterdir()):
                archive.write(path, path.name)
        return buffer.getvalue()


def find_bundles(places: Iterable[Path]) -> list[Path]:
    """The bundle directories named, and those inside the folders named."""
    found: list[Path] = []
    for place in places:
        if (place / "public").is_dir() or not place.is_dir():
            found.append(place)
        else:
            found += sorted(entry for entry in place.iterdir() if (entry / "public").is_dir())
    return found


def unpack_program(data: bytes) -> Program:
    """The program in an archive made by `ServedModel.archive`."""
    try:
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MODEL_LIMIT:
                raise CheckpointError(f"program archive: larger than {MODEL_LIMIT} bytes when unpacked")
            for entry in archive.infolist():
                name = Path(entry.filename).name  # nothing outside the folder
                (Path(folder) / name).write_bytes(archive.read(entry))
            return load_public(folder)
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"program archive: {error}; send it again") from None
