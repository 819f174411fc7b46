"""Gets a data set by its name, for those who are online: `regard fetch NAME`.

What comes is written to a .part file, checked by its hash, and then moved, so that a file is whole or not there. A part
that was broken off is gone on with. Of an archive those members are taken that the set names, each into the file that
the set names: no path inside an archive is ever followed, and nothing grows without bound.
"""

from __future__ import annotations

import http.client
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from regard.data.corpora import Corpus, Download, File, differs, digest
from regard.data.text import shortened
from regard.disk import to_disk
from regard.errors import DataError, RegardError, writing

CHUNK = 1 << 18
PATIENCE = 30.0  # seconds without a byte
MOST = 2 << 30  # bytes of one unpacked file
AGAIN = "the same command tries again"
ON = "the same command goes on"

Progress = Callable[[str, int, int], None]  # what, bytes of it, of how many


class Reads(Protocol):
    def read(self, size: int, /) -> bytes: ...


def fetch(corpus: Corpus, folder: Path, progress: Progress = lambda what, done, total: None) -> list[Path]:
    """Puts the files that are missing into their places below the folder; gives those that are new.

    What is there already is left alone, if it is what it should be.
    """
    new = []
    for download in corpus.downloads:
        missing = [file for file in download.files if not _is_there(folder / file.path, file)]
        if missing:
            part = (folder / download.files[0].path).with_name(f".{Path(download.url).name}.part")
            with writing(folder, "name another folder with --to"):
                get(download, part, progress)
                new += _unpack(download, part, folder, missing)
    return new


def _is_there(path: Path, file: File) -> bool:
    if not path.exists():
        return False
    if wrong := differs(path, file):
        raise DataError(f"{path}: {wrong}; it is damaged or another file: remove it, and fetch the set again")
    return True


# ---- over the net


