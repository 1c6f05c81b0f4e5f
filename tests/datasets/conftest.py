"""A web server on this machine that misbehaves on demand."""

import contextlib
import hashlib
import http.server
import threading
import time
from dataclasses import dataclass, field

import pytest


@dataclass
class Behaviour:
    """How one path answers; the lists are used up answer by answer."""

    body: bytes = b""
    etag: str | None = None
    modified: str | None = None
    ranges: bool = True
    length: bool = True
    statuses: list = field(default_factory=list)
    drop_after: list = field(default_factory=list)  # bytes of the body after which the connection is cut
    delay: float = 0.0  # seconds before each 64 KiB
    redirect: str | None = None
    shift: int = 0  # answer a range from this many bytes too late
    seen: list = field(default_factory=list)  # (Range, If-Range, status) of each request


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        wanted = self.server.paths.get(self.path)
        if wanted is None:
            self.send_error(404)
            return
        asked, condition = self.headers.get("Range"), self.headers.get("If-Range")
        if wanted.statuses and (status := wanted.statuses.pop(0)) != 200:
            wanted.seen.append((asked, condition, status))
            self.send_error(status)
            return
        if wanted.redirect:
            self.send_response(302)
            self.send_header("Location", wanted.redirect)
            self.end_headers()
            return
        body, start, status = wanted.body, 0, 200
        same = condition is None or condition in (wanted.etag, wanted.modified)
        if asked and wanted.ranges and same:
            start = int(asked.removeprefix("bytes=").rstrip("-")) + wanted.shift
            status = 206 if start < len(body) else 416
        wanted.seen.append((asked, condition, status))
        self.send_response(status)
        if wanted.etag:
            self.send_header("ETag", wanted.etag)
        if wanted.modified:
            self.send_header("Last-Modified", wanted.modified)
        if status == 416:
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if wanted.length:
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        end = start + wanted.drop_after.pop(0) if wanted.drop_after else len(body)
        with contextlib.suppress(ConnectionError):
            for position in range(start, min(end, len(body)), 1 << 16):
                if wanted.delay:
                    time.sleep(wanted.delay)
                self.wfile.write(body[position : min(position + (1 << 16), end)])
                self.wfile.flush()
        self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.paths = {}

    def serve(self, path, body=b"", **behaviour):
        """Publish something; returns its address and the record of how it was asked for."""
        self.paths[path] = Behaviour(body, **behaviour)
        return f"http://127.0.0.1:{self.server_address[1]}{path}", self.paths[path]


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def quick(monkeypatch):
    """No waiting between attempts."""
    from seedbed.datasets import fetch

    monkeypatch.setattr(fetch, "sleep", lambda _: None)


@pytest.fixture
def publish(server, monkeypatch):
    """Let a named resource be what the server gives, with the right checksum."""
    from seedbed.datasets import resources

    def replace(name, key, body, checksum=True):
        known = resources.RESOURCES[name][key]
        url, record = server.serve(f"/{known.filename}", body)
        digest = f"md5:{hashlib.md5(body).hexdigest()}" if checksum else None
        monkeypatch.setitem(
            resources.RESOURCES[name], key, resources.Resource((url,), known.filename, digest)
        )
        return record

    return replace
