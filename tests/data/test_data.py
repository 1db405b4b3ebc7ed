"""Data sets: readers of every format, what they refuse, and batches."""

import hashlib
import io
import pickle
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from autorep import data
from autorep.data.augment import crop_flip, draw_shifts, epoch_order, generator
from autorep.errors import ConfigError, DataError


def pixels(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def cifar10_files(kind: str) -> dict[str, bytes]:
    """Six batches of four images, image k of batch b labelled (b + k) % 10."""
    files = {}
    for b, part in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        x, y = pixels(4, b), [(b + k) % 10 for k in range(4)]
        if kind == "python":
            files[part] = pickle.dumps({b"data": x, b"labels": y}, protocol=2)
        else:
            files[f"{part}.bin"] = b"".join(bytes([label]) + row.tobytes() for label, row in zip(y, x))
    return files


def write(path, files: dict[str, bytes], as_archive: bool):
    if not as_archive:
        path.mkdir()
        for name, content in files.items():
            (path / name).write_bytes(content)
        return path
    path = path.with_suffix(".tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            add(archive, f"cifar-10-batches/{name}", content)
    return path


def test_digits_are_split_once_and_for_all():
    digits = data.load("digits")
    assert (len(digits.train), len(digits.test), digits.shape) == (1437, 360, (1, 8, 8))
    assert digits.test.labels[:4].tolist() == [0, 5, 0, 5]
    images = digits.train.take(torch.arange(1437))
    assert int(images.min()) == 0
    assert int(images.max()) == 255
    assert abs(float(data.normalise(images, digits).mean())) < 0.01


@pytest.mark.parametrize("kind", ["python", "binary"])
@pytest.mark.parametrize("as_archive", [True, False])
def test_cifar10_reads_alike_from_every_published_form(tmp_path, kind, as_archive):
    dataset = data.load("cifar10", write(tmp_path / "cifar", cifar10_files(kind), as_archive))
    assert (len(dataset.train), len(dataset.test)) == (20, 4)
    assert dataset.train.labels[4:8].tolist() == [1, 2, 3, 4]
    expected = torch.from_numpy(pixels(4, 5).reshape(4, 3, 32, 32))
    assert torch.equal(dataset.test.take(torch.arange(4)), expected)


def test_cifar100_takes_the_fine_labels_of_both_forms(tmp_path):
    x = pixels(3)
    binary = b"".join(bytes([1, label]) + row.tobytes() for label, row in zip((7, 99, 0), x))
    python = pickle.dumps({b"data": x, b"coarse_labels": [1, 1, 1], b"fine_labels": [7, 99, 0]}, protocol=2)
    for files in ({"train.bin": binary, "test.bin": binary}, {"train": python, "test": python}):
        folder = tmp_path / str(len(next(iter(files))))
        dataset = data.load("cifar100", write(folder, files, as_archive=False))
        assert dataset.train.labels.tolist() == [7, 99, 0]
        assert torch.equal(dataset.train.take(torch.tensor([1]))[0].flatten(), torch.from_numpy(x[1]))


@pytest.mark.parametrize("channels_last", [True, False])
def test_npz_reads_either_channel_order(tmp_path, channels_last):
    x = pixels(5).reshape(5, 3, 32, 32)
    stored = x.transpose(0, 2, 3, 1) if channels_last else x
    y = np.arange(5)
    np.savez(tmp_path / "c.npz", x_train=stored, y_train=y, x_test=stored[:2], y_test=y[:2])
    dataset = data.load("cifar10", tmp_path / "c.npz")
    assert torch.equal(dataset.train.take(torch.arange(5)), torch.from_numpy(x))


def test_missing_truncated_and_misshapen_files_say_what_was_expected(tmp_path):
    with pytest.raises(DataError, match=r"no such file or folder; expected cifar-10-python\.tar\.gz"):
        data.load("cifar10", tmp_path / "none")
    files = cifar10_files("binary")
    files["data_batch_3.bin"] = files["data_batch_3.bin"][:-1]
    with pytest.raises(DataError, match=r"data_batch_3\.bin: 12291 bytes; expected a multiple of 3073"):
        data.load("cifar10", write(tmp_path / "short", files, as_archive=False))
    del files["data_batch_3.bin"]
    with pytest.raises(DataError, match=r"neither data_batch_3 nor data_batch_3\.bin"):
        data.load("cifar10", write(tmp_path / "gap", files, as_archive=False))
    whole = write(tmp_path / "cut", cifar10_files("python"), as_archive=True)
    whole.write_bytes(whole.read_bytes()[:2000])
    with pytest.raises(DataError, match="not a complete tar archive"):
        data.load("cifar10", whole)
    np.savez(tmp_path / "bad.npz", x_train=np.zeros((2, 28, 28), np.uint8), y_train=[0, 1], x_test=[], y_test=[])
    with pytest.raises(DataError, match=r"x_train is uint8 \(2, 28, 28\); expected uint8 \(N, 32, 32, 3\)"):
        data.load("cifar10", tmp_path / "bad.npz")
    np.savez(tmp_path / "few.npz", x_train=np.zeros((2, 32, 32, 3), np.uint8))
    with pytest.raises(DataError, match="no array y_train, x_test, y_test"):
        data.load("cifar10", tmp_path / "few.npz")


def test_a_python_batch_with_code_in_it_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("gotcha",))

    files = cifar10_files("python") | {"data_batch_1": pickle.dumps(Evil())}
    with pytest.raises(DataError, match="refusing to load"):
        data.load("cifar10", write(tmp_path / "evil", files, as_archive=False))


def test_labels_beyond_the_classes_are_refused(tmp_path):
    files = cifar10_files("binary")
    files["test_batch.bin"] = bytes([10]) + bytes(3072)
    with pytest.raises(DataError, match="label 10 in the test part"):
        data.load("cifar10", write(tmp_path / "labels", files, as_archive=False))


def image_tree(root, sides=(64,)):
    image = pytest.importorskip("PIL.Image")
    for part in ("train", "val"):
        for number, name in enumerate(("ant", "bee")):
            folder = root / part / name
            folder.mkdir(parents=True)
            for k, side in enumerate(sides):
                colour = (number * 200, k * 40, 0 if part == "train" else 255)
                image.new("RGB", (side, side + 6 * k), colour).save(folder / f"{k}.png")
    return root


def test_tiny_imagenet_reads_annotated_and_foldered_validation(tmp_path):
    root = image_tree(tmp_path / "tiny")
    foldered = data.load("tiny-imagenet", root)
    assert foldered.classes == ("ant", "bee")
    assert foldered.test.labels.tolist() == [0, 1]
    images = root / "val" / "images"
    images.mkdir()
    for name in ("ant", "bee"):
        (root / "val" / name / "0.png").rename(images / f"{name}.png")
    (root / "val" / "val_annotations.txt").write_text("bee.png\tbee\t0\t0\t1\t1\nant.png\tant\t0\t0\t1\t1\n")
    annotated = data.load("tiny-imagenet", root)
    assert annotated.test.labels.tolist() == [1, 0]
    assert annotated.test.take(torch.tensor([0]))[0, :, 5, 5].tolist() == [200, 0, 255]


def test_imagenet_folders_are_scaled_and_cut_to_one_size(tmp_path):
    dataset = data.load("imagenet", image_tree(tmp_path / "net", sides=(20, 50)), image_size=32)
    batch = dataset.train.take(torch.tensor([3, 0]))
    assert batch.shape == (2, 3, 32, 32)
    assert batch[:, :, 16, 16].tolist() == [[200, 40, 0], [0, 0, 0]]
    with pytest.raises(DataError, match="expected one sub-folder of images per class"):
        data.load("imagenet", tmp_path / "elsewhere")


def test_unknown_set_and_missing_path_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        data.load("cifar-10")
    with pytest.raises(ConfigError, match="needs the place of its files"):
        data.load("cifar10")


def test_held_out_images_are_apart_and_the_same_for_a_seed():
    digits = data.load("digits")
    train, held_out = digits.held_out(100, seed=3)
    again = digits.held_out(100, seed=3)[1]
    assert torch.equal(held_out.index, again.index)
    assert sorted([*train.train.index.tolist(), *held_out.index.tolist()]) == list(range(1437))
    with pytest.raises(ConfigError, match="choose 0 to 1436"):
        digits.held_out(1437, seed=0)


@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_crop_flip_equals_a_loop_over_images(count, pad, seed):
    images = torch.randint(1, 256, (count, 2, 4, 6), dtype=torch.uint8, generator=generator("images", seed))
    top, left, mirrored = draw_shifts(count, pad, generator("shifts", seed))
    for got, image, row, column, mirror in zip(
        crop_flip(images, pad, top, left, mirrored), images, top, left, mirrored
    ):
        wide = torch.nn.functional.pad(image, (pad, pad, pad, pad))[:, row : row + 4, column : column + 6]
        assert torch.equal(got, wide.flip(2) if mirror else wide)


def test_shares_of_a_batch_are_the_batch_and_depend_on_the_key_only():
    digits = data.load("digits")
    index = epoch_order(len(digits.train), 0, 2)[:10]
    whole, labels = data.training_batch(digits, index, (0, 5), slice(0, 10))
    parts = [data.training_batch(digits, index, (0, 5), share) for share in (slice(0, 4), slice(4, 10))]
    assert torch.equal(whole, torch.cat([x for x, _ in parts]))
    assert torch.equal(labels, torch.cat([y for _, y in parts]))
    assert not torch.equal(whole, data.training_batch(digits, index, (0, 6), slice(0, 10))[0])


def test_digits_are_never_mirrored():
    digits = data.load("digits")
    index = torch.arange(64)
    plain = digits.train.take(index)
    shifted = [
        torch.nn.functional.pad(plain, (1, 1, 1, 1))[..., r : r + 8, c : c + 8] for r in range(3) for c in range(3)
    ]
    batch, _ = data.training_batch(digits, index, (1, 1), slice(0, 64))
    candidates = torch.stack([data.normalise(s, digits) for s in shifted])
    assert (candidates == batch).flatten(2).all(2).any(0).all()


def write_pictures(folder, classes, count, size=(40, 30)):
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.random.default_rng(100 * label + number).integers(0, 256, (*size, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def test_a_folder_of_own_pictures_is_split_by_name_and_stays_split_when_it_grows(tmp_path):
    write_pictures(tmp_path, ("cat", "dog"), 12)
    before = data.load("folder", tmp_path, 16)
    assert before.classes == ("cat", "dog")
    assert before.shape == (3, 16, 16)
    assert len(before.train) + len(before.test) == 24
    assert len(before.test) > 0
    write_pictures(tmp_path, ("emu",), 12)
    after = data.load("folder", tmp_path, 16)
    assert len(after.train) > len(before.train)
    assert torch.equal(after.test.images[after.test.labels < 2], before.test.images)
    pixels = after.train.images.double() / 255
    assert torch.allclose(torch.tensor(after.mean), pixels.mean((0, 2, 3)).float(), atol=1e-4)
    assert torch.allclose(torch.tensor(after.std), pixels.std((0, 2, 3), correction=0).float(), atol=1e-4)


def test_the_first_pictures_of_a_folder_are_of_all_classes_and_hidden_files_of_none(tmp_path):
    write_pictures(tmp_path / "train", ["ant", "bee"], 6)
    write_pictures(tmp_path / "train", ["cat"], 3)
    write_pictures(tmp_path / "val", ["ant", "bee", "cat"], 2)
    write_pictures(tmp_path / "train" / "ant" / ".thumbnails", ["small"], 2)
    write_pictures(tmp_path / "train", [".cache"], 1)
    dataset = data.load("folder", tmp_path, 8)
    assert dataset.classes == ("ant", "bee", "cat")
    assert dataset.train.labels.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 0, 1, 0, 1, 2, 0, 1]
    assert dataset.test.labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_folders_that_can_teach_nothing_are_refused(tmp_path):
    write_pictures(tmp_path / "one", ["ant"], 30)
    with pytest.raises(DataError, match="only one class .ant."):
        data.load("folder", tmp_path / "one", 8)
    write_pictures(tmp_path / "few", ["ant"], 30)
    write_pictures(tmp_path / "few", ["bee"], 1)
    picture = tmp_path / "few" / "bee" / "0.png"
    name = next(f"{n}.png" for n in range(99) if hashlib.sha256(f"bee/{n}.png".encode()).digest()[0] % 5 == 0)
    picture.rename(picture.with_name(name))
    with pytest.raises(DataError, match="every picture of class bee was set apart"):
        data.load("folder", tmp_path / "few", 8)


def test_folders_named_train_and_val_are_taken_as_they_are(tmp_path):
    write_pictures(tmp_path / "train", ("a", "b"), 3)
    write_pictures(tmp_path / "val", ("a", "b"), 2)
    dataset = data.load("folder", tmp_path, 8)
    assert (len(dataset.train), len(dataset.test)) == (6, 4)
    lone = tmp_path / "lone"
    write_pictures(lone, ("a",), 1)
    with pytest.raises(DataError, match="too few to split"):
        data.load("folder", lone, 8)


def test_own_arrays_grey_or_colour_with_or_without_names(tmp_path):
    draw = np.random.default_rng(0)
    grey, labels = draw.integers(0, 256, (6, 9, 9), np.uint8), np.array([0, 1, 2, 0, 1, 2])
    np.savez(
        tmp_path / "own.npz", x_train=grey, y_train=labels, x_test=grey[:2], y_test=labels[:2], classes=list("xyz")
    )
    dataset = data.load("npz", tmp_path / "own.npz")
    assert (dataset.shape, dataset.classes) == ((1, 9, 9), ("x", "y", "z"))
    colour = draw.integers(0, 256, (6, 9, 9, 3), np.uint8)
    np.savez(tmp_path / "own.npz", x_train=colour, y_train=labels, x_test=colour, y_test=labels)
    dataset = data.load("npz", tmp_path / "own.npz")
    assert (dataset.shape, dataset.classes) == ((3, 9, 9), ("0", "1", "2"))
    assert np.array_equal(dataset.train.images[0], colour[0].transpose(2, 0, 1))
    np.savez(tmp_path / "own.npz", x_train=colour, y_train=labels[:3], x_test=colour, y_test=labels)
    with pytest.raises(DataError, match="y_train must hold 6 whole numbers"):
        data.load("npz", tmp_path / "own.npz")
