# ruff: noqa: E501  # pieces of source, as they stand there
"""The table: every mutant with its changes to the sources and the tests that must notice it.

A change names a piece of source that must occur exactly once, so that a refactoring which moves it fails loudly here
instead of testing nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src" / "autorep"


@dataclass(frozen=True)
class Change:
    """Replace `old`, which occurs once in `file`, by `new`."""

    file: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"{self.file}: {self.old!r} occurs {found} times, not once; mend tests/mutants/table.py")
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class Mutant:
    """What is broken, and the tests of which one must fail."""

    name: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]


MUTANTS: dict[str, Mutant] = {}


def mutant(name: str, tests: str | tuple[str, ...], *changes: tuple[str, str, str]) -> None:
    """Add one to the table."""
    assert name not in MUTANTS, name
    tests = (tests,) if isinstance(tests, str) else tests
    MUTANTS[name] = Mutant(name, tuple(Change(*change) for change in changes), tests)


SECRECY, STORE, RECORD = "tests/mpc/test_secrecy.py", "tests/mpc/test_store.py", "tests/mpc/test_record.py"
KEYS, TOKENS, PREPARE = "tests/mpc/test_keys.py", "tests/service/test_tokens.py", "tests/service/test_prepare.py"
SEEN = f"{SECRECY}::test_every_bit_of_what_a_party_sees_is_balanced"
APART = f"{SECRECY}::test_no_two_tensors_of_a_view_have_values_in_common"
UNIFORM = f"{SECRECY}::test_every_effective_mask_is_uniform_in_its_ring"
DISTINCT = f"{SECRECY}::test_no_two_effective_masks_have_values_in_common"
OWN_RING = f"{SECRECY}::test_every_opening_is_masked_in_exactly_its_ring"
ALL_USED = f"{SECRECY}::test_all_that_a_kit_holds_is_used"
KITS = f"{SECRECY}::test_kits_share_neither_seeds_nor_ids_nor_comparison_keys"
STREAMS = f"{SECRECY}::test_a_stream_depends_on_every_byte_of_its_seed_and_label"
IMAGES = f"{SECRECY}::test_both_halves_of_an_image_are_uniform_and_never_the_same"
PARAMETERS = f"{SECRECY}::test_both_shares_of_the_parameters_are_uniform_and_fresh"
BLINDINGS = f"{SECRECY}::test_blindings_of_two_parameters_and_two_parties_have_nothing_in_common"

TAPE, DEALT, PRG = "mpc/tape.py", "mpc/dealt.py", "mpc/prg.py"

# ------------------------------------------------------------------ streams and seeds

# the dealer's kernels expand streams themselves; these changes let it add and subtract what `Streams.words` gives
_MASK = (
    TAPE,
    "        key0, key1 = (streams.key(item.label) for streams in self._streams)\n        return _native.prg_sum(key0, key1, item.count, item.bits, owed)",
    "        share0, share1 = self.own_streams(item)\n"
    "        less = np.uint64(0) if owed is None else owed\n"
    "        return (share0 + share1 - less) & np.uint64(2**item.bits - 1)",
)
_SHARE = "        key = self._next(item)\n        self._writers[1].section(_native.share_packed(np.ascontiguousarray(value), key, item.bits).data)"


def _shared(mine: str) -> tuple[str, str, str]:
    """The dealer's additive sharing, with another share of P0's."""
    difference = f"(value.reshape(-1) - {mine}) & np.uint64(2**item.bits - 1)"
    return (
        TAPE,
        _SHARE,
        f"        self._next(item)\n        self._writers[1].section(_native.pack({difference}, item.bits).data)",
    )


def _words(change: str) -> tuple[tuple[str, str, str], ...]:
    """Another stream, for everybody; `out` is the right one."""
    right = "_native.prg(self.key(label), np.empty(count, np.uint64), bits)"
    new = f"        out = {right}\n        {change}\n        return out"
    return (
        (PRG, f"        return {right}", new),
        _MASK,
        _shared("self._streams[0].words(item.label, item.count, item.bits)"),
    )


mutant("masks-without-bits-12-to-27", (SEEN, UNIFORM), *_words("out &= np.uint64(2**64 - 1 - 0xFFFF000)"))
mutant("masks-of-40-bits", (SEEN, UNIFORM), *_words("out &= np.uint64(2**40 - 1)"))
mutant("masks-even", (SEEN, UNIFORM), *_words("out &= np.uint64(2**64 - 2)"))
mutant("masks-biased", (SEEN, UNIFORM), *_words("out |= (out << np.uint64(1)) & np.uint64(2**bits - 1)"))
mutant("streams-repeat-within", (APART, DISTINCT), *_words("out = np.resize(out[: out.size // 2 + 1], out.size)"))
mutant("stream-ignores-label", (APART, STREAMS), (PRG, "label.encode()", 'b""'))
mutant(
    "stream-knows-operations-only",
    (APART, STREAMS),
    (PRG, "label.encode()", 'label.partition("/")[0].encode()'),
)
mutant("stream-of-half-a-seed", STREAMS, (PRG, "key=self._seed", "key=self._seed[:16]"))
mutant(
    "seeds-from-a-weak-generator",
    f"{SECRECY}::test_seeds_come_from_the_operating_system",
    (PRG, "return secrets.token_bytes(SEED_BYTES)", "return np.random.default_rng().bytes(SEED_BYTES)"),
)
_SEEDS = "seeds = seeds or (fresh_seed(), fresh_seed())"
mutant("both-parties-one-seed", KITS, ("mpc/dealer.py", _SEEDS, "seeds = seeds or (fresh_seed(),) * 2"))
mutant(
    "one-seed-for-every-kit",
    KITS,
    ("mpc/dealer.py", _SEEDS, "seeds = self._seeds = seeds or getattr(self, '_seeds', (fresh_seed(), fresh_seed()))"),
)
mutant("one-id-for-every-kit", KITS, ("mpc/dealer.py", 'next(self._numbers[batch]).to_bytes(7, "big")', "bytes(7)"))

# ------------------------------------------------------------------ dealt shares

_READ0 = "            return self._streams.words(item.label, item.count, item.bits)\n        return _native.unpack"


def _read0(mine: str) -> tuple[str, str, str]:
    return TAPE, _READ0, f"            return {mine}\n        return _native.unpack"


mutant("p0-dealt-share-zero", SEEN, _shared("np.uint64(0)"), _read0("np.zeros(item.count, np.uint64)"))
mutant(
    "p0-xor-share-zero",
    SEEN,
    (TAPE, "(value.reshape(-1) ^ self._streams[0].words(item.label, item.count)).data", "value.reshape(-1).data"),
    (
        TAPE,
        "            return self._streams.words(item.label, item.count)\n",
        "            return np.zeros(item.count, np.uint64)\n",
    ),
)
mutant(
    "p0-dealt-share-short",
    SEEN,
    _shared("self._streams[0].words(item.label, item.count, item.bits // 2)"),
    _read0("self._streams.words(item.label, item.count, item.bits // 2)"),
)
mutant(
    "shares-of-one-label",
    APART,
    _shared('self._streams[0].words("share", item.count, item.bits)'),
    _read0('self._streams.words("share", item.count, item.bits)'),
)
mutant(
    "cross-term-share-zero",
    SEEN,
    (
        DEALT,
        'self.owed = tape.share_or_owe(self.items, fixed[f"{self._c.op.name}.weight"](rho))',
        'image = fixed[f"{self._c.op.name}.weight"](rho)\n'
        "        own = tape.own_streams(self.items[0])[0].reshape(image.shape) if self.items else np.uint64(0)\n"
        "        self.owed = tape.share_or_owe(self.items, image + own)",
    ),
    _read0('(0 if item.label.endswith("/cross") else 1) * self._streams.words(item.label, item.count, item.bits)'),
)
mutant(
    "quadratic-terms-share-one-stream",
    APART,
    (
        TAPE,
        "return [self._next(item) for item in items]",
        "return [self._next(item) and self._streams[0].key(items[0].label) for item in items]",
    ),
    (
        TAPE,
        "[self._streams.key(item.label) for item in items]",
        "[self._streams.key(items[0].label) for item in items]",
    ),
)

# ------------------------------------------------------------------ comparisons

mutant(
    "and-left-mask-zero",
    SEEN,
    (DEALT, "tape.xor(c, tape.xor_mask(a) & tape.xor_mask(b))", "tape.xor(c, 0 * tape.xor_mask(b))"),
    (DEALT, "return tape.mask(a), tape.mask(b), tape.xor(c)", "return 0 * tape.mask(a), tape.mask(b), tape.xor(c)"),
)
mutant(
    "and-right-mask-zero",
    SEEN,
    (DEALT, "tape.xor(c, tape.xor_mask(a) & tape.xor_mask(b))", "tape.xor(c, 0 * tape.xor_mask(b))"),
    (DEALT, "return tape.mask(a), tape.mask(b), tape.xor(c)", "return tape.mask(a), 0 * tape.mask(b), tape.xor(c)"),
)
mutant(
    "and-masks-alike",
    APART,
    (DEALT, 'Item(f"{c.label}/b", "mask", c.count, 64)', 'Item(f"{c.label}/a", "mask", c.count, 64)'),
    (TAPE, "self._sections.pop(item.label, None)", "self._sections.get(item.label)"),
)
mutant(
    "sign-mask-zero",
    SEEN,
    (
        DEALT,
        "planes = tape.xor_mask(self.items[0]).reshape(points, 1, -1)",
        "planes = 0 * tape.xor_mask(self.items[0]).reshape(points, 1, -1)",
    ),
    (
        DEALT,
        "planes = tape.mask(self.items[0]).reshape(points, -1)",
        "planes = 0 * tape.mask(self.items[0]).reshape(points, -1)",
    ),
)
mutant(
    "sign-masks-of-all-levels-alike",
    APART,
    (PRG, '        """A label\'s AES-128 key."""\n', '        label = label.replace("/and1", "/and0")\n'),
)
mutant(
    "one-comparison-root-for-a-layer",
    APART,
    (
        TAPE,
        "        share0, share1 = (streams.words(item.label, item.count, item.bits) for streams in self._streams)\n        return share0, share1",
        "        share0, share1 = (streams.words(item.label, item.count, item.bits) for streams in self._streams)\n"
        '        if item.label.endswith("/root"):\n            share0, share1 = np.resize(share0[:2], share0.size), np.resize(share1[:2], share1.size)\n'
        "        return share0, share1",
    ),
    (
        TAPE,
        "        self._take(item)\n        return self._streams.words(item.label, item.count, item.bits)",
        "        self._take(item)\n        own = self._streams.words(item.label, item.count, item.bits)\n"
        '        return np.resize(own[:2], own.size) if item.label.endswith("/root") else own',
    ),
)
mutant("comparison-keys-hashed-alike", KITS, (TAPE, 'b"autorep/dcf/2" + self._kit_id', 'b"autorep/dcf/2"'))
mutant(
    "comparison-keys-hashed-under-zero",
    KITS,
    (TAPE, 'return hashlib.sha256(b"autorep/dcf/2" + self._kit_id).digest()', "return self._kit_id[-4:] + bytes(28)"),
)

