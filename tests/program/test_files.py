"""Programs on disk: round trips, shares, and every kind of damage refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from autorep.compiler.compile import compile_program
from autorep.errors import CheckpointError
from autorep.modes import Program
from autorep.program.files import load, load_party, load_public, program_hash, save, split
from autorep.program.ir import Activation
from tests.program.networks import Network, images, mask_


@pytest.fixture(scope="module")
def program() -> Program:
    network = Network(["conv", "residual", "gate"])
    mask_(network, (0.3, 0.0, 1.0))
    return compile_program(network, images(8), class_names=list("abcde"))


def flip_byte(path: Path, position: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def test_saved_program_is_the_same_program(program, tmp_path):
    save(program, tmp_path)
    loaded = Program.load(tmp_path)
    assert program_hash(loaded) == program_hash(program)
    assert loaded.info["class_names"] == list("abcde")
    x = images(3).numpy()
    np.testing.assert_array_equal(loaded.run(x, "fixed"), program.run(x, "fixed"))
    for ours, theirs in zip(program.ops, loaded.ops):
        if isinstance(ours, Activation):
            np.testing.assert_array_equal(ours.kept, theirs.kept)
        else:
            assert ours == theirs


def test_shares_add_up_and_each_alone_looks_uniform(program, tmp_path):
    split(program, tmp_path)
    public = load_public(tmp_path / "public")
    assert not public.parameters
    assert program_hash(public) == program_hash(program)
    bundles = [load_party(tmp_path / f"party{party}", public) for party in (0, 1)]
    assert [bundle.party for bundle in bundles] == [0, 1]
    for op in program.ops:
        for name in op.parameter_names:
            label = f"{op.name}.{name}"
            if label in program.parameters:
                total = bundles[0].shares[label] + bundles[1].shares[label]
                np.testing.assert_array_equal(total, program.encoded(op, name))
    for bundle in bundles:
        words = np.concatenate([share.ravel() for share in bundle.shares.values()])
        ones = np.unpackbits(words.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 5 / np.sqrt(64 * words.size)


def test_two_splits_share_nothing(program, tmp_path):
    split(program, tmp_path / "a")
    split(program, tmp_path / "b")
    first, second = (load_party(tmp_path / which / "party0", program).shares for which in "ab")
    assert not any(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", ["parameters.safetensors", "index.safetensors"])
def test_altered_and_truncated_tensors_are_refused(program, tmp_path, name):
    save(program, tmp_path)
    original = (tmp_path / name).read_bytes()
    flip_byte(tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{name}: altered"):
        load(tmp_path)
    (tmp_path / name).write_bytes(original[:-7])
    with pytest.raises(CheckpointError, match=f"{name}: {len(original) - 7} bytes"):
        load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: cannot be read"):
        load(tmp_path)


def test_altered_manifest_is_refused(program, tmp_path):
    save(program, tmp_path)
    path = tmp_path / "manifest.json"
    original = path.read_text()
    path.write_text(original.replace('"margin": 4.0', '"margin": 5.0'))
    with pytest.raises(CheckpointError, match="altered"):
        load(tmp_path)
    path.write_text(original[: len(original) // 2])
    with pytest.raises(CheckpointError, match="not a readable manifest"):
        load(tmp_path)
    path.write_text(json.dumps({"format": "something"}))
    with pytest.raises(CheckpointError, match="not an autorep-program"):
        load(tmp_path)
    path.write_text(original.replace('"version": 1', '"version": 99'))
    with pytest.raises(CheckpointError, match="version 99"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match="no such file"):
        load(tmp_path)


def test_bundles_of_different_models_do_not_mix(program, tmp_path):
    other = compile_program(Network(["conv", "residual", "gate"]), images(8))
    split(program, tmp_path / "a")
    split(other, tmp_path / "b")
    with pytest.raises(CheckpointError, match="belong to program"):
        load_party(tmp_path / "a" / "party0", load_public(tmp_path / "b" / "public"))
    (tmp_path / "a" / "public" / "index.safetensors").write_bytes(
        (tmp_path / "b" / "public" / "index.safetensors").read_bytes()
    )
    with pytest.raises(CheckpointError):
        load_public(tmp_path / "a" / "public")


def test_roles_are_not_confused(program, tmp_path):
    save(program, tmp_path / "program")
    split(program, tmp_path)
    with pytest.raises(CheckpointError, match="'owner' is needed"):
        load(tmp_path / "public")
    with pytest.raises(CheckpointError, match="'public' is needed"):
        load_public(tmp_path / "program")
    with pytest.raises(CheckpointError, match="without parameters"):
        split(load_public(tmp_path / "public"), tmp_path / "again")


def test_the_hash_sees_operations_index_lists_and_model(program):
    hashes = {program_hash(program), program_hash(dataclasses.replace(program, model_id="0" * 32))}
    for changes in ({"window": 30}, {"kept": np.array([1, 2])}):
        ops = tuple(dataclasses.replace(op, **changes) if op.name == "blocks.0.1" else op for op in program.ops)
        hashes.add(program_hash(dataclasses.replace(program, ops=ops)))
    assert len(hashes) == 4
    assert program_hash(program.public()) == program_hash(program)
