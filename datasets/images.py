"""Images from the network: MNIST, Fashion-MNIST, CIFAR-10 and -100, SVHN, Tiny ImageNet."""

import io
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from seedbed.checks import check_choice, missing_extra
from seedbed.datasets.archives import ArchiveError, files, read_gzip, read_members, unpack
from seedbed.datasets.fetch import get_data_home
from seedbed.datasets.resources import RESOURCES, PathLike

Subset = Literal["train", "test", "all"]
Images = tuple[NDArray[np.uint8], NDArray[np.int64]]

FASHION_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
CIFAR10_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

# Third byte of an IDX header; numbers are stored big-endian.
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(data: bytes) -> NDArray[Any]:
    """Read an array in the IDX format, in which MNIST is published.

    Two zero bytes, one byte for the type, one for the number of axes, each axis as a 32-bit big-endian
    number, then the entries in row-major order, and nothing after.

    Parameters
    ----------
    data : bytes
        The whole file, decompressed.

    Returns
    -------
    ndarray
        The array, in the machine's byte order.

    Raises
    ------
    ValueError
        If the header is not IDX, or the entries are too few or too many.
    """
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX_TYPES or data[3] == 0:
        raise ValueError(f"not an IDX file: it begins with {data[:4]!r}")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise ValueError(f"IDX header cut short: {len(data)} bytes, expected at least {start}")
    shape = tuple(int(n) for n in np.frombuffer(data[4:start], dtype=">u4"))
    kind = np.dtype(IDX_TYPES[data[2]])
    expected = math.prod(shape) * kind.itemsize
    if len(data) - start != expected:
        raise ValueError(f"IDX array {shape} needs {expected} bytes, got {len(data) - start}")
    return np.frombuffer(data, dtype=kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def read_cifar(data: bytes, *, n_classes: int, n_labels: int = 1) -> Images:
    """Read images in CIFAR's binary format.

    A record is ``n_labels`` bytes, the last one the class, and 3,072 bytes of image: red, green, blue, each
    row by row.

    Parameters
    ----------
    data : bytes
        Any number of records.
    n_classes : int
        Number of classes.
    n_labels : int
        Label bytes of a record: 1 in CIFAR-10; 2 in CIFAR-100, coarse before fine.

    Returns
    -------
    images : ndarray of uint8, shape (n, 3, 32, 32)
        The images.
    labels : ndarray of int64, shape (n,)
        Their classes.

    Raises
    ------
    ValueError
        If the length is no whole number of records or a class is out of range.
    """
    size = n_labels + 3072
    if not data or len(data) % size:
        raise ValueError(f"CIFAR data must be whole records of {size} bytes, got {len(data)} bytes")
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    labels = records[:, n_labels - 1].astype(np.int64)
    if labels.max() >= n_classes:
        raise ValueError(f"CIFAR labels must be below {n_classes}, got {labels.max()}")
    return records[:, n_labels:].reshape(-1, 3, 32, 32).copy(), labels


def read_svhn(path: PathLike) -> Images:
    """Read the cropped digits of SVHN.

    Parameters
    ----------
    path : path-like
        A MATLAB file with ``X`` (32, 32, 3, n) and ``y`` (n, 1), in which 10 stands for the digit 0.

    Returns
    -------
    images : ndarray of uint8, shape (n, 3, 32, 32)
        The images.
    labels : ndarray of int64, shape (n,)
        Digits 0 to 9.

    Raises
    ------
    ValueError
        If it does not hold these arrays.
    """
    from scipy.io import loadmat

    content = loadmat(os.fspath(path), variable_names=["X", "y"])
    if not {"X", "y"} <= content.keys():
        raise ValueError(f"{path} must hold X and y, got {sorted(k for k in content if k[0] != '_')}")
    X, y = content["X"], content["y"].ravel()
    if X.dtype != np.uint8 or X.shape != (32, 32, 3, len(y)):
        raise ValueError(f"X must be bytes of shape (32, 32, 3, {len(y)}), got {X.dtype} {X.shape}")
    if y.min() < 1 or y.max() > 10:
        raise ValueError(f"y must hold 1 to 10, got {y.min()} to {y.max()}")
    return np.ascontiguousarray(X.transpose(3, 2, 0, 1)), y.astype(np.int64) % 10


def _bunch(parts: list[Images], target_names: list[str], descr: str, return_X_y: bool) -> Any:
    X = np.concatenate([part[0] for part in parts]) if len(parts) > 1 else parts[0][0]
    y = np.concatenate([part[1] for part in parts]) if len(parts) > 1 else parts[0][1]
    if return_X_y:
        return X, y
    return Bunch(data=X, target=y, target_names=target_names, DESCR=descr + "\n")


def _splits(subset: str) -> tuple[str, ...]:
    check_choice("subset", subset, ("train", "test", "all"))
    return ("train", "test") if subset == "all" else (subset,)


def _fetch_idx(name: str, subset: str, data_home: PathLike | None, download_if_missing: bool) -> list[Images]:
    parts = []
    for split in _splits(subset):
        prefix = "train" if split == "train" else "t10k"
        images, labels = (
            read_idx(read_gzip(RESOURCES[name][key].path(data_home, download_if_missing), max_size=1 << 28))
            for key in (f"{prefix}-images-idx3", f"{prefix}-labels-idx1")
        )
        if images.shape[1:] != (28, 28) or labels.shape != (len(images),):
            raise ValueError(
                f"{name}: images {images.shape} and labels {labels.shape} do not belong together"
            )
        parts.append((images[:, None], labels.astype(np.int64)))
    return parts


def fetch_mnist(
    *,
    subset: Subset = "train",
    data_home: PathLike | None = None,
    download_if_missing: bool = True,
    return_X_y: bool = False,
) -> Any:
    """Fetch MNIST: 70,000 handwritten digits (12 MB).

    Parameters
    ----------
    subset : {"train", "test", "all"}
        The 60,000 digits for training, the 10,000 for the test, or both in this order.
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.
    return_X_y : bool
        Whether to return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or tuple
        ``data`` uint8 (n, 1, 28, 28), ``target`` int64 (n,), ``target_names`` and ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If a file is missing and may not be downloaded.
    FetchError
        If a file cannot be downloaded; the message says where to put it by hand.

    See Also
    --------
    load_mnist_5k : 5,000 of these digits, without the network.
    """
    parts = _fetch_idx("mnist", subset, data_home, download_if_missing)
    descr = "MNIST (LeCun, Cortes, Burges): handwritten digits, 28 x 28, 0 (paper) to 255 (ink)."
    return _bunch(parts, [str(digit) for digit in range(10)], descr, return_X_y)


def fetch_fashion_mnist(
    *,
    subset: Subset = "train",
    data_home: PathLike | None = None,
    download_if_missing: bool = True,
    return_X_y: bool = False,
) -> Any:
    """Fetch Fashion-MNIST: 70,000 pictures of clothes (31 MB).

    Parameters
    ----------
    subset : {"train", "test", "all"}
        The 60,000 pictures for training, the 10,000 for the test, or both in this order.
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.
    return_X_y : bool
        Whether to return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or tuple
        ``data`` uint8 (n, 1, 28, 28), ``target`` int64 (n,), ``target_names`` and ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If a file is missing and may not be downloaded.
    FetchError
        If a file cannot be downloaded; the message says where to put it by hand.
    """
    parts = _fetch_idx("fashion_mnist", subset, data_home, download_if_missing)
    return _bunch(
        parts, list(FASHION_NAMES), "Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017), 28 x 28.", return_X_y
    )


def fetch_cifar10(
    *,
    subset: Subset = "train",
    data_home: PathLike | None = None,
    download_if_missing: bool = True,
    return_X_y: bool = False,
) -> Any:
    """Fetch CIFAR-10: 60,000 colour images in 10 classes (170 MB), in its binary version.

    Parameters
    ----------
    subset : {"train", "test", "all"}
        The 50,000 images for training, the 10,000 for the test, or both in this order.
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.
    return_X_y : bool
        Whether to return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or tuple
        ``data`` uint8 (n, 3, 32, 32), ``target`` int64 (n,), ``target_names`` and ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If the file is missing and may not be downloaded.
    FetchError
        If the file cannot be downloaded; the message says where to put it by hand.
    """
    names = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
    wanted = [f"cifar-10-batches-bin/{name}" for split in _splits(subset) for name in names[split]]
    archive = RESOURCES["cifar10"]["archive"].path(data_home, download_if_missing)
    content = read_members(archive, wanted, max_size=1 << 29)
    parts = [read_cifar(content[name], n_classes=10) for name in wanted]
    return _bunch(parts, list(CIFAR10_NAMES), "CIFAR-10 (Krizhevsky, 2009), 32 x 32, RGB.", return_X_y)


def fetch_cifar100(
    *,
    subset: Subset = "train",
    data_home: PathLike | None = None,
    download_if_missing: bool = True,
    return_X_y: bool = False,
) -> Any:
    """Fetch CIFAR-100: 60,000 colour images in 100 classes (168 MB), in its binary version.

    Parameters
    ----------
    subset : {"train", "test", "all"}
        The 50,000 images for training, the 10,000 for the test, or both in this order.
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.
    return_X_y : bool
        Whether to return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or tuple
        ``data`` uint8 (n, 3, 32, 32), ``target`` int64 (n,), the fine classes, ``target_names`` and
        ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If the file is missing and may not be downloaded.
    FetchError
        If the file cannot be downloaded; the message says where to put it by hand.
    """
    wanted = [f"cifar-100-binary/{split}.bin" for split in _splits(subset)]
    labels = "cifar-100-binary/fine_label_names.txt"
    archive = RESOURCES["cifar100"]["archive"].path(data_home, download_if_missing)
    content = read_members(archive, [*wanted, labels], max_size=1 << 29)
    parts = [read_cifar(content[name], n_classes=100, n_labels=2) for name in wanted]
    names = content[labels].decode("ascii").split()
    return _bunch(parts, names, "CIFAR-100 (Krizhevsky, 2009), 32 x 32, RGB, fine classes.", return_X_y)


def fetch_svhn(
    *,
    subset: Subset = "train",
    data_home: PathLike | None = None,
    download_if_missing: bool = True,
    return_X_y: bool = False,
) -> Any:
    """Fetch SVHN, cropped: 99,289 house numbers' digits (182 MB for training, 64 MB for the test).

    Parameters
    ----------
    subset : {"train", "test", "all"}
        The 73,257 digits for training, the 26,032 for the test, or both in this order.
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.
    return_X_y : bool
        Whether to return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or tuple
        ``data`` uint8 (n, 3, 32, 32), ``target`` int64 (n,), ``target_names`` and ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If a file is missing and may not be downloaded.
    FetchError
        If a file cannot be downloaded; the message says where to put it by hand.
    """
    parts = [
        read_svhn(RESOURCES["svhn"][split].path(data_home, download_if_missing)) for split in _splits(subset)
    ]
    descr = "SVHN, cropped digits (Netzer et al., 2011), 32 x 32, RGB."
    return _bunch(parts, [str(digit) for digit in range(10)], descr, return_X_y)


TINY = "tiny-imagenet-200"


def fetch_tiny_imagenet(
    *,
    subset: Literal["train", "val"] = "train",
    data_home: PathLike | None = None,
    download_if_missing: bool = True,
    return_X_y: bool = False,
) -> Any:
    """Fetch Tiny ImageNet: images of 64 x 64 pixels in 200 classes (248 MB).

    The labels of its test images were never published.

    Parameters
    ----------
    subset : {"train", "val"}
        The 100,000 images for training (1.2 GB in memory) or the 10,000 for validation.
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.
    return_X_y : bool
        Whether to return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or tuple
        ``data`` uint8 (n, 3, 64, 64), ``target`` int64 (n,), ``target_names`` (WordNet ids in ascending
        order, which the classes number) and ``DESCR``.

    Raises
    ------
    ImportError
        If pillow is not installed.
    FileNotFoundError
        If the file is missing and may not be downloaded.
    FetchError
        If the file cannot be downloaded; the message says where to put it by hand.
    """
    check_choice("subset", subset, ("train", "val"))
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise missing_extra("pillow", "data", "fetch_tiny_imagenet") from error
    archive = RESOURCES["tiny_imagenet"]["archive"].path(data_home, download_if_missing)
    notes = read_members(archive, [f"{TINY}/wnids.txt", f"{TINY}/val/val_annotations.txt"], max_size=1 << 24)
    wnids = sorted(notes[f"{TINY}/wnids.txt"].decode("ascii").split())
    code = {wnid: i for i, wnid in enumerate(wnids)}
    annotated = _val_annotations(notes[f"{TINY}/val/val_annotations.txt"])
    images, labels = [], []
    for name, handle in files(archive):
        if not (name.startswith(f"{TINY}/{subset}/") and name.endswith(".JPEG")):
            continue
        file = name.rpartition("/")[2]
        wnid = annotated[file] if subset == "val" else name.split("/")[2]
        images.append(_decode_jpeg(handle, name))
        labels.append(code[wnid])
    if not images:
        raise ArchiveError(f"{archive.name} holds no images for {subset}")
    part = np.stack(images), np.array(labels, dtype=np.int64)
    return _bunch([part], wnids, "Tiny ImageNet (Stanford CS231n), 64 x 64, RGB.", return_X_y)


def fetch_tiny_imagenet_folder(
    *, data_home: PathLike | None = None, download_if_missing: bool = True
) -> Path:
    """Fetch Tiny ImageNet and unpack it into folders, one per class, for the validation images too.

    Parameters
    ----------
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.

    Returns
    -------
    Path
        The folder with ``train/<class>/images/*.JPEG`` and ``val/<class>/images/*.JPEG``.

    Raises
    ------
    FileNotFoundError
        If the file is missing and may not be downloaded.
    FetchError
        If the file cannot be downloaded; the message says where to put it by hand.
    """
    folder = get_data_home(data_home) / "tiny_imagenet" / TINY
    if folder.is_dir():
        return folder
    archive = RESOURCES["tiny_imagenet"]["archive"].path(data_home, download_if_missing)
    staging = Path(tempfile.mkdtemp(prefix=".unpack-", dir=folder.parent))
    try:
        tree = unpack(archive, staging / "all") / TINY
        annotations = (tree / "val" / "val_annotations.txt").read_bytes()
        for file, wnid in _val_annotations(annotations).items():
            target = tree / "val" / wnid / "images"
            target.mkdir(parents=True, exist_ok=True)
            (tree / "val" / "images" / file).rename(target / file)
        (tree / "val" / "images").rmdir()
        tree.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process has just finished the same work
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def _val_annotations(data: bytes) -> dict[str, str]:
    """Class of each validation image: the first two columns of a table separated by tabs."""
    classes = {}
    for line in data.decode("ascii").splitlines():
        file, wnid = line.split("\t")[:2]
        if "/" in file or not (wnid[:1] == "n" and wnid[1:].isdigit()):
            raise ArchiveError(f"not an annotation: {line!r}")
        classes[file] = wnid
    return classes


def _decode_jpeg(handle: IO[bytes], name: str) -> NDArray[np.uint8]:
    """Decode an image of 64 x 64 pixels into (3, 64, 64); a few of the set are grey."""
    from PIL import Image

    with Image.open(io.BytesIO(handle.read(1 << 20)), formats=["JPEG"]) as image:
        if image.size != (64, 64):
            raise ArchiveError(f"{name} has {image.size} pixels, expected (64, 64)")
        return np.asarray(image.convert("RGB"), dtype=np.uint8).transpose(2, 0, 1)