class _Safely(HTTPRedirectHandler):
    """From https nobody is led elsewhere."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        if req.type == "https" and not newurl.startswith("https://"):
            raise URLError(f"it leads to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def get(download: Download, part: Path, progress: Progress = lambda what, done, total: None) -> None:
    """Fills the part to the whole, and checks it."""
    have = part.stat().st_size if part.exists() else 0
    with _online(download.url):
        answer = _opened(download.url, have)
    with answer:
        done, total = _receive(answer, have, part, download, progress)
    if done < total:
        raise RegardError(f"{download.url}: broken off after {done:,} of {total:,} bytes; {ON}")
    if (found := digest(part)) == download.sha256:
        return
    if total == 0 and done < download.size:
        raise RegardError(f"{download.url}: {done:,} bytes came, of how many is not told, and it is not whole; {ON}")
    part.unlink()
    what = f"{download.url}: sha256 {found[:12]}… came, where {download.sha256[:12]}… was wanted"
    raise DataError(f"{what}; it was damaged on its way, or has changed there; {AGAIN}")


def _opened(url: str, have: int) -> Any:
    """The answer to a request for what is not there yet."""
    asked = {"User-Agent": "regard", "Accept-Encoding": "identity"}
    more = {"Range": f"bytes={have}-"} if have else {}
    try:
        return build_opener(_Safely).open(Request(url, headers=asked | more), timeout=PATIENCE)
    except HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        return _opened(url, 0)  # there is no more than we have, so the whole comes again


def _receive(answer: Any, have: int, part: Path, download: Download, progress: Progress) -> tuple[int, int]:
    """Bytes that are there now, and that there should be; 0 where that is not told."""
    goes_on = answer.status == http.client.PARTIAL_CONTENT
    done = have if goes_on else 0
    total = 0 if answer.length is None else done + answer.length
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("ab" if goes_on else "wb") as file:
        for chunk in _chunks(answer) if total <= download.size else ():
            file.write(chunk)
            done += len(chunk)
            progress(Path(download.url).name, done, total)
            if done > download.size:
                break
    if (size := max(done, total)) > download.size:
        part.unlink()
        what = f"{download.url}: {size:,} bytes or more, where {download.size:,} at most were wanted"
        raise DataError(f"{what}; it has changed there, and nothing of it is kept")
    return done, total


def _chunks(answer: Any) -> Iterator[bytes]:
    """What comes, as soon as it comes; it ends where the line does, for whatever reason."""
    with suppress(OSError, http.client.HTTPException):
        while chunk := answer.read1(CHUNK):
            yield chunk


@contextmanager
def _online(url: str) -> Iterator[None]:
    try:
        yield
    except HTTPError as error:
        says = f"the server says {error.code} {error.reason}"
        if 300 <= error.code < 400:
            says = f"the server leads elsewhere ({error.code}), and to nothing in the end"
        raise RegardError(f"{url}: {says}; try again later") from None
    except OSError as error:
        why = str(getattr(error, "reason", "") or error or type(error).__name__)
        raise RegardError(f"{url}: cannot be reached ({why}); {AGAIN} once you are online") from None
    except http.client.HTTPException as error:
        why = shortened(str(error).strip())
        raise RegardError(f"{url}: what answers does not speak HTTP ({why}); try again later") from None


# ---- out of an archive


def _unpack(download: Download, part: Path, folder: Path, missing: list[File]) -> list[Path]:
    """The files of a download that are missing, each written beside its place and moved there."""
    try:
        for member, group in groupby(download.files, lambda file: file.member):
            files = list(group)
            if any(file in missing for file in files):
                with _member(part, member, download.url) as source:
                    for file in files:
                        _write(_Texts(source) if file.joined else source, file, folder / file.path)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, KeyError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise DataError(f"{download.url}: cannot be unpacked ({why}); {AGAIN}") from None
    finally:
        part.unlink(missing_ok=True)
    return [folder / file.path for file in missing]


@contextmanager
def _member(part: Path, member: str, url: str) -> Iterator[Reads]:
    """One file of an archive, or the whole where it is none."""
    if not member:
        with part.open("rb") as file:
            yield file
    elif url.endswith(".zip"):
        with zipfile.ZipFile(part) as archive, archive.open(member) as inner:
            yield inner
    else:
        with tarfile.open(part) as tar:
            yield _regular(tar, member)


def _regular(archive: tarfile.TarFile, member: str) -> IO[bytes]:
    for found in archive:
        if found.isreg() and str(PurePosixPath(found.name)) == member:
            inner = archive.extractfile(found)
            assert inner is not None
            return inner
    raise KeyError(f"there is no file {member} in it")


class _Texts:
    """All .txt files of a .tar, one behind the other."""

    def __init__(self, source: Any) -> None:
        self.archive = tarfile.open(fileobj=source, mode="r|")  # noqa: SIM115
        self.inner = self._all()
        self.now: IO[bytes] | None = next(self.inner, None)

    def _all(self) -> Iterator[IO[bytes]]:
        for found in self.archive:
            if found.isreg() and found.name.endswith(".txt"):
                inner = self.archive.extractfile(found)
                assert inner is not None
                yield inner

    def read(self, size: int, /) -> bytes:
        while self.now is not None:
            if chunk := self.now.read(size):
                return chunk
            self.now = next(self.inner, None)
        return b""


def _write(source: Reads, file: File, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    try:
        with beside.open("wb") as target:
            size, mark = _copy(source, target, file.size or MOST)
        if file.size is not None and size < file.size:
            raise ValueError(f"{file.path} would have {size:,} bytes, where {file.size:,} were wanted")
        if file.size is None and source.read(1):
            raise ValueError(f"{file.path} would have more than {MOST:,} bytes")
        if file.sha256 not in (None, mark):
            raise ValueError(f"{file.path} would have the sha256 {mark[:12]}…, where {file.sha256[:12]}… was wanted")
        to_disk(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _copy(source: Reads, target: IO[bytes], most: int) -> tuple[int, str]:
    """So many bytes at most: how many they were, and their hash."""
    size, mark = 0, sha256()
    while chunk := source.read(min(CHUNK, most - size)):
        target.write(chunk)
        mark.update(chunk)
        size += len(chunk)
    return size, mark.hexdigest()
