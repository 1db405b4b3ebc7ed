"""Programs on disk: a manifest (JSON) beside tensors (safetensors), checked by hash when read.

    program/            manifest.json, index.safetensors, parameters.safetensors     the model owner's copy
    bundles/public/     manifest.json, index.safetensors                             servers, dealer and clients
    bundles/party0/     manifest.json, shares.safetensors                            server 0 only
    bundles/party1/     manifest.json, shares.safetensors                            server 1 only

`index` holds the positions of the kept ReLUs and of rearranged elements. One party's shares are uniformly random
numbers; only both together give the parameters. Nothing is pickled; files are 0600 in folders of 0700.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as serialize_tensors

from autorep import private
from autorep.errors import CheckpointError
from autorep.program.ir import OP_TYPES, Activation, Op, Program
from autorep.program.shares import share_parameters
from autorep.settings import nearest

__all__ = [
    "PartyBundle",
    "load",
    "load_party",
    "load_public",
    "program_hash",
    "save",
    "share_parameters",
    "split",
]

FORMAT, VERSION = "autorep-program", 1
MANIFEST, INDEX, PARAMETERS, SHARES = (
    "manifest.json",
    "index.safetensors",
    "parameters.safetensors",
    "shares.safetensors",
)


@dataclass(frozen=True, eq=False)
class PartyBundle:
    """One server's secret part: shares (uint64) by parameter name, bound to one program."""

    party: int
    model_id: str
    program_hash: str
    shares: Mapping[str, np.ndarray] = field(repr=False)


def save(program: Program, directory: str | Path) -> None:
    """Write the model owner's copy, parameters included."""
    _write(
        Path(directory), _program_manifest(program, "owner"), {INDEX: _index(program), PARAMETERS: program.parameters}
    )


def load(directory: str | Path) -> Program:
    """Read the model owner's copy."""
    manifest, tensors = _read(Path(directory), "owner", (INDEX, PARAMETERS))
    program = _program(Path(directory), manifest, tensors[INDEX], tensors[PARAMETERS])
    expected = {f"{op.name}.{name}" for op in program.ops for name in op.parameter_names if _has(op)}
    if set(program.parameters) != expected:
        odd = sorted(expected.symmetric_difference(program.parameters))
        raise CheckpointError(f"{directory}: parameters and operations do not match: {', '.join(odd[:5])}")
    return program


def split(program: Program, directory: str | Path) -> None:
    """Write public/, party0/ and party1/ under `directory`, with fresh shares of all parameters."""
    if not program.parameters:
        raise CheckpointError("cannot split a program without parameters; load the model owner's copy")
    directory = Path(directory)
    _write(directory / "public", _program_manifest(program, "public"), {INDEX: _index(program)})
    digest = program_hash(program)
    for party, shares in enumerate(share_parameters(program)):
        manifest = {"role": f"party{party}", "model_id": program.model_id, "program_hash": digest}
        _write(directory / f"party{party}", manifest, {SHARES: shares})


def load_public(directory: str | Path) -> Program:
    """Read the part that servers, dealer and clients share: no parameters."""
    manifest, tensors = _read(Path(directory), "public", (INDEX,))
    return _program(Path(directory), manifest, tensors[INDEX], {})


def load_party(directory: str | Path, program: Program) -> PartyBundle:
    """Read one server's shares and check that they belong to `program` (its public copy suffices)."""
    directory = Path(directory)
    manifest, tensors = _read(directory, None, (SHARES,))
    role, digest = manifest.get("role"), program_hash(program)
    if role not in ("party0", "party1"):
        raise CheckpointError(f"{directory}: a {role!r} bundle where party0 or party1 is needed")
    if manifest.get("program_hash") != digest:
        raise CheckpointError(
            f"{directory}: these shares belong to program {str(manifest.get('program_hash'))[:16]}…, not to "
            f"{digest[:16]}…; take public/, party0/ and party1/ from the same `autorep compile`"
        )
    return PartyBundle(int(role[-1]), program.model_id, digest, tensors[SHARES])


def program_hash(program: Program) -> str:
    """SHA-256 (hex) of everything public: operations, index lists, information and model id."""
    digest = hashlib.sha256(_canonical(_public_part(program)))
    for name, index in sorted(_index(program).items()):
        digest.update(name.encode() + b"\0" + index.astype("<i8").tobytes())
    return digest.hexdigest()


