"""Every reader on small files in the true format, through the download machinery."""

import gzip
import io
import struct
import tarfile
import urllib.error
import zipfile

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from seedbed import datasets
from seedbed.datasets import images, openml, resources, series, texts, vader
from seedbed.datasets.archives import ArchiveError


def idx(array, code=0x08):
    return (
        struct.pack(">BBBB", 0, 0, code, array.ndim)
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def tar(content):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def packed(content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(0x08, ">u1"), (0x09, ">i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")],
)
def test_idx_of_every_type(rng, code, kind):
    array = (rng.normal(size=(3, 2, 4)) * 50).astype(kind)
    read = images.read_idx(idx(array, code))
    assert_array_equal(read, array)
    assert read.dtype == np.dtype(kind).newbyteorder("=")
    assert read.dtype.isnative


def test_idx_headers_are_read_strictly():
    good = idx(np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert images.read_idx(good).shape == (2, 3)
    for bad, message in [
        (b"", "not an IDX file"),
        (b"\1" + good[1:], "not an IDX file"),
        (good[:2] + b"\x0a" + good[3:], "not an IDX file"),
        (good[:3] + b"\0" + good[4:], "not an IDX file"),
        (good[:9], "header cut short"),
        (good[:-1], r"IDX array \(2, 3\) needs 6 bytes, got 5"),
        (good + b"\0", "needs 6 bytes, got 7"),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, 2**31, 2**31, 2**31), "needs"),
    ]:
        with pytest.raises(ValueError, match=message):
            images.read_idx(bad)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_mnist_and_fashion_mnist(publish, tmp_path, rng, name):
    fetch = getattr(datasets, f"fetch_{name}")
    sets = {}
    for prefix, n in (("train", 7), ("t10k", 3)):
        sets[prefix] = (
            rng.integers(256, size=(n, 28, 28), dtype=np.uint8),
            rng.integers(10, size=n, dtype=np.uint8),
        )
        publish(name, f"{prefix}-images-idx3", gzip.compress(idx(sets[prefix][0])))
        publish(name, f"{prefix}-labels-idx1", gzip.compress(idx(sets[prefix][1])))
    with pytest.raises(FileNotFoundError, match="put the file at"):
        fetch(data_home=tmp_path, download_if_missing=False)
    bunch = fetch(data_home=tmp_path)
    assert_array_equal(bunch.data[:, 0], sets["train"][0])
    assert_array_equal(bunch.target, sets["train"][1])
    assert bunch.target.dtype == np.int64
    assert len(bunch.target_names) == 10
    X, y = fetch(subset="all", data_home=tmp_path, return_X_y=True, download_if_missing=True)
    assert X.shape == (10, 1, 28, 28)
    assert_array_equal(y[7:], sets["t10k"][1])
    with pytest.raises(ValueError, match="subset must be one of"):
        fetch(subset="valid", data_home=tmp_path)


def test_labels_and_images_must_belong_together(publish, tmp_path, rng):
    publish("mnist", "train-images-idx3", gzip.compress(idx(np.zeros((4, 28, 28), dtype=np.uint8))))
    publish("mnist", "train-labels-idx1", gzip.compress(idx(np.zeros(5, dtype=np.uint8))))
    with pytest.raises(ValueError, match="do not belong together"):
        datasets.fetch_mnist(data_home=tmp_path)


def test_cifar10(publish, tmp_path, rng):
    records = {}
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        labels = rng.integers(10, size=2, dtype=np.uint8)
        pixels = rng.integers(256, size=(2, 3, 32, 32), dtype=np.uint8)
        records[name] = labels, pixels
    body = tar(
        {
            f"cifar-10-batches-bin/{name}.bin": b"".join(
                bytes([label]) + image.tobytes() for label, image in zip(*record, strict=True)
            )
            for name, record in records.items()
        }
    )
    publish("cifar10", "archive", body)
    X, y = datasets.fetch_cifar10(subset="all", data_home=tmp_path, return_X_y=True)
    order = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    assert_array_equal(X, np.concatenate([records[name][1] for name in order]))
    assert_array_equal(y, np.concatenate([records[name][0] for name in order]))
    assert len(datasets.fetch_cifar10(subset="test", data_home=tmp_path).data) == 2
    assert datasets.fetch_cifar10(data_home=tmp_path).target_names[3] == "cat"


