"""The download machinery against a server that cuts, lies, changes and fails."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seedbed.datasets import FetchError, fetch, fetch_file, get_data_home

BODY = bytes(range(256)) * 4096  # 1 MiB
SHA = f"sha256:{hashlib.sha256(BODY).hexdigest()}"
MD5 = f"md5:{hashlib.md5(BODY).hexdigest()}"


def leftovers(folder):
    """Visible files other than the one that was asked for."""
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".")


@pytest.mark.parametrize("checksum", [SHA, MD5])
def test_a_file_is_downloaded_once_and_kept(server, tmp_path, checksum):
    url, record = server.serve("/a.bin", BODY)
    for _ in range(2):
        path = fetch_file(url, checksum=checksum, size=len(BODY), data_home=tmp_path)
        assert path == tmp_path / "a.bin"
        assert path.read_bytes() == BODY
    assert len(record.seen) == 1
    assert leftovers(tmp_path) == ["a.bin"]
    fetch_file(url, checksum=checksum, data_home=tmp_path, force=True)
    assert len(record.seen) == 2


def test_a_filename_may_name_a_folder(server, tmp_path):
    url, _ = server.serve("/a.bin", BODY)
    path = fetch_file(url, filename="set/part/b.bin", checksum=SHA, data_home=tmp_path)
    assert path == tmp_path / "set" / "part" / "b.bin"


@pytest.mark.parametrize("validator", [{"etag": '"v1"'}, {"modified": "Sat, 01 Jan 2022 00:00:00 GMT"}])
def test_a_cut_connection_is_resumed_where_it_broke(server, tmp_path, quick, validator):
    url, record = server.serve("/a.bin", BODY, drop_after=[300_000, 200_000], **validator)
    path = fetch_file(url, checksum=SHA, data_home=tmp_path)
    assert path.read_bytes() == BODY
    mark = next(iter(validator.values()))
    assert record.seen == [
        (None, None, 200), ("bytes=300000-", mark, 206), ("bytes=500000-", mark, 206)
    ]  # fmt: skip
    assert leftovers(tmp_path) == ["a.bin"]


def test_without_a_validator_the_checksum_allows_a_resume(server, tmp_path, quick):
    url, record = server.serve("/a.bin", BODY, drop_after=[300_000])
    fetch_file(url, checksum=SHA, data_home=tmp_path)
    assert record.seen[1] == ("bytes=300000-", None, 206)


def test_without_validator_and_checksum_it_starts_again(server, tmp_path, quick):
    url, record = server.serve("/a.bin", BODY, drop_after=[300_000])
    assert fetch_file(url, data_home=tmp_path).read_bytes() == BODY
    assert record.seen[1] == (None, None, 200)


def test_a_weak_etag_is_no_validator(server, tmp_path, quick):
    url, record = server.serve("/a.bin", BODY, etag='W/"v1"', drop_after=[300_000])
    fetch_file(url, data_home=tmp_path)
    assert record.seen[1] == (None, None, 200)


def test_a_server_without_ranges_sends_it_all_again(server, tmp_path, quick):
    url, record = server.serve("/a.bin", BODY, etag='"v1"', ranges=False, drop_after=[300_000])
    assert fetch_file(url, checksum=SHA, data_home=tmp_path).read_bytes() == BODY
    assert record.seen == [(None, None, 200), ("bytes=300000-", '"v1"', 200)]


def test_a_server_that_always_drops_is_given_up(server, tmp_path, quick):
    url, record = server.serve("/a.bin", BODY, ranges=False, drop_after=[300_000] * 50)
    with pytest.raises(FetchError, match=r"300,000 of 1,048,576 bytes \(after 3 attempts\)"):
        fetch_file(url, checksum=SHA, data_home=tmp_path)
    assert len(record.seen) == 4  # the first brought something new, three did not
    assert (tmp_path / "a.bin.part").stat().st_size == 300_000
    assert not (tmp_path / "a.bin").exists()


def test_a_slow_but_steady_server_is_not_given_up(server, tmp_path, quick):
    url, record = server.serve("/a.bin", BODY, etag='"v1"', drop_after=[1 << 16] * 15)
    assert fetch_file(url, checksum=SHA, data_home=tmp_path).read_bytes() == BODY
    assert len(record.seen) == 16


def test_a_file_that_changed_between_attempts_is_not_joined(server, tmp_path, quick):
    url, record = server.serve("/a.bin", BODY, etag='"v1"', drop_after=[300_000] * 10, ranges=False)
    with pytest.raises(FetchError):
        fetch_file(url, data_home=tmp_path)
    new = BODY[::-1]
    record.body, record.etag, record.drop_after, record.ranges = new, '"v2"', [], True
    assert fetch_file(url, data_home=tmp_path).read_bytes() == new
    assert record.seen[-1] == ("bytes=300000-", '"v1"', 200)


def test_halves_of_two_versions_are_found_out_and_brought_anew(server, tmp_path, quick):
    """No validator: the joined halves fail the checksum, and one fresh start follows."""
    url, record = server.serve("/a.bin", BODY)
    (tmp_path / "a.bin.part").write_bytes(b"x" * 300_000)
    (tmp_path / "a.bin.part.json").write_text(json.dumps({"url": url, "validator": None}))
    assert fetch_file(url, checksum=SHA, data_home=tmp_path).read_bytes() == BODY
    assert record.seen == [("bytes=300000-", None, 206), (None, None, 200)]


def test_a_part_of_unknown_origin_is_thrown_away(server, tmp_path):
    url, record = server.serve("/a.bin", BODY, etag='"v1"')
    (tmp_path / "a.bin.part").write_bytes(BODY[:300_000])
    fetch_file(url, checksum=SHA, data_home=tmp_path)
    assert record.seen == [(None, None, 200)]


def test_a_part_that_is_complete_already_is_taken(server, tmp_path):
    url, record = server.serve("/a.bin", BODY, etag='"v1"')
    (tmp_path / "a.bin.part").write_bytes(BODY)
    (tmp_path / "a.bin.part.json").write_text(json.dumps({"url": url, "validator": '"v1"'}))
    assert fetch_file(url, checksum=SHA, data_home=tmp_path).read_bytes() == BODY
    assert record.seen == [(f"bytes={len(BODY)}-", '"v1"', 416)]


def test_a_part_longer_than_the_file_is_thrown_away(server, tmp_path, quick):
    url, record = server.serve("/a.bin", BODY, etag='"v1"')
    (tmp_path / "a.bin.part").write_bytes(BODY + b"more")
    (tmp_path / "a.bin.part.json").write_text(json.dumps({"url": url, "validator": '"v1"'}))
    assert fetch_file(url, checksum=SHA, data_home=tmp_path).read_bytes() == BODY
    assert [status for *_, status in record.seen] == [416, 200]


def test_a_range_that_was_not_asked_for_is_refused(server, tmp_path, quick):
    url, record = server.serve("/a.bin", BODY, etag='"v1"', drop_after=[300_000], shift=5)
    assert fetch_file(url, checksum=SHA, data_home=tmp_path).read_bytes() == BODY
    assert [status for *_, status in record.seen] == [200, 206, 200]


def test_a_body_without_length_cannot_pass_the_limit(server, tmp_path, quick):
    url, _ = server.serve("/a.bin", BODY, length=False)
    with pytest.raises(FetchError, match="over the limit"):
        fetch_file(url, checksum=SHA, data_home=tmp_path, max_size=len(BODY) - 1)
    assert leftovers(tmp_path) == []
    assert fetch_file(url, checksum=SHA, data_home=tmp_path, max_size=len(BODY)).read_bytes() == BODY


def test_a_length_beyond_the_limit_is_refused_before_any_byte(server, tmp_path):
    url, _ = server.serve("/a.bin", BODY)
    with pytest.raises(FetchError, match="more than the limit of 1,000"):
        fetch_file(url, checksum=SHA, data_home=tmp_path, max_size=1000)
    assert leftovers(tmp_path) == []


def test_a_wrong_checksum_leaves_no_file(server, tmp_path):
    url, record = server.serve("/a.bin", BODY[:-1] + b"!", etag='"v1"')
    with pytest.raises(fetch.ChecksumError, match=rf"expected {SHA[7:]}.*No file was kept"):
        fetch_file(url, checksum=SHA, data_home=tmp_path)
    assert leftovers(tmp_path) == []
    assert len(record.seen) == 1


def test_a_wrong_size_leaves_no_file(server, tmp_path):
    url, _ = server.serve("/a.bin", BODY)
    with pytest.raises(fetch.ChecksumError, match=r"1,048,576 bytes there, expected 7"):
        fetch_file(url, checksum=SHA, size=7, data_home=tmp_path)
    assert leftovers(tmp_path) == []


def test_a_damaged_file_is_replaced(server, tmp_path):
    url, _ = server.serve("/a.bin", BODY)
    (tmp_path / "a.bin").write_bytes(b"damaged")
    with pytest.raises(FileNotFoundError, match=r"a\.bin has sha256"):
        fetch_file(url, checksum=SHA, data_home=tmp_path, download_if_missing=False)
    assert fetch_file(url, checksum=SHA, data_home=tmp_path).read_bytes() == BODY


def test_mirrors_are_tried_in_turn(server, tmp_path, quick):
    gone, _ = server.serve("/gone", statuses=[404])
    bad, _ = server.serve("/bad", b"something else")
    good, record = server.serve("/good", BODY)
    path = fetch_file([gone, bad, good], filename="a.bin", checksum=SHA, data_home=tmp_path)
    assert path.read_bytes() == BODY
    assert len(record.seen) == 1


@pytest.mark.parametrize(("status", "asked"), [(404, 1), (403, 1), (500, 3), (503, 3), (429, 3)])
def test_errors_that_may_pass_are_retried_others_not(server, tmp_path, quick, status, asked):
    url, record = server.serve("/a.bin", BODY, statuses=[status] * 9)
    with pytest.raises(FetchError, match=f"HTTP {status}"):
        fetch_file(url, checksum=SHA, data_home=tmp_path)
    assert len(record.seen) == asked


def test_it_survives_two_server_errors(server, tmp_path, quick):
    url, record = server.serve("/a.bin", BODY, statuses=[500, 503])
    assert fetch_file(url, checksum=SHA, data_home=tmp_path).read_bytes() == BODY
    assert len(record.seen) == 3


def test_a_silent_server_times_out(server, tmp_path, quick):
    url, _ = server.serve("/a.bin", BODY, delay=3.0)
    with pytest.raises(FetchError, match="timed out"):
        fetch_file(url, checksum=SHA, data_home=tmp_path, timeout=0.1, retries=1)


def test_redirects_are_followed_but_not_to_other_schemes(server, tmp_path):
    target, _ = server.serve("/target", BODY)
    url, _ = server.serve("/a.bin", redirect=target)
    assert fetch_file(url, checksum=SHA, data_home=tmp_path).read_bytes() == BODY
    url, _ = server.serve("/b.bin", redirect="ftp://127.0.0.1/secret")
    with pytest.raises(FetchError, match="not as safe"):
        fetch_file(url, checksum=SHA, data_home=tmp_path)
    url, _ = server.serve("/c.bin", redirect="file:///etc/hostname")
    with pytest.raises(FetchError, match="not allowed"):
        fetch_file(url, checksum=SHA, data_home=tmp_path)


def test_a_redirect_from_https_to_http_is_refused():
    import urllib.request

    handler = fetch._Redirects()
    asked = urllib.request.Request("https://example.org/a")
    with pytest.raises(fetch._Permanent, match="not as safe"):
        handler.redirect_request(asked, None, 302, "", {}, "http://example.org/a")


def test_first_use_pins_the_file(server, tmp_path):
    url, record = server.serve("/a.bin", BODY)
    fetch_file(url, data_home=tmp_path)
    assert (tmp_path / "a.bin.sha256").read_text() == f"{SHA[7:]}  a.bin\n"
    record.body = BODY[::-1]
    with pytest.raises(fetch.ChecksumError, match="recorded at its first use"):
        fetch_file(url, data_home=tmp_path, force=True)
    assert (tmp_path / "a.bin").read_bytes() == BODY
    (tmp_path / "a.bin").write_bytes(b"altered")
    record.body = BODY
    assert fetch_file(url, data_home=tmp_path).read_bytes() == BODY


def test_offline_the_error_says_what_to_put_where(tmp_path, quick):
    url = "https://nowhere.invalid/data/a.bin"
    with pytest.raises(FetchError) as caught:
        fetch_file(url, filename="set/a.bin", checksum=SHA, size=len(BODY), data_home=tmp_path)
    text = str(caught.value)
    assert f"put the file at {tmp_path / 'set' / 'a.bin'} (1,048,576 bytes, {SHA})" in text
    assert url in text
    (tmp_path / "set" / "a.bin").write_bytes(BODY)  # what it says helps
    assert fetch_file(url, filename="set/a.bin", checksum=SHA, data_home=tmp_path).read_bytes() == BODY


def test_a_missing_file_is_not_downloaded_if_that_is_forbidden(server, tmp_path):
    url, record = server.serve("/a.bin", BODY)
    with pytest.raises(FileNotFoundError, match=r"is missing\. To go without the network, put the file at"):
        fetch_file(url, checksum=SHA, data_home=tmp_path, download_if_missing=False)
    assert record.seen == []


def test_a_refused_connection_is_retried_then_explained(tmp_path, quick):
    with pytest.raises(FetchError, match=r"after 3 attempts\).*put the file at"):
        fetch_file("http://127.0.0.1:9/a.bin", checksum=SHA, data_home=tmp_path)


class _FullDisk:
    """A file on which no more than so many bytes fit."""

    def __init__(self, handle, room):
        self.handle, self.room = handle, room

    def write(self, data):
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self.handle.write(data[: self.room])  # a short write, as the system does it
        self.room -= taken
        return taken

    def fileno(self):
        return self.handle.fileno()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.handle.close()


def test_a_full_disk_leaves_a_part_that_goes_on(server, tmp_path, monkeypatch):
    url, record = server.serve("/a.bin", BODY, etag='"v1"')
    opened = Path.open

    def crowded(self, mode="r", *args, **kwargs):
        handle = opened(self, mode, *args, **kwargs)
        return _FullDisk(handle, 400_000) if self.name == "a.bin.part" and "b" in mode else handle

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", crowded)
        with pytest.raises(OSError, match=r"disk full while downloading a\.bin") as caught:
            fetch_file(url, checksum=SHA, data_home=tmp_path)
    assert caught.value.errno == errno.ENOSPC
    assert not (tmp_path / "a.bin").exists()
    assert (tmp_path / "a.bin.part").read_bytes() == BODY[:400_000]
    assert fetch_file(url, checksum=SHA, data_home=tmp_path).read_bytes() == BODY
    assert record.seen[-1] == ("bytes=400000-", '"v1"', 206)


def test_too_little_space_is_noticed_before_the_download(server, tmp_path, monkeypatch):
    url, _ = server.serve("/a.bin", BODY)
    usage = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match="1,048,576 bytes more are needed"):
        fetch_file(url, checksum=SHA, data_home=tmp_path)
    assert leftovers(tmp_path) == []


def test_interrupting_keeps_what_came(server, tmp_path, monkeypatch):
    url, record = server.serve("/a.bin", BODY, etag='"v1"')
    with monkeypatch.context() as patch:

        def interrupt(count):
            raise KeyboardInterrupt

        patch.setattr(fetch, "_progress", lambda *args: fetch.contextlib.nullcontext(interrupt))
        with pytest.raises(KeyboardInterrupt):
            fetch_file(url, checksum=SHA, data_home=tmp_path)
    have = (tmp_path / "a.bin.part").stat().st_size
    assert 0 < have < len(BODY)
    assert fetch_file(url, checksum=SHA, data_home=tmp_path).read_bytes() == BODY
    assert record.seen[-1] == (f"bytes={have}-", '"v1"', 206)


SCRIPT = """
import sys
from seedbed.datasets import fetch_file
fetch_file(sys.argv[1], checksum=sys.argv[2], data_home=sys.argv[3])
"""


def _start(url, home):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, url, SHA, str(home)])


def test_two_processes_download_once(server, tmp_path):
    url, record = server.serve("/a.bin", BODY, etag='"v1"', delay=0.05)
    processes = [_start(url, tmp_path) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert len(record.seen) == 1
    assert leftovers(tmp_path) == ["a.bin"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_download_goes_on(server, tmp_path):
    url, record = server.serve("/a.bin", BODY, etag='"v1"', delay=0.2)
    process = _start(url, tmp_path)
    part = tmp_path / "a.bin.part"
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    have = part.stat().st_size
    assert 0 < have < len(BODY)
    assert not (tmp_path / "a.bin").exists()
    record.delay = 0.0
    assert fetch_file(url, checksum=SHA, data_home=tmp_path).read_bytes() == BODY  # the lock died with it
    assert record.seen[-1] == (f"bytes={have}-", '"v1"', 206)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "ftp://example.org/a"}, "url must be an http"),
        ({"url": "file:///etc/passwd"}, "url must be an http"),
        ({"url": "https:///a"}, "url must be an http"),
        ({"url": []}, "at least one address"),
        ({"url": "http://example.org/a", "checksum": None}, "needs a checksum"),
        ({"filename": "../a"}, "filename must be a relative path"),
        ({"filename": "/a"}, "filename must be a relative path"),
        ({"filename": "a/../../b"}, "filename must be a relative path"),
        ({"filename": "C:\\a"}, "filename must be a relative path"),
        ({"url": "https://example.org/"}, "filename must be a relative path"),
        ({"checksum": "sha256:abc"}, "checksum must be"),
        ({"checksum": "crc:" + "0" * 32}, "checksum must be"),
        ({"checksum": "md5:" + "G" * 32}, "checksum must be"),
        ({"retries": 0}, "retries must be"),
        ({"timeout": 0}, "timeout must be"),
        ({"max_size": 0}, "max_size must be"),
        ({"size": -1}, "size must be"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, arguments, message):
    good = {"url": "https://example.org/a.bin", "checksum": SHA}
    with pytest.raises(ValueError, match=message):
        fetch_file(**{**good, **arguments}, data_home=tmp_path)


def test_the_progress_bar_shows_on_a_terminal_only(server, tmp_path, monkeypatch, capsys):
    url, _ = server.serve("/a.bin", BODY)
    fetch_file(url, checksum=SHA, data_home=tmp_path / "plain")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    fetch_file(url, checksum=SHA, data_home=tmp_path / "bar")
    assert "a.bin" in capsys.readouterr().err
    fetch_file(url, checksum=SHA, data_home=tmp_path / "hidden", verbose=0)
    assert capsys.readouterr() == ("", "")


def test_data_home(monkeypatch, tmp_path):
    assert get_data_home(tmp_path / "a") == tmp_path / "a"
    assert (tmp_path / "a").is_dir()
    monkeypatch.setenv("SEEDBED_DATA", str(tmp_path / "b"))
    assert get_data_home() == tmp_path / "b"
    monkeypatch.delenv("SEEDBED_DATA")
    if sys.platform.startswith("linux"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
        assert get_data_home() == tmp_path / "c" / "seedbed"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert get_data_home() == tmp_path / ".cache" / "seedbed"


def test_a_shared_read_only_folder_works(tmp_path, monkeypatch):
    (tmp_path / "a.bin").write_bytes(BODY)

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "read-only")

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(fetch, "_lock", refuse)
    assert fetch_file("https://example.org/a.bin", data_home=tmp_path).read_bytes() == BODY
    assert leftovers(tmp_path) == ["a.bin"]