# ------------------------------------------------------------------ masks of openings and wires

ACTIVATION, REQUANTIZE = "mpc/operations/activation.py", "mpc/operations/requantize.py"
mutant(
    "kept-mask-is-input-mask",
    (DISTINCT, ALL_USED),
    (
        ACTIVATION,
        "material.kept_mask = source.draw(self._kept_mask).reshape(batch, -1)",
        "material.kept_mask = np.ascontiguousarray(r[:, op.kept]) % U64(1 << op.bits)",
    ),
)
mutant(
    "kept-mask-drawn-and-not-used",
    (DISTINCT, "tests/mpc/test_engine.py::test_every_operation_together_equals_fixed"),
    (
        ACTIVATION,
        "material.kept_mask = source.draw(self._kept_mask).reshape(batch, -1)",
        "source.draw(self._kept_mask)\n            material.kept_mask = np.ascontiguousarray(r[:, op.kept]) % U64(1 << op.bits)",
    ),
)
mutant(
    "kept-mask-short",
    (SEEN, UNIFORM),
    (ACTIVATION, 'Mask(f"{name}/kept/z", kept, op.bits)', 'Mask(f"{name}/kept/z", kept, op.bits - 4)'),
)
mutant(
    "quadratic-mask-short",
    UNIFORM,
    (
        ACTIVATION,
        'Mask(f"{name}/quad/z", quad, op.quad_open_bits)',
        'Mask(f"{name}/quad/z", quad, op.quad_open_bits - 8)',
    ),
)
mutant(
    "activation-mask-short",
    OWN_RING,
    (ACTIVATION, 'Mask(f"{name}/r", self.count, op.open_bits)', 'Mask(f"{name}/r", self.count, op.open_bits - 3)'),
)
mutant(
    "one-layer-reuses-anothers-mask",
    (APART, DISTINCT),
    (PRG, '        """A label\'s AES-128 key."""\n', '        label = "/r" if label.endswith("/r") else label\n'),
)
mutant(
    "images-of-a-batch-share-masks",
    (APART, DISTINCT),
    (
        "mpc/operations/input.py",
        "rho = source.draw(mask).reshape(self.batch, *self.op.shape)",
        "rho = source.draw(mask).reshape(self.batch, *self.op.shape)\n        rho[1:] = rho[0]",
    ),
)
mutant(
    "requantize-mask-short",
    (SEEN, UNIFORM),
    (
        REQUANTIZE,
        'Mask(f"{op.name}/r", self.count, op.open_bits)',
        'Mask(f"{op.name}/r", self.count, op.open_bits - 3)',
    ),
)
mutant(
    "requantize-second-mask-zero",
    (SEEN, UNIFORM),
    (REQUANTIZE, "z = source.draw(self._z).reshape(shape)", "z = 0 * source.draw(self._z).reshape(shape)"),
)
mutant(
    "requantize-second-mask-is-first",
    (DISTINCT, ALL_USED),
    (REQUANTIZE, "z = source.draw(self._z).reshape(shape)", "z = reduce(r.copy(), self.op.bits).reshape(shape)"),
)
mutant(
    "input-mask-of-48-bits",
    (SEEN, UNIFORM),
    (
        "mpc/operations/input.py",
        'Mask(f"{self.op.name}/mask", self.count, self.op.bits)',
        'Mask(f"{self.op.name}/mask", self.count, 48)',
    ),
)
mutant(
    "max-pool-mask-short",
    (SEEN, UNIFORM),
    ("mpc/operations/maxpool.py", 'Mask(f"{label}/z", count, op.bits)', 'Mask(f"{label}/z", count, op.bits - 6)'),
)
mutant(
    "max-pool-mask-zero",
    (SEEN, UNIFORM),
    (
        "mpc/operations/maxpool.py",
        "winners = source.draw(level.winners).reshape(left.shape)",
        "winners = 0 * source.draw(level.winners).reshape(left.shape)",
    ),
)