def test_cifar100_takes_the_fine_label(publish, tmp_path, rng):
    pixels = rng.integers(256, size=(3, 3072), dtype=np.uint8)
    body = b"".join(
        bytes([coarse, fine]) + image.tobytes() for coarse, fine, image in zip([1, 2, 3], [99, 0, 7], pixels)
    )
    names = "\n".join(f"name{i}" for i in range(100)) + "\n"
    publish(
        "cifar100",
        "archive",
        tar(
            {
                "cifar-100-binary/train.bin": body,
                "cifar-100-binary/test.bin": body[:3074],
                "cifar-100-binary/fine_label_names.txt": names.encode(),
            }
        ),
    )
    bunch = datasets.fetch_cifar100(data_home=tmp_path)
    assert_array_equal(bunch.target, [99, 0, 7])
    assert_array_equal(bunch.data.reshape(3, 3072), pixels)
    assert bunch.target_names[99] == "name99"


def test_cifar_records_are_read_strictly():
    record = bytes([3]) + bytes(3072)
    assert images.read_cifar(record, n_classes=10)[1].tolist() == [3]
    for bad in (b"", record[:-1], record + b"\0"):
        with pytest.raises(ValueError, match="whole records of 3073 bytes"):
            images.read_cifar(bad, n_classes=10)
    with pytest.raises(ValueError, match="labels must be below 3, got 3"):
        images.read_cifar(record, n_classes=3)


def test_svhn(publish, tmp_path, rng):
    from scipy.io import savemat

    pixels = rng.integers(256, size=(32, 32, 3, 4), dtype=np.uint8)
    buffer = io.BytesIO()
    savemat(buffer, {"X": pixels, "y": np.array([[10], [1], [9], [5]], dtype=np.uint8)})
    publish("svhn", "train", buffer.getvalue())
    bunch = datasets.fetch_svhn(data_home=tmp_path)
    assert_array_equal(bunch.target, [0, 1, 9, 5])
    assert_array_equal(bunch.data[2, 1], pixels[:, :, 1, 2])
    for bad, message in [
        ({"X": pixels}, "must hold X and y"),
        ({"X": pixels[:16], "y": np.ones((4, 1))}, "must be bytes of shape"),
        ({"X": pixels, "y": np.zeros((4, 1))}, "must hold 1 to 10"),
    ]:
        path = tmp_path / "bad.mat"
        savemat(path, bad)
        with pytest.raises(ValueError, match=message):
            images.read_svhn(path)


def jpeg(colour, size=(64, 64), mode="RGB"):
    from PIL import Image

    buffer = io.BytesIO()
    Image.new(mode, size, colour).save(buffer, "JPEG", quality=100)
    return buffer.getvalue()


def tiny(**more):
    root = "tiny-imagenet-200"
    return packed(
        {
            f"{root}/wnids.txt": "n02\nn01\n",
            f"{root}/train/n01/images/n01_0.JPEG": jpeg((250, 0, 0)),
            f"{root}/train/n01/n01_boxes.txt": "n01_0.JPEG\t0\t0\t1\t1\n",
            f"{root}/train/n02/images/n02_0.JPEG": jpeg(90, mode="L"),
            f"{root}/val/images/val_0.JPEG": jpeg((0, 0, 250)),
            f"{root}/val/images/val_1.JPEG": jpeg((0, 250, 0)),
            f"{root}/val/val_annotations.txt": "val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n",
            f"{root}/test/images/test_0.JPEG": jpeg((1, 1, 1)),
            **more,
        }
    )


