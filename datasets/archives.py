"""Read and unpack archives from strangers: nothing outside the folder, no links, no more than a set size."""

import contextlib
import gzip
import io
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from seedbed.checks import check_number

MAX_SIZE = 4 << 30
MAX_MEMBERS = 500_000


class ArchiveError(ValueError):
    """An archive holds something that it should not."""


def read_gzip(path: str | Path, *, max_size: int = MAX_SIZE) -> bytes:
    """Decompress a gzip file into memory.

    Parameters
    ----------
    path : path-like
        The file.
    max_size : int
        Decompressed bytes beyond which to give up.

    Returns
    -------
    bytes
        The content.

    Raises
    ------
    ArchiveError
        If it is no whole gzip file or holds more than ``max_size`` bytes.
    """
    with _whole(path), gzip.open(path) as handle:
        return _read(handle, max_size, Path(path).name)


def read_members(path: str | Path, names: list[str], *, max_size: int = MAX_SIZE) -> dict[str, bytes]:
    """Read some files of a zip or tar archive into memory.

    Parameters
    ----------
    path : path-like
        The archive.
    names : list of str
        Names inside the archive, exactly.
    max_size : int
        Bytes beyond which to give up, over all files.

    Returns
    -------
    dict of str to bytes
        Content by name.

    Raises
    ------
    ArchiveError
        If a name is missing, or the files hold more than ``max_size`` bytes.
    """
    wanted = set(names)
    found: dict[str, bytes] = {}
    with _whole(path):
        for name, handle in files(path):
            plain = name.removeprefix("./")
            if plain in wanted:
                found[plain] = _read(handle, max_size - sum(map(len, found.values())), plain)
    if missing := sorted(wanted - found.keys()):
        raise ArchiveError(f"{Path(path).name} does not hold {', '.join(missing)}")
    return found


def unpack(
    path: str | Path, folder: str | Path, *, max_size: int = MAX_SIZE, max_members: int = MAX_MEMBERS
) -> Path:
    """Unpack a zip or tar archive into a new folder.

    Only regular files are written, each below the folder. The folder appears when all of it is there.

    Parameters
    ----------
    path : path-like
        The archive.
    folder : path-like
        The folder to make; it must not exist.
    max_size : int
        Bytes beyond which to give up, over all files, counted as they are written.
    max_members : int
        Number of files beyond which to give up.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    FileExistsError
        If the folder exists.
    ArchiveError
        If a name leads outside, comes twice, is a link or a device, or a limit is passed. Nothing is left.
    """
    check_number("max_size", max_size, low=0, integer=True)
    check_number("max_members", max_members, low=0, integer=True)
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(f"{folder} exists already")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with _whole(path):
            _write_files(path, staging, max_size, max_members)
        staging.chmod(0o755)
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return folder


def _write_files(path: str | Path, folder: Path, left: int, max_members: int) -> None:
    """Write the files of an archive below a folder, no more than ``left`` bytes."""
    for count, (name, handle) in enumerate(files(path), 1):
        if count > max_members:
            raise ArchiveError(f"{Path(path).name} holds more than {max_members:,} files")
        target = folder.joinpath(*_safe_parts(name))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as output:
                while chunk := handle.read(1 << 20):
                    left -= len(chunk)
                    if left < 0:
                        raise ArchiveError(f"{Path(path).name} holds more bytes than allowed")
                    output.write(chunk)
        except (FileExistsError, NotADirectoryError) as error:
            raise ArchiveError(f"{Path(path).name} holds {name!r} twice") from error


@contextlib.contextmanager
def _whole(path: str | Path) -> Iterator[None]:
    """Turn whatever a damaged archive raises into one error."""
    try:
        yield
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ArchiveError(f"{Path(path).name} is damaged or of another format: {error}") from error


def _safe_parts(name: str) -> tuple[str, ...]:
    """Parts of a member's path; none may lead outside, on any system."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or any(set(part) & set("\\:\0") for part in parts):
        raise ArchiveError(f"unsafe name in archive: {name!r}")
    return parts


def files(path: str | Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Go through the regular files of a zip or tar archive.

    Parameters
    ----------
    path : path-like
        The archive.

    Yields
    ------
    name : str
        The name inside the archive, as it stands there.
    handle : file object
        The content, open for reading until the next file is asked for.

    Raises
    ------
    ArchiveError
        At a link or a device.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                mode = info.external_attr >> 16
                if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise ArchiveError(f"link or device in archive: {info.filename!r}")
                if not info.is_dir():
                    with archive.open(info) as handle:
                        yield info.filename, handle
        return
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isdir():
                continue
            if not member.isreg():
                raise ArchiveError(f"link or device in archive: {member.name!r}")
            extracted = archive.extractfile(member)
            assert extracted is not None
            with extracted:
                yield member.name, extracted


def _read(handle: Any, max_size: int, name: str) -> bytes:
    """Read all, but no more than ``max_size`` bytes."""
    buffer = io.BytesIO()
    while chunk := handle.read(1 << 20):
        if buffer.tell() + len(chunk) > max_size:
            raise ArchiveError(f"{name} holds more than {max_size:,} bytes")
        buffer.write(chunk)
    return buffer.getvalue()