# ------------------------------------------------------------------ answers without logits

TOP, WITHIN, ANSWERS = "mpc/operations/top_classes.py", "mpc/operations/within_bound.py", "tests/mpc/test_answers.py"
ALONE = f"{ANSWERS}::test_a_client_gets_the_classes_and_one_bit_alone"
mutant("winner-mask-short", SEEN, (TOP, 'Mask(f"{label}/z", count, op.ring)', 'Mask(f"{label}/z", count, op.ring - 6)'))
mutant(
    "winner-mask-zero",
    SEEN,
    (
        TOP,
        "fresh = source.draw(layer.winners).reshape(left.shape)",
        "fresh = 0 * source.draw(layer.winners).reshape(left.shape)",
    ),
)
mutant(
    "winners-masked-as-they-came",
    SEEN,
    (TOP, "fresh = source.draw(layer.winners).reshape(left.shape)", "fresh = right.copy()"),
)
mutant(
    "answer-tells-a-bit-of-the-logit",
    ALONE,
    (
        TOP,
        "np.ascontiguousarray(values.T) << U64(self.op.bits)",
        "np.ascontiguousarray(values.T) << U64(self.op.bits - 1)",
    ),
)
mutant(
    "range-mask-short",
    SEEN,
    (WITHIN, 'Mask(f"{op.name}/r", batch, self._bits)', 'Mask(f"{op.name}/r", batch, self._bits - 4)'),
)
mutant("range-mask-zero", SEEN, (WITHIN, "r = source.draw(self._r)", "r = 0 * source.draw(self._r)"))
mutant("flag-tells-the-sum", ALONE, (WITHIN, "(above - at - below + under)", "(above - below)"))
mutant(
    "flag-not-looked-at",
    "tests/service/test_answers.py::test_every_answer_is_read_alike_by_the_client",
    ("service/answers.py", "answer.in_range is None or bool(answer.in_range[0])", "True"),
)