def test_tiny_imagenet(publish, tmp_path):
    publish("tiny_imagenet", "archive", tiny())
    train = datasets.fetch_tiny_imagenet(data_home=tmp_path)
    assert train.target_names == ["n01", "n02"]
    assert_array_equal(train.target, [0, 1])
    assert train.data.shape == (2, 3, 64, 64)
    assert np.abs(train.data[0, :, 5, 5].astype(int) - [250, 0, 0]).max() < 6
    assert np.abs(train.data[1, :, 5, 5].astype(int) - 90).max() < 3  # grey becomes RGB
    val = datasets.fetch_tiny_imagenet(subset="val", data_home=tmp_path)
    assert_array_equal(val.target, [1, 0])
    assert np.abs(val.data[0, :, 5, 5].astype(int) - [0, 0, 250]).max() < 6


def test_tiny_imagenet_as_folders_refiles_the_validation_images(publish, tmp_path):
    record = publish("tiny_imagenet", "archive", tiny())
    for _ in range(2):
        folder = datasets.fetch_tiny_imagenet_folder(data_home=tmp_path)
    found = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*.JPEG") if "test" not in path.parts
    )
    assert found == [
        "train/n01/images/n01_0.JPEG",
        "train/n02/images/n02_0.JPEG",
        "val/n01/images/val_1.JPEG",
        "val/n02/images/val_0.JPEG",
    ]
    assert len(record.seen) == 1
    assert sorted(path.name for path in folder.parent.iterdir() if path.is_dir()) == ["tiny-imagenet-200"]


def test_tiny_imagenet_is_read_strictly(publish, tmp_path):
    root = "tiny-imagenet-200"
    publish(
        "tiny_imagenet", "archive", tiny(**{f"{root}/train/n02/images/n02_1.JPEG": jpeg((1, 1, 1), (65, 64))})
    )
    with pytest.raises(ArchiveError, match=r"\(65, 64\) pixels"):
        datasets.fetch_tiny_imagenet(data_home=tmp_path)
    for line in ("../evil\tn02\t0", "val_0.JPEG\t../n02\t0"):
        with pytest.raises(ArchiveError, match="not an annotation"):
            images._val_annotations(line.encode())


@pytest.mark.parametrize("name", ["electricity", "exchange_rate"])
def test_series_in_text(publish, tmp_path, rng, name):
    data = rng.normal(size=(20, 8)).round(4)
    text = "\n".join(",".join(f"{value}" for value in row) for row in data) + "\n"
    publish(name, "text", gzip.compress(text.encode()))
    bunch = getattr(datasets, f"fetch_{name}")(data_home=tmp_path)
    assert_array_equal(bunch.data, data)
    publish(name, "text", gzip.compress(text.replace("-", "nan,-", 1).encode()))
    with pytest.raises(ValueError):
        getattr(datasets, f"fetch_{name}")(data_home=tmp_path)
    publish(name, "text", gzip.compress(b"1,2\n3,nan\n"))
    with pytest.raises(ValueError, match="finite numbers"):
        getattr(datasets, f"fetch_{name}")(data_home=tmp_path)


def test_pems_bay_is_pinned_at_first_use(publish, tmp_path):
    text = ",400001,400017\n2017-01-01 00:00:00,71.4,0.0\n2017-01-01 00:05:00,71.6,67.5\n"
    record = publish("pems_bay", "csv", text.encode(), checksum=False)
    bunch = datasets.fetch_pems_bay(data_home=tmp_path)
    assert_array_equal(bunch.data, [[71.4, 0.0], [71.6, 67.5]])
    assert bunch.feature_names == ["400001", "400017"]
    assert bunch.times[1] - bunch.times[0] == np.timedelta64(5, "m")
    path = tmp_path / "series" / "PEMS-BAY.csv"
    path.write_text(text.replace("67.5", "68.5"))
    assert datasets.fetch_pems_bay(data_home=tmp_path).data[1, 1] == 67.5  # brought again
    assert len(record.seen) == 2
    with pytest.raises(ValueError, match="must have 3 numbers"):
        series.read_timed_csv(text.replace("400017", "400017,1").encode(), "x")