def _has(op: Op) -> bool:
    return not isinstance(op, Activation) or op.quad_count > 0


def _index(program: Program) -> dict[str, np.ndarray]:
    return {op.name: getattr(op, op.index_name).astype(np.int64) for op in program.ops if op.index_name}


def _public_part(program: Program) -> dict[str, Any]:
    ops = []
    for op in program.ops:
        fields = {f.name: getattr(op, f.name) for f in dataclasses.fields(op) if f.name != op.index_name}
        ops.append({"type": type(op).__name__, **fields})
    return {"model_id": program.model_id, "ops": ops, "info": dict(program.info)}


def _program_manifest(program: Program, role: str) -> dict[str, Any]:
    return {"role": role, "program_hash": program_hash(program), **_public_part(program)}


def _canonical(value: Any) -> bytes:
    """One spelling per value, so that equal programs hash equally before and after a trip to disk."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _write(directory: Path, manifest: dict[str, Any], files: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    private.make_folder(directory)
    listed = {}
    for name, tensors in files.items():
        data = serialize_tensors({key: np.ascontiguousarray(value) for key, value in tensors.items()})
        listed[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        private.write(directory / name, data)
    document = {"format": FORMAT, "version": VERSION, **manifest, "files": listed}
    document["manifest_sha256"] = hashlib.sha256(_canonical(document)).hexdigest()
    private.write_text(directory / MANIFEST, json.dumps(document, indent=1) + "\n")


def _read(
    directory: Path, role: str | None, names: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]]]:
    """Manifest and tensors, every byte checked against the manifest's hashes."""
    manifest = _read_manifest(directory)
    if role is not None and manifest.get("role") != role:
        raise CheckpointError(
            f"{directory}: this is a {manifest.get('role')!r} directory where {role!r} is needed "
            "(`autorep compile` writes program/, public/, party0/ and party1/)"
        )
    tensors = {}
    for name in names:
        listed = manifest.get("files", {}).get(name)
        if listed is None:
            raise CheckpointError(f"{directory / MANIFEST}: does not list {name}")
        try:
            data = (directory / name).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{directory / name}: cannot be read: {error}") from error
        if len(data) != listed["bytes"]:
            raise CheckpointError(
                f"{directory / name}: {len(data)} bytes where the manifest says {listed['bytes']}; copy it again"
            )
        if hashlib.sha256(data).hexdigest() != listed["sha256"]:
            raise CheckpointError(f"{directory / name}: altered since it was written (SHA-256 differs); copy it again")
        try:
            tensors[name] = parse_tensors(data)
        except SafetensorError as error:
            raise CheckpointError(f"{directory / name}: not a safetensors file: {error}") from error
    return manifest, tensors


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; give a directory that `autorep compile` wrote") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: not a readable manifest: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not an {FORMAT} manifest")
    if manifest.get("version") != VERSION:
        raise CheckpointError(f"{path}: format version {manifest.get('version')}, this release reads {VERSION}")
    stated = manifest.pop("manifest_sha256", None)
    if hashlib.sha256(_canonical(manifest)).hexdigest() != stated:
        raise CheckpointError(f"{path}: altered since it was written (SHA-256 differs); copy it again")
    return manifest


def _program(
    directory: Path, manifest: dict[str, Any], index: dict[str, np.ndarray], parameters: Mapping[str, np.ndarray]
) -> Program:
    ops = tuple(_op(directory, dict(fields), index) for fields in manifest["ops"])
    program = Program(ops, parameters, manifest["model_id"], manifest["info"])
    if program_hash(program) != manifest["program_hash"]:
        raise CheckpointError(f"{directory}: index lists and manifest belong to different programs; copy both again")
    return program


def _op(directory: Path, fields: dict[str, Any], index: dict[str, np.ndarray]) -> Op:
    kind = fields.pop("type")
    if kind not in OP_TYPES:
        raise CheckpointError(f"{directory}: unknown operation {kind!r}; {nearest(kind, list(OP_TYPES))}")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    index_name = OP_TYPES[kind].index_name
    if index_name:
        if fields["name"] not in index:
            raise CheckpointError(f"{directory}: no index list for {kind} {fields['name']!r}")
        values[index_name] = index[fields["name"]]
    try:
        return OP_TYPES[kind](**values)
    except TypeError as error:
        raise CheckpointError(f"{directory}: operation {fields.get('name')!r} has wrong fields: {error}") from error