# ------------------------------------------------------------------ answer, image, weights

mutant(
    "answer-not-reduced",
    f"{SECRECY}::test_answers_are_shares_in_their_ring_and_nothing_more",
    (
        "mpc/party.py",
        "return reduce(value.share(self.index), self.program.output.bits)",
        "return value.share(self.index)",
    ),
)
mutant(
    "client-mask-of-48-bits",
    IMAGES,
    (
        "mpc/local.py",
        'stream(fresh_seed(), "client/input", encoded.shape)',
        'stream(fresh_seed(), "client/input", encoded.shape, 48)',
    ),
)
mutant(
    "client-mask-always-the-same",
    IMAGES,
    ("mpc/local.py", 'stream(fresh_seed(), "client/input"', 'stream(bytes(32), "client/input"'),
)
mutant(
    "service-client-mask-of-48-bits",
    IMAGES,
    (
        "service/shares.py",
        'np.frombuffer(secrets.token_bytes(encoded.nbytes), "<u8")',
        'np.frombuffer(secrets.token_bytes(encoded.nbytes), "<u8").__and__(np.uint64(2**48 - 1))',
    ),
)
mutant(
    "service-client-mask-repeats",
    IMAGES,
    ("service/shares.py", "secrets.token_bytes(encoded.nbytes)", "secrets.token_bytes(8) * (encoded.nbytes // 8)"),
)
mutant(
    "weights-shared-in-32-bits",
    PARAMETERS,
    (
        "program/shares.py",
        "prg(secrets.token_bytes(16), mask.reshape(-1))",
        "prg(secrets.token_bytes(16), mask.reshape(-1), 32)",
    ),
)
mutant(
    "weights-shared-under-one-key",
    PARAMETERS,
    ("program/shares.py", "prg(secrets.token_bytes(16), mask.reshape(-1))", "prg(bytes(16), mask.reshape(-1))"),
)
mutant(
    "blinding-of-32-bits",
    BLINDINGS,
    (
        "mpc/blinding.py",
        'return stream(seed, f"model/{label}", shape)',
        'return stream(seed, f"model/{label}", shape, 32)',
    ),
)
mutant(
    "blinding-zero",
    (BLINDINGS, "tests/mpc/test_transcript.py::test_opened_weights_are_uniform_and_differ_between_dealers"),
    ("mpc/blinding.py", 'return stream(seed, f"model/{label}", shape)', "return np.zeros(shape, np.uint64)"),
)
mutant("one-blinding-for-all-weights", BLINDINGS, ("mpc/blinding.py", 'f"model/{label}"', '"model"'))
mutant(
    "blinding-seeds-alike",
    BLINDINGS,
    (
        "mpc/blinding.py",
        "default_factory=lambda: (fresh_seed(), fresh_seed())",
        "default_factory=lambda: (bytes(32), bytes(32))",
    ),
)