def test_sst2(publish, tmp_path):
    rows = ["hide new secretions \t0", "contains no wit , only labored gags \t0", 'a "quoted gem \t1']
    table = "\n".join(["sentence\tlabel", *rows, ""])
    publish(
        "sst2", "archive", packed({"SST-2/train.tsv": table, "SST-2/dev.tsv": "sentence\tlabel\ngood \t1\n"})
    )
    bunch = datasets.fetch_sst2(data_home=tmp_path)
    assert bunch.data == ["hide new secretions", "contains no wit , only labored gags", 'a "quoted gem']
    assert_array_equal(bunch.target, [0, 0, 1])
    assert datasets.fetch_sst2(subset="val", data_home=tmp_path).data == ["good"]
    for bad in ("a\tb\nx\t1\n", "sentence\tlabel\nx\t2\n"):
        publish("sst2", "archive", packed({"SST-2/train.tsv": bad}))
        with pytest.raises(ArchiveError):
            datasets.fetch_sst2(data_home=tmp_path)


def test_subj(publish, tmp_path):
    body = tar(
        {
            "plot.tok.gt9.5000": "the caf\xe9 opens .\nhe leaves .\n".encode("latin-1"),
            "quote.tok.gt9.5000": b"a joy from start to end .\n",
            "subjdata.README.1.0": b"read me",
        }
    )
    publish("subj", "archive", body, checksum=False)
    bunch = datasets.fetch_subj(data_home=tmp_path)
    assert bunch.data == ["the caf\xe9 opens .", "he leaves .", "a joy from start to end ."]
    assert_array_equal(bunch.target, [0, 0, 1])
    assert (tmp_path / "text" / "rotten_imdb.tar.gz.sha256").is_file()


