"""Unpacking: what is meant to come out does, and nothing else."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest

from seedbed.datasets.archives import ArchiveError, files, read_gzip, read_members, unpack

GOOD = {"set/a.txt": b"alpha", "set/deep/b.bin": bytes(5000)}


def make_zip(path, content, mode=None):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("set")
        for name, data in content.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            if mode is not None:
                info.external_attr = mode << 16
            archive.writestr(info, data)
    return path


def make_tar(path, content, **member):
    with tarfile.open(path, "w:gz") as archive:
        folder = tarfile.TarInfo("set")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in member.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_unpack_and_read(tmp_path, make):
    archive = make(tmp_path / "archive", GOOD)
    folder = unpack(archive, tmp_path / "out" / "here")
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert found == GOOD
    assert read_members(archive, ["set/a.txt"]) == {"set/a.txt": b"alpha"}
    assert {name: handle.read() for name, handle in files(archive)} == GOOD
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["here"]


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize(
    "name", ["../evil", "set/../../evil", "/evil", "set\\..\\..\\evil", "C:/evil", "set/a:stream"]
)
def test_names_that_lead_outside_are_refused(tmp_path, make, name):
    archive = make(tmp_path / "archive", {"fine": b"x", name: b"boo"})
    with pytest.raises(ArchiveError, match="unsafe name"):
        unpack(archive, tmp_path / "out" / "here")
    assert list((tmp_path / "out").iterdir()) == []
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind):
    archive = make_tar(tmp_path / "archive", {"set/link": b""}, type=kind, linkname="/etc/passwd")
    with pytest.raises(ArchiveError, match="link or device"):
        unpack(archive, tmp_path / "out" / "here")
    assert list((tmp_path / "out").iterdir()) == []


def test_links_in_a_zip_are_refused(tmp_path):
    archive = make_zip(tmp_path / "archive", {"set/link": b"/etc/passwd"}, mode=stat.S_IFLNK | 0o777)
    with pytest.raises(ArchiveError, match="link or device"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_bombs_are_stopped_at_the_limit(tmp_path, make):
    archive = make(tmp_path / "archive", {"zeros": bytes(10_000_000)})
    assert archive.stat().st_size < 50_000
    with pytest.raises(ArchiveError, match="more bytes than allowed"):
        unpack(archive, tmp_path / "out", max_size=9_999_999)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ArchiveError, match="more than"):
        read_members(archive, ["zeros"], max_size=9_999_999)
    unpack(archive, tmp_path / "out", max_size=10_000_000)
    many = make(tmp_path / "many", {f"file{i}": b"" for i in range(11)})
    with pytest.raises(ArchiveError, match="more than 10 files"):
        unpack(many, tmp_path / "out2", max_members=10)


def test_read_members_counts_all_files_together(tmp_path):
    archive = make_zip(tmp_path / "archive", {"a": bytes(600), "b": bytes(600)})
    with pytest.raises(ArchiveError, match="more than 400 bytes"):
        read_members(archive, ["a", "b"], max_size=1000)


def test_a_name_that_comes_twice_is_refused(tmp_path):
    with tarfile.open(tmp_path / "archive", "w") as archive:
        for data in (b"one", b"two"):
            info = tarfile.TarInfo("a")
            info.size = 3
            archive.addfile(info, io.BytesIO(data))
    with pytest.raises(ArchiveError, match="'a' twice"):
        unpack(tmp_path / "archive", tmp_path / "out")


def test_an_existing_folder_is_left_alone(tmp_path):
    archive = make_zip(tmp_path / "archive", GOOD)
    with pytest.raises(FileExistsError):
        unpack(archive, tmp_path)


def test_missing_members_are_named(tmp_path):
    archive = make_tar(tmp_path / "archive", GOOD)
    with pytest.raises(ArchiveError, match=r"does not hold c, d"):
        read_members(archive, ["set/a.txt", "d", "c"])


@pytest.mark.parametrize("cut", [10, -400])
@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_damaged_archives_are_refused(tmp_path, make, cut):
    whole = make(tmp_path / "whole", {"a": bytes(range(256)) * 40, "b": b"b" * 40}).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:cut])
    with pytest.raises(ArchiveError, match="damaged or of another format"):
        unpack(tmp_path / "cut", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_flipped_bit_in_a_zip_is_noticed(tmp_path):
    whole = bytearray(make_zip(tmp_path / "whole", {"a": bytes(range(256)) * 40}).read_bytes())
    whole[200] ^= 1
    (tmp_path / "flipped").write_bytes(whole)
    with pytest.raises(ArchiveError, match="damaged"):
        read_members(tmp_path / "flipped", ["a"])


def test_gzip(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(100_000)))
    assert read_gzip(path) == bytes(100_000)
    assert read_gzip(path, max_size=100_000) == bytes(100_000)
    with pytest.raises(ArchiveError, match="more than 99,999 bytes"):
        read_gzip(path, max_size=99_999)
    path.write_bytes(gzip.compress(bytes(100_000))[:-9])
    with pytest.raises(ArchiveError, match="damaged"):
        read_gzip(path)
    path.write_bytes(b"no gzip at all")
    with pytest.raises(ArchiveError, match="damaged"):
        read_gzip(path)