# ------------------------------------------------------------------ single use

mutant(
    "prepared-query-runs-again",
    f"{SECRECY}::test_a_prepared_query_runs_once",
    (
        "mpc/party.py",
        "        query.used = True\n",
        "        import copy\n\n        query = copy.copy(query)\n        query.steps = list(query.steps)\n",
    ),
)
mutant(
    "tensor-read-again",
    f"{SECRECY}::test_a_tensor_of_a_kit_is_read_once",
    (TAPE, "self._sections.pop(item.label, None)", "self._sections.get(item.label)"),
)
mutant(
    "use-not-on-record",
    (f"{STORE}::test_put_refuses_a_kit_that_was_used", RECORD),
    ("mpc/record.py", "            self._append(_line(number, 1).encode())\n", ""),
)
mutant(
    "use-on-record-only-in-memory",
    f"{RECORD}::test_a_kit_is_spent_once",
    ("mpc/record.py", "            self._used.add(number)\n", ""),
)
mutant(
    "used-kit-put-again",
    f"{STORE}::test_put_refuses_a_kit_that_was_used",
    ("mpc/record.py", "        if self.used(kit_id):\n", "        if False:\n"),
)
mutant(
    "key-of-used-kit-stays",
    f"{STORE}::test_the_key_of_a_used_kit_is_overwritten",
    ("mpc/record.py", "        private.shred(path)\n        return key", "        return key"),
)
mutant(
    "key-unlinked-not-overwritten",
    f"{STORE}::test_the_key_of_a_used_kit_is_overwritten",
    ("private.py", "file.write(bytes(min(1 << 20, size - start)))", "pass"),
)
mutant(
    "held-kit-used-off-record",
    f"{STORE}::test_the_newest_kits_never_touch_the_disk",
    ("mpc/store.py", "            self._record.use(kit_id)\n", ""),
)
mutant(
    "memory-of-a-kit-in-use-lent-again",
    "tests/mpc/test_blocks.py::test_whatever_looks_into_a_block_keeps_it",
    ("mpc/blocks.py", "weakref.finalize(lent, _SPARE.append, memory)", "_SPARE.append(memory)"),
)
mutant(
    "store-without-record-accepted",
    f"{STORE}::test_a_store_without_its_record_is_refused",
    ("mpc/store.py", "        if any(self._ready.iterdir()):\n", "        if False:\n"),
)
mutant(
    "two-processes-one-store",
    f"{STORE}::test_one_process_holds_a_store",
    ("mpc/record.py", "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"),
)
mutant(
    "old-material-accepted",
    f"{PREPARE}::test_material_from_before_the_record_is_refused",
    ("service/prepare.py", "        if oldest < store.epoch:\n", "        if False:\n"),
)
mutant(
    "record-begun-without-asking",
    f"{PREPARE}::test_without_a_record_the_operator_must_say_that_it_is_the_first",
    ("service/prepare.py", "        if not begin:\n", "        if False:\n"),
)
mutant(
    "material-copied-not-moved",
    f"{PREPARE}::test_material_is_moved_not_copied",
    ("service/prepare.py", "    private.shred(path)\n", ""),
)