def test_vader_ratings(publish, tmp_path):
    lines = [f"{1 + i // 12}_{i % 12}\t{i / 1000}\ttext {i}, d\xe9j\xe0 vu\twith a tab" for i in range(3708)]
    name = "hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt"
    publish("vader", "archive", tar({name: ("\n".join(lines) + "\n").encode("latin-1")}))
    bunch = datasets.fetch_vader_ratings("amazon", data_home=tmp_path)
    assert bunch.data[5] == "text 5, d\xe9j\xe0 vu\twith a tab"
    assert_allclose(bunch.rating, np.arange(3708) / 1000)
    assert_array_equal(bunch.group, 1 + np.arange(3708) // 12)
    scores = iter(np.linspace(-1, 1, 3708))
    with pytest.raises(ArchiveError):
        vader.write_table(
            tmp_path / "table.npz", lambda _: next(scores), tmp_path
        )  # the others are not there
    for bad in (lines[:-1], [*lines[:-1], "1_1\tx\ttext"], [*lines[:-1], "1_1\t0.5"]):
        publish("vader", "archive", tar({name: "\n".join(bad).encode("latin-1")}))
        with pytest.raises(ArchiveError):
            datasets.fetch_vader_ratings("amazon", data_home=tmp_path)


def test_glove(publish, tmp_path, rng):
    vectors = rng.normal(size=(3, 50)).astype(np.float32)
    lines = [
        f"{word} " + " ".join(map(str, row)) for word, row in zip(["the", "\u00e9t\u00e9", ". ."], vectors)
    ]
    other = "the " + " ".join(["0"] * 100) + "\n"
    publish(
        "glove", "archive", packed({"glove.6B.100d.txt": other, "glove.6B.50d.txt": "\n".join(lines) + "\n"})
    )
    bunch = datasets.fetch_glove(dim=50, data_home=tmp_path)
    assert bunch.words == {"the": 0, "\u00e9t\u00e9": 1, ". .": 2}
    assert_array_equal(bunch.data, vectors)
    few = datasets.fetch_glove(dim=50, vocabulary={"\u00e9t\u00e9", "unknown"}, data_home=tmp_path)
    assert few.words == {"\u00e9t\u00e9": 0}
    assert_array_equal(few.data, vectors[1:2])
    with pytest.raises(ArchiveError, match=r"does not hold glove.6B.300d.txt"):
        datasets.fetch_glove(data_home=tmp_path)
    for bad in (["the 1 2"], ["the 1 2 x"], ["the 1 2 nan"]):
        with pytest.raises(ValueError):
            texts.read_glove(bad, dim=3)


def test_openml_tasks():
    known = openml.OPENML_REGRESSION
    assert len(known) == len({task.task_id for task in known}) == len({task.data_id for task in known}) == 17
    with pytest.raises(ValueError, match=r"task must be one of cpu_act \(361072\)"):
        datasets.fetch_openml_regression("iris")


@pytest.mark.parametrize("task", ["abalone", 361280])
def test_openml_asks_for_the_right_set(monkeypatch, tmp_path, rng, task):
    import sklearn.datasets
    from sklearn.utils import Bunch

    asked = []

    def answer(**arguments):
        asked.append(arguments)
        return Bunch(
            data=rng.normal(size=(4177, 7)), target=np.arange(4177), feature_names=list("abcdefg"), DESCR=""
        )

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", answer)
    bunch = datasets.fetch_openml_regression(task, data_home=tmp_path)
    assert (bunch.name, bunch.task_id, bunch.data_id) == ("abalone", 361280, 45033)
    assert bunch.target.dtype == np.float64
    assert asked[0]["data_id"] == 45033
    assert asked[0]["data_home"] == str(tmp_path / "openml")
    X, y = datasets.fetch_openml_regression(task, data_home=tmp_path, return_X_y=True)
    assert X.shape == (4177, 7)
    assert_array_equal(y, np.arange(4177))
    with pytest.raises(ValueError, match="sulfur must have 10081 rows"):
        datasets.fetch_openml_regression("sulfur", data_home=tmp_path)


def test_openml_offline(monkeypatch, tmp_path):
    import sklearn.datasets

    def fail(**arguments):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fail)
    with pytest.raises(datasets.FetchError, match=rf"no network.*copy the folder {tmp_path / 'openml'}"):
        datasets.fetch_openml_regression("sulfur", data_home=tmp_path)


def test_resources_are_well_formed():
    for files in resources.RESOURCES.values():
        for resource in files.values():
            for url in resource.urls:
                assert url.startswith("https://") or resource.checksum, url
    unpinned = {name for name, files in resources.RESOURCES.items() for r in files.values() if not r.checksum}
    assert unpinned == {"helm", "pems_bay", "subj"}


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "arguments", "shape"),
    [
        ("mnist", {"subset": "all"}, (70000, 1, 28, 28)),
        ("fashion_mnist", {"subset": "all"}, (70000, 1, 28, 28)),
        ("cifar10", {"subset": "all"}, (60000, 3, 32, 32)),
        ("cifar100", {"subset": "all"}, (60000, 3, 32, 32)),
        ("svhn", {"subset": "all"}, (99289, 3, 32, 32)),
        ("tiny_imagenet", {"subset": "val"}, (10000, 3, 64, 64)),
        ("electricity", {}, (26304, 321)),
        ("exchange_rate", {}, (7588, 8)),
        ("pems_bay", {}, (52116, 325)),
        ("glove", {"dim": 50}, (400000, 50)),
    ],
)
def test_the_real_thing(name, arguments, shape):
    assert getattr(datasets, f"fetch_{name}")(**arguments).data.shape == shape


@pytest.mark.network
def test_the_real_texts():
    assert len(datasets.fetch_sst2().data) == 67349
    assert len(datasets.fetch_sst2(subset="val").data) == 872
    assert np.bincount(datasets.fetch_subj().target).tolist() == [5000, 5000]


@pytest.mark.network
@pytest.mark.parametrize("task", [task.name for task in openml.OPENML_REGRESSION])
def test_the_real_openml(task):
    datasets.fetch_openml_regression(task)
