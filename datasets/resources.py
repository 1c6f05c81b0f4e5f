"""Where the published files are, and their checksums.

The MD5 sums are the publishers', or those that torchvision, torchtext and other packages have long used for
the same files. They tell a damaged or changed file from the right one; they are no defence against forgery.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seedbed.datasets.fetch import fetch_file

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Resource:
    """A published file.

    Attributes
    ----------
    urls : tuple of str
        Where it is; mirrors after the first.
    filename : str
        Its path below the data folder.
    checksum : str or None
        As published; None where nobody publishes one.
    """

    urls: tuple[str, ...]
    filename: str
    checksum: str | None = None

    def path(self, data_home: PathLike | None, download_if_missing: bool) -> Path:
        """Return the file, downloaded if need be.

        Parameters
        ----------
        data_home : path-like, optional
            Folder of downloaded data.
        download_if_missing : bool
            Whether to download.

        Returns
        -------
        Path
            The file.
        """
        return fetch_file(
            self.urls,
            filename=self.filename,
            checksum=self.checksum,
            data_home=data_home,
            download_if_missing=download_if_missing,
        )


def _idx_resources(folder: str, bases: Sequence[str], checksums: Sequence[str]) -> dict[str, Resource]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return {
        name: Resource(
            tuple(f"{base}/{name}-ubyte.gz" for base in bases), f"{folder}/{name}-ubyte.gz", f"md5:{checksum}"
        )
        for name, checksum in zip(names, checksums, strict=True)
    }


_SERIES = "https://raw.githubusercontent.com/laiguokun/multivariate-time-series-data/master"

RESOURCES: dict[str, dict[str, Resource]] = {
    "mnist": _idx_resources(
        "mnist",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion_mnist": _idx_resources(
        "fashion_mnist",
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        ),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    "cifar10": {
        "archive": Resource(
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            "cifar10/cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
        )
    },
    "cifar100": {
        "archive": Resource(
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
            "cifar100/cifar-100-binary.tar.gz",
            "md5:03b5dce01913d631647c71ecec9e9cb8",
        )
    },
    "svhn": {
        "train": Resource(
            ("http://ufldl.stanford.edu/housenumbers/train_32x32.mat",),
            "svhn/train_32x32.mat",
            "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
        ),
        "test": Resource(
            ("http://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
            "svhn/test_32x32.mat",
            "md5:eb5a983be6a315427106f1b164d9cef3",
        ),
    },
    "tiny_imagenet": {
        "archive": Resource(
            ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
            "tiny_imagenet/tiny-imagenet-200.zip",
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
        )
    },
    "electricity": {
        "text": Resource(
            (f"{_SERIES}/electricity/electricity.txt.gz",),
            "series/electricity.txt.gz",
            "md5:07d51dc39c404599ead932937985957b",
        )
    },
    "exchange_rate": {
        "text": Resource(
            (f"{_SERIES}/exchange_rate/exchange_rate.txt.gz",),
            "series/exchange_rate.txt.gz",
            "md5:9dd5a9c8f8f324e234938400f232fa08",
        )
    },
    "pems_bay": {
        "csv": Resource(("https://zenodo.org/records/5724362/files/PEMS-BAY.csv",), "series/PEMS-BAY.csv")
    },
    "sst2": {
        "archive": Resource(
            ("https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",),
            "text/SST-2.zip",
            "md5:9f81648d4199384278b86e315dac217c",
        )
    },
    "subj": {
        "archive": Resource(
            ("https://www.cs.cornell.edu/people/pabo/movie-review-data/rotten_imdb.tar.gz",),
            "text/rotten_imdb.tar.gz",
        )
    },
    "vader": {
        "archive": Resource(
            (
                "https://github.com/cjhutto/vaderSentiment/raw/master/additional_resources/hutto_ICWSM_2014.tar.gz",
            ),
            "text/hutto_ICWSM_2014.tar.gz",
            "sha256:d5bb07d87474b3eb8d30b4deccbc23f19d742a6c5718fbacc65485b70b95c5fa",
        )
    },
    "glove": {
        "archive": Resource(
            (
                "https://downloads.cs.stanford.edu/nlp/data/glove.6B.zip",
                "https://nlp.stanford.edu/data/glove.6B.zip",
            ),
            "text/glove.6B.zip",
            "md5:056ea991adb4740ac6bf1b6d9b50408b",
        )
    },
    "helm": {
        "responses": Resource(
            ("https://huggingface.co/datasets/stair-lab/reeval/resolve/main/resmat.pkl",), "helm/resmat.pkl"
        )
    },
}