# ------------------------------------------------------------------ kits at rest, files

mutant(
    "kit-at-rest-not-authenticated",
    f"{STORE}::test_a_flipped_bit_on_disk_is_noticed",
    ("mpc/seal.py", "                decryptor.finalize_with_tag(bytes(view[size:]))\n", "                pass\n"),
)
mutant(
    "kit-at-rest-not-bound-to-its-name",
    f"{STORE}::test_two_kits_exchanged_on_disk_are_noticed",
    ("mpc/seal.py", "self._key = sink, secrets.token_bytes(KEY_BYTES)", "self._key = sink, bytes(KEY_BYTES)"),
    ("mpc/seal.py", "        self._encryptor.authenticate_additional_data(name)\n", ""),
    ("mpc/seal.py", "            decryptor.authenticate_additional_data(name)\n", ""),
)
mutant(
    "kit-tag-not-compared",
    f"{STORE}::test_damaged_kits_are_refused_and_leave_nothing",
    ("mpc/kit.py", "if not hmac.compare_digest(self._tag.finish(), self._end):", "if False:"),
)
mutant(
    "kit-of-another-program-accepted",
    f"{STORE}::test_damaged_kits_are_refused_and_leave_nothing",
    ("mpc/store.py", "if header.program_hash != self._program_hash:", "if False:"),
)
mutant(
    "files-for-everybody",
    (f"{STORE}::test_files_are_private", f"{KEYS}::test_every_file_is_private"),
    ("private.py", "return os.open(path, flags, 0o600)", "return os.open(path, flags, 0o644)"),
)
mutant(
    "folders-for-everybody",
    (f"{STORE}::test_files_are_private", f"{KEYS}::test_every_file_is_private"),
    ("private.py", "folder.mkdir(mode=0o700, exist_ok=True)", "folder.mkdir(mode=0o755, exist_ok=True)"),
)

