"""The one way files come from the network: resumable, atomic, checksummed, safe among processes.

A file appears under its name only when it is complete and its checksum right. Until then its bytes lie in
``<name>.part`` in the same folder, with ``<name>.part.json`` saying which version of which address they
belong to; whatever ends a download (a cut connection, Ctrl-C, ``kill -9``, a full disk), the next call goes
on from there, provided the server still has that version (HTTP ``Range`` with ``If-Range``).

Where nobody publishes a checksum, the file's SHA-256 is written to ``<name>.sha256`` at its first use and
held against it ever after (unless the folder can only be read). That guards against change and corruption,
not against a first download that was bad already.
"""

import contextlib
import errno
import hashlib
import http.client
import json
import os
import shutil
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from time import sleep
from typing import IO, Any
from urllib.parse import urlsplit

from seedbed import __version__
from seedbed.checks import check_number

CHUNK = 1 << 18
DEFAULT_MAX_SIZE = 4 << 30
_RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class FetchError(OSError):
    """A file could not be brought here; the message says how to go without the network."""


class ChecksumError(FetchError):
    """What came is not the file that was asked for."""


class _Transient(Exception):  # noqa: N818 - not an error that anyone outside sees
    """One attempt failed; another may not."""


class _Permanent(Exception):  # noqa: N818
    """The address will not give the file."""