# ------------------------------------------------------------------ roles, tokens, links

TLS, TRANSPORT = "mpc/tls.py", "tests/mpc/test_transport.py"
mutant(
    "peer-of-any-role",
    f"{TRANSPORT}::test_certificate_of_another_role_is_refused",
    ("mpc/transport_tcp.py", "    if not found & roles:\n", "    if not found:\n"),
    ("mpc/transport_tcp.py", "next(iter(found & roles))", "next(iter(found))"),
)
RECORDS, RECORD_TESTS = "mpc/link_records.py", "tests/mpc/test_link_records.py"
mutant(
    "record-nonce-used-twice",
    f"{RECORD_TESTS}::test_equal_texts_look_different",
    (RECORDS, "        self._number += 1\n", ""),
)
mutant(
    "record-key-never-replaced",
    f"{RECORD_TESTS}::test_keys_are_replaced_and_forgotten",
    (RECORDS, "            self._cipher = AESGCM(self._key)\n", ""),
)
mutant(
    "one-record-key-for-both-directions",
    f"{TRANSPORT}::test_what_an_end_sealed_does_not_open_at_that_end",
    (RECORDS, "return keys[:_KEY_BYTES], keys[_KEY_BYTES:]", "return keys[:_KEY_BYTES], keys[:_KEY_BYTES]"),
)
mutant(
    "peer-of-any-authority",
    f"{TRANSPORT}::test_certificate_of_another_authority_is_refused",
    (
        TLS,
        "    context.verify_mode = ssl.CERT_REQUIRED\n",
        "    context.check_hostname = False\n    context.verify_mode = ssl.CERT_NONE\n",
    ),
    ("mpc/transport_tcp.py", "found = peer_roles(connection)", "found = set(roles)"),
)
mutant(
    "host-named-like-a-role",
    f"{KEYS}::test_hosts_with_names_of_roles_or_patterns_are_refused",
    (TLS, 'if host.lower().rstrip(".") in ROLES:', "if False:"),
)
mutant(
    "authority-signs-any-role",
    f"{KEYS}::test_the_authority_signs_only_the_role_it_is_told",
    (TLS, "    if names[:1] != [_known(role)]:\n", "    if not names:\n"),
)
mutant(
    "request-may-name-two-roles",
    f"{KEYS}::test_a_request_that_smuggles_in_another_role_is_refused",
    (TLS, "[x509.DNSName(role), *map(_host, names[1:])]", "[x509.DNSName(role), *map(x509.DNSName, names[1:])]"),
)
mutant(
    "both-servers-one-token",
    f"{TOKENS}::test_a_server_cannot_speak_for_a_client_to_the_other",
    ("service/tokens.py", 'f"autorep server {party}".encode()', 'b"autorep server"'),
)
mutant(
    "hash-opens-the-door",
    f"{TOKENS}::test_a_server_cannot_speak_for_a_client_to_the_other",
    ("service/api.py", "digest = token_hash(token.strip())", "digest = token.strip()"),
)
mutant(
    "addresses-in-clear",
    f"{TOKENS}::test_addresses_in_clear_are_refused",
    ("service/web.py", 'if not url.lower().startswith("https://"):', 'if not url.lower().startswith("http"):'),
)
mutant(
    "seed-in-a-repr",
    "tests/mpc/test_transcript.py::test_no_seed_in_logs_reprs_or_errors",
    (
        "mpc/kit.py",
        "    def __repr__(self) -> str:  # the seed must not reach a log\n",
        "    def shown(self) -> str:\n",
    ),
)

# ------------------------------------------------------------------ preparation without a dealer

TOGETHER, LATTICE, TRANSFERS = "tests/mpc/test_two_party.py", "tests/mpc/test_rlwe.py", "tests/mpc/test_ot.py"
LINEAR, SLOTS, EXTENSION, MAKER = (
    "mpc/rlwe/linear.py",
    "mpc/rlwe/slots.py",
    "mpc/ot/extension.py",
    "mpc/two_party/model.py",
)
FRESH_ANSWERS = f"{LATTICE}::test_answers_are_pseudorandom_whatever_the_weights_are"
mutant(
    "linear-answer-without-fresh-zero",
    FRESH_ANSWERS,
    (
        LINEAR,
        "    ring.add(product, np.ascontiguousarray(np.stack([zero0, zero1], axis=2)).reshape(product.shape))\n",
        "",
    ),
)
mutant(
    "linear-answer-unmasked",
    FRESH_ANSWERS,
    (
        LINEAR,
        'mask = stream(fresh_seed(), f"{packing.layer.name}/answer", needed.shape, bits)',
        "mask = np.zeros_like(needed)",
    ),
)
mutant(
    "one-public-part-for-all-layers",
    f"{TOGETHER}::test_no_two_ciphertexts_share_their_public_part",
    (LINEAR, "plain.reshape(-1, ring.n)), seed, packing.layer.name))", 'plain.reshape(-1, ring.n)), seed, "layer"))'),
    (LINEAR, "expand(ring, seed, packing.layer.name, total)", 'expand(ring, seed, "layer", total)'),
)
mutant(
    "slots-not-flooded",
    f"{LATTICE}::test_phase_of_a_slot_answer_stays_within_its_bound",
    (SLOTS, "        _flood(ring, zero0)\n", ""),
)
mutant(
    "slot-answer-unmasked",
    f"{LATTICE}::test_slot_products_are_exact_and_their_answers_uniform",
    (
        SLOTS,
        "share = rns.below(draw_key(), MODULUS.value, (blocks, SLOTS))",
        "share = np.zeros((blocks, SLOTS), np.uint64)",
    ),
)
mutant(
    "transfers-numbered-anew",
    f"{TRANSFERS}::test_no_number_of_a_transfer_is_used_twice",
    (EXTENSION, "        self._received += total\n", ""),
    (EXTENSION, "        self._sent += 64 * columns.shape[1]\n", ""),
)
mutant(
    "guard-band-of-nothing",
    "tests/mpc/test_guard_band.py",
    ("mpc/two_party/rounding.py", " + (1 << (open_bits - 2 - GUARD) if party == 0 else 0)", ""),
)
mutant(
    "one-seed-for-a-batch-of-kits",
    f"{TOGETHER}::test_two_kits_share_nothing",
    (MAKER, "seeds = [fresh_seed() for _ in range(count)]", "seeds = [fresh_seed()] * count"),
)
mutant(
    "kit-of-other-shares-taken",
    f"{TOGETHER}::test_kits_of_other_shares_or_a_dealer_are_refused",
    (MAKER, "        if header.blinding_id != self.shares_id:\n", "        if False:\n"),
)
mutant(
    "makers-of-any-release",
    f"{TOGETHER}::test_makers_of_another_release_part_at_the_handshake",
    (MAKER, '"preparation": model.preparation, "wire": fingerprints()}', '"preparation": model.preparation}'),
)