def get_data_home(data_home: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of downloaded data, made if need be.

    Parameters
    ----------
    data_home : path-like, optional
        The folder. When None, the environment variable ``SEEDBED_DATA``, else ``seedbed`` in the user's cache
        folder.

    Returns
    -------
    Path
        The folder.
    """
    chosen = data_home or os.environ.get("SEEDBED_DATA")
    if chosen:
        folder = Path(chosen).expanduser()
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches" / "seedbed"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "seedbed"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seedbed"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True)
class _Request:
    """A file that is wanted, and what is known of it."""

    urls: tuple[str, ...]
    path: Path
    checksum: str | None
    size: int | None
    max_size: int
    timeout: float
    retries: int
    verbose: int

    @property
    def part(self) -> Path:
        return self.path.with_name(self.path.name + ".part")

    @property
    def meta(self) -> Path:
        return self.path.with_name(self.path.name + ".part.json")

    @property
    def pin(self) -> Path:
        return self.path.with_name(self.path.name + ".sha256")

    def expected(self) -> str | None:
        """The checksum to hold the file against: the published one, else the one of the first use."""
        if self.checksum is None and self.pin.is_file():
            return f"sha256:{self.pin.read_text('ascii').split()[0]}"
        return self.checksum

    def by_hand(self) -> str:
        """What to do without a network."""
        facts = [
            *([f"{self.size:,} bytes"] if self.size else []),
            *([checksum] if (checksum := self.expected()) else []),
        ]
        return (
            f"To go without the network, put the file at {self.path}"
            + (f" ({', '.join(facts)})" if facts else "")
            + f". It is published at {' or '.join(self.urls)}"
        )


def fetch_file(
    url: str | Sequence[str],
    *,
    filename: str | None = None,
    checksum: str | None = None,
    size: int | None = None,
    max_size: int = DEFAULT_MAX_SIZE,
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
    force: bool = False,
    timeout: float = 30.0,
    retries: int = 3,
    verbose: int = 1,
) -> Path:
    """Return the path of a file, downloading it if it is not there.

    Parameters
    ----------
    url : str or sequence of str
        Where the file is; several are mirrors, tried in turn. ``https``, or ``http`` with a checksum.
    filename : str, optional
        Its path below the data folder, with forward slashes; the last part of the URL when None.
    checksum : str, optional
        ``"sha256:..."`` or ``"md5:..."``. When None, the SHA-256 of the first use is recorded and held
        against the file from then on.
    size : int, optional
        Its size in bytes.
    max_size : int
        Bytes beyond which a download is refused.
    data_home : path-like, optional
        Folder of downloaded data (:func:`get_data_home`).
    download_if_missing : bool
        Whether to download; otherwise the file must be there.
    force : bool
        Whether to download again even if it is there.
    timeout : float
        Seconds without any answer after which an attempt fails.
    retries : int
        Attempts per address that may fail in a row without bringing anything new.
    verbose : int
        0 hides the progress bar, which shows on terminals only.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        If an address, the file name or the checksum is malformed, or ``http`` comes without a checksum.
    FileNotFoundError
        If the file is not there and may not be downloaded.
    ChecksumError
        If what came has another checksum or size. No file is left.
    FetchError
        If no address gave the file. What came so far is kept for the next call.
    OSError
        If the disk is full. What came so far is kept for the next call.
    """
    request = _check_request(
        (url,) if isinstance(url, str) else tuple(url),
        filename,
        checksum,
        size,
        max_size,
        get_data_home(data_home),
        timeout,
        retries,
        verbose,
    )
    spoilt = _present(request) if not force else None
    if spoilt == "":
        return request.path
    if not download_if_missing:
        raise FileNotFoundError(f"{spoilt or f'{request.path} is missing'}. {request.by_hand()}")
    request.path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(request.path):
        # Another process may have brought it while this one waited.
        if force or _present(request) != "":
            _download(request)
    return request.path


def _check_request(
    urls: tuple[str, ...],
    filename: str | None,
    checksum: str | None,
    size: int | None,
    max_size: int,
    home: Path,
    timeout: float,
    retries: int,
    verbose: int,
) -> _Request:
    """Check every argument before any work."""
    if not urls:
        raise ValueError("url must hold at least one address")
    if checksum is not None:
        kind, _, digest = checksum.partition(":")
        lengths = {"md5": 32, "sha256": 64}
        if len(digest) != lengths.get(kind) or set(digest) - set("0123456789abcdef"):
            raise ValueError(f"checksum must be 'sha256:' or 'md5:' and lower-case digits, got {checksum!r}")
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must be an http(s) address, got {url!r}")
        if parts.scheme == "http" and checksum is None and parts.hostname not in _LOOPBACK:
            raise ValueError(
                f"an http address needs a checksum, since anyone on the way can alter it: {url!r}"
            )
    name = filename or PurePosixPath(urlsplit(urls[0]).path).name
    relative = PurePosixPath(name)
    if not relative.name or relative.is_absolute() or ".." in relative.parts or "\\" in name or ":" in name:
        raise ValueError(f"filename must be a relative path below the data folder, got {name!r}")
    if size is not None:
        check_number("size", size, low=0, integer=True)
    check_number("max_size", max_size, low=1, integer=True)
    check_number("timeout", timeout, low=0, closed="neither")
    check_number("retries", retries, low=1, integer=True)
    return _Request(urls, home.joinpath(*relative.parts), checksum, size, max_size, timeout, retries, verbose)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the file's lock: one process downloads, the others wait and find it done. Death releases it."""
    with path.with_name(f".{path.name}.lock").open("a+b") as handle:
        if sys.platform == "win32":
            import msvcrt

            while True:
                try:
                    msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
                    break
                except OSError:
                    sleep(0.1)
            try:
                yield
            finally:
                handle.seek(0)
                msvcrt.locking(handle.fileno(), msvcrt.LK_UNLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
            yield  # closing the file releases it


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as handle:
        # MD5 is what the publishers of older sets give; it tells a damaged file from a whole one.
        return hashlib.file_digest(handle, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _accept(request: _Request, candidate: Path) -> None:
    """Check a complete file, put it under its name and record its checksum if there is none.

    Raises ChecksumError if it is not the file.
    """
    actual_size = candidate.stat().st_size
    if request.size is not None and actual_size != request.size:
        raise ChecksumError(f"{request.path.name} has {actual_size:,} bytes, expected {request.size:,}")
    expected = request.expected()
    kind, _, digest = (expected or "sha256:").partition(":")
    actual = _digest(candidate, kind)
    if expected is not None and actual != digest:
        pinned = (
            f" (recorded at its first use in {request.pin}; delete that file to accept a new version)"
            if request.checksum is None
            else ""
        )
        raise ChecksumError(f"{request.path.name} has {kind} {actual}, expected {digest}{pinned}")
    if candidate != request.path:
        candidate.replace(request.path)
        request.meta.unlink(missing_ok=True)
    if expected is None:
        temporary = request.pin.with_name(request.pin.name + ".part")
        with contextlib.suppress(PermissionError):  # a shared folder that one may only read
            temporary.write_text(f"{actual}  {request.path.name}\n", "ascii")
            temporary.replace(request.pin)


def _present(request: _Request) -> str | None:
    """Say what is wrong with the file that is there: nothing (""), something, or None if there is no file."""
    if not request.path.is_file():
        return None
    try:
        _accept(request, request.path)
    except ChecksumError as error:
        return str(error)
    return ""


def _download(request: _Request) -> None:
    """Try the addresses in turn; verify; publish."""
    failures: list[str] = []
    wrong: ChecksumError | None = None
    for url in request.urls:
        # Bytes of two downloads may have been joined; before blaming the address, start afresh once.
        for fresh in (False, True):
            if fresh:
                _discard(request)
            resumed = False
            try:
                resumed = _bring(request, url)
                _accept(request, request.part)
                return
            except _Permanent as reason:
                failures.append(f"{url}: {reason}")
                break
            except ChecksumError as error:
                _discard(request)
                wrong = error
                failures.append(f"{url}: {error}")
                if not resumed:
                    break
    if wrong is not None:
        raise ChecksumError(f"{'; '.join(failures)}. No file was kept. {request.by_hand()}")
    raise FetchError(f"could not download {request.path.name}: {'; '.join(failures)}. {request.by_hand()}")


def _discard(request: _Request) -> None:
    request.part.unlink(missing_ok=True)
    request.meta.unlink(missing_ok=True)


def _bring(request: _Request, url: str) -> bool:
    """Bring the whole file into the part file, attempt after attempt.

    Returns whether its bytes came in more than one answer. Raises _Permanent once there is no more hope for
    this address.
    """
    failed = 0
    best = _size(request.part)
    while True:
        try:
            return _attempt(request, url)
        except _Transient as reason:
            # What counts is getting further than ever before, or a server that always drops would never end.
            failed = 0 if _size(request.part) > best else failed + 1
            best = max(best, _size(request.part))
            if failed >= request.retries:
                raise _Permanent(f"{reason} (after {failed} attempts)") from reason
            sleep(min(0.2 * 2**failed, 5.0))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _attempt(request: _Request, url: str) -> bool:
    """Ask once, from where the part file ends. Returns whether it had bytes that were kept."""
    have, headers = _resume_point(request, url)
    asked = urllib.request.Request(  # noqa: S310 - the scheme was checked
        url, headers={"User-Agent": f"seedbed/{__version__}", "Accept-Encoding": "identity", **headers}
    )
    try:
        with _opener().open(asked, timeout=request.timeout) as response:
            return _receive(request, url, response, have)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and have:
                total = error.headers.get("Content-Range", "").rpartition("/")[2]
                if total == str(have):
                    return True  # it was complete already
                _discard(request)
                raise _Transient("the server no longer has that range") from error
            reason = f"HTTP {error.code} {error.reason}"
            raise (_Transient if error.code in _RETRY_STATUS else _Permanent)(reason) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, socket.gaierror):
            raise _Permanent(f"no such host or no network ({error.reason})") from error
        raise _Transient(str(error.reason)) from error
    except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise _Transient(f"{type(error).__name__}: {error}") from error


def _resume_point(request: _Request, url: str) -> tuple[int, dict[str, str]]:
    """Say how many bytes are here, and the headers that ask for the rest of the same version only."""
    if not request.part.is_file():
        return 0, {}
    try:
        meta = json.loads(request.meta.read_text("utf-8"))
        known_url, validator = meta["url"], meta["validator"]
    except (OSError, ValueError, KeyError, TypeError):
        known_url = validator = None
    have = request.part.stat().st_size
    if known_url != url or not have or not (validator or request.expected()):
        return 0, {}
    # Without a validator the checksum has to tell, at the end, whether the halves belong together.
    return have, {"Range": f"bytes={have}-", **({"If-Range": validator} if validator else {})}


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects, but not from https to anything less."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        target = urlsplit(newurl)
        if target.scheme != "https" and (target.scheme != "http" or urlsplit(req.full_url).scheme == "https"):
            raise _Permanent(f"redirected to {newurl}, which is not as safe")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """An opener that speaks http and https only."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener


def _receive(request: _Request, url: str, response: Any, have: int) -> bool:
    """Write an answer to the part file. Returns whether it had bytes that were kept."""
    headers = response.headers
    length = int(headers["Content-Length"]) if headers.get("Content-Length", "").isdigit() else None
    if response.status == 206 and have:
        span, _, whole = headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        if span.partition("-")[0] != str(have):
            _discard(request)
            raise _Transient(f"asked for bytes from {have}, got {span!r}")
        total = int(whole) if whole.isdigit() else (have + length if length is not None else None)
        mode = "ab"
    else:  # a new version, or a server that knows no ranges: from the beginning
        have, total, mode = 0, length, "wb"
        etag = headers.get("ETag", "")
        validator = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
        request.meta.unlink(missing_ok=True)  # never beside bytes that it does not describe
    if request.size is not None and total is not None and total != request.size:
        _discard(request)
        raise ChecksumError(f"{request.path.name} has {total:,} bytes there, expected {request.size:,}")
    if total is not None and total > request.max_size:
        raise _Permanent(f"{total:,} bytes, more than the limit of {request.max_size:,}")
    if total is not None and shutil.disk_usage(request.path.parent).free < total - have:
        raise _disk_full(request, total - have)
    with request.part.open(mode, buffering=0) as part:
        if mode == "wb":
            request.meta.write_text(json.dumps({"url": url, "validator": validator}), "utf-8")
        here = _copy(request, response, part, have, total)
        os.fsync(part.fileno())
    if total is not None and here != total:
        raise _Transient(f"the connection ended after {here:,} of {total:,} bytes")
    return mode == "ab"


def _copy(request: _Request, response: Any, part: IO[bytes], have: int, total: int | None) -> int:
    """Copy the body, with a progress bar. Returns the size of the part file."""
    here = have
    with _progress(request, have, total) as advance:
        while True:
            try:
                chunk = response.read(CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise _Transient(f"{type(error).__name__}: {error}") from error
            if not chunk:
                return here
            here += len(chunk)
            if here > (request.max_size if total is None else total):
                _discard(request)
                raise _Permanent(f"more than {here - len(chunk):,} bytes came, over the limit")
            try:
                rest = memoryview(chunk)
                while rest:  # an unbuffered file may take less than it is given
                    rest = rest[part.write(rest) :]
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise _disk_full(request, None if total is None else total - here) from error
                raise
            advance(len(chunk))


def _disk_full(request: _Request, needed: int | None) -> OSError:
    amount = "" if needed is None else f", {needed:,} bytes more are needed"
    return OSError(
        errno.ENOSPC,
        f"disk full while downloading {request.path.name}{amount}; free some space and call again to go on",
        str(request.part),
    )


@contextlib.contextmanager
def _progress(request: _Request, have: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal."""
    if not request.verbose or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as Speed

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        Speed(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(request.path.name, total=total, completed=have)
        yield lambda count: bar.advance(task, count)
