"""Data sets by name: the table, what is said of a file that is missing, and fetching from a server that fails in every
way that a server can.
"""

from __future__ import annotations

import gzip
import io
import json
import socket
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
import tiny

from regard.cli import main
from regard.config import make_recipe
from regard.data import fetch as fetching
from regard.data.corpora import CORPORA, Corpus, Download, File, doubt
from regard.data.fetch import fetch
from regard.data.music import pieces
from regard.data.numbers import read_idx
from regard.data.stream import read_text
from regard.data.text import BadLines, find, raw_lines
from regard.errors import DataError, RegardError
from regard.models import schema
from regard.prepare import DOUBTS, prepare

DATA = bytes(range(256)) * 4000  # a megabyte


@dataclass
class Server:
    """Files by their path, and how much of each is sent before the line is cut."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    leads: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    lengths: bool = True
    length: str = ""  # that is told instead of the right one
    stalls: bool = False  # where the line would be cut, it is held
    over: Event = field(default_factory=Event)
    asked: list[tuple[str, str]] = field(default_factory=list)
    port: int = 0

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"


@pytest.fixture
def server() -> Iterator[Server]:
    told = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wanted = self.path.strip("/"), self.headers.get("Range", "")
            told.asked.append((name, wanted))
            if name in told.leads:
                self.send_response(302)
                self.send_header("Location", told.leads[name])
                self.end_headers()
                return
            if name not in told.files:
                self.send_error(404)
                return
            data, first = told.files[name], int(wanted[6:-1]) if wanted and told.ranges else 0
            if first and first >= len(data):
                self.send_error(416)
                return
            self.send_response(206 if first else 200)
            if told.lengths:
                self.send_header("Content-Length", told.length or str(len(data) - first))
            self.end_headers()
            cut = told.cut.pop(name, None)
            self.wfile.write(data[first:][:cut])
            if cut is not None and told.stalls:
                told.over.wait(10)

        def log_message(self, *words: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        told.port = http.server_port
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield told
        told.over.set()
        http.shutdown()
        thread.join()


@contextmanager
def answering(data: bytes) -> Iterator[str]:
    """Says this to whoever comes first, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            line, _ = listening.accept()
            with line:
                line.recv(65536)
                line.sendall(data)

        thread = Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/data.bin"
        thread.join()


def mark(data: bytes) -> str:
    return sha256(data).hexdigest()


def corpus(url: str, data: bytes, *files: File, size: int | None = None) -> Corpus:
    files = files or (File("toy/data.bin", mark(data)),)
    return Corpus("a toy", "none", "here", (Download(url, size or len(data), mark(data), files),))


def plain(server: Server) -> Corpus:
    server.files["data.bin"] = DATA
    return corpus(server.url("data.bin"), DATA)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- the table


@pytest.mark.parametrize("name", CORPORA)
def test_every_set_says_where_it_comes_from_and_how_one_knows_it(name: str) -> None:
    one = CORPORA[name]
    assert one.says
    assert one.licence
    assert one.home
    for download in one.downloads:
        assert download.url.startswith("https://")
        assert len(download.sha256) == 64
        assert download.size > 0
    for file in one.files:
        assert file.sha256 is None or len(file.sha256) == 64
        assert file.sha256 is None or (file.size or 2**40) < 50_000_000, "what is hashed at each start is small"
        assert file.sha256 or file.size or file.least, "something is known of each"
        assert not Path(file.path).is_absolute()
        assert ".." not in file.path
    assert len({file.path for file in one.files}) == len(one.files)


def test_text8_is_cut_as_everybody_cuts_it() -> None:
    assert [file.size for file in CORPORA["text8"].files] == [90_000_000, 5_000_000, 5_000_000]


@pytest.mark.parametrize("name", CORPORA)
def test_a_missing_file_of_a_set_says_how_to_get_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "sets"))
    for file in CORPORA[name].files:
        with pytest.raises(DataError) as told:
            find(file.path)
        said = str(told.value)
        assert f"{tmp_path / 'sets' / file.path}; it belongs to {CORPORA[name].says}, from {CORPORA[name].home}" in said
        assert said.endswith(f": regard fetch {name} gets it")
    with pytest.raises(DataError, match="set REGARD_DATA to the folder that holds your data"):
        find("mine/ptb.train.txt")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.data(CORPORA[name].files[0].path.split("/")[0])) for name in CORPORA],
)
def test_the_sets_at_hand_are_the_right_ones(name: str, data_dir: Callable[[str], Path]) -> None:
    """Nothing is asked of the net where all is there."""
    folder = data_dir(CORPORA[name].files[0].path.split("/")[0]).parent
    assert fetch(CORPORA[name], folder) == []


def test_a_file_that_is_not_the_published_one_is_doubted(tmp_path: Path) -> None:
    found, file = tmp_path / "ptb.train.txt", CORPORA["ptb"].files[0]
    found.write_bytes(bytes(400_000))
    cut = doubt("ptb/ptb.train.txt", found)
    assert cut == (
        "it has 400,000 bytes, where 5,101,618 were wanted, so it is not the published file of "
        "the Penn Treebank of language models, a million words of news"
    )
    found.write_bytes(bytes(file.size or 0))
    assert f"its sha256 is {mark(found.read_bytes())[:12]}…, where fcea919f6cf8… was wanted" in (
        doubt(f"{tmp_path}/ptb/ptb.train.txt", found)
    )
    assert doubt("mine/ptb.train.txt", found) == "", "of a file of one's own nobody knows"


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def read_lines(path: Path) -> object:
    return list(read_text([path], "line", bad=BadLines()))


IDX = b"\0\0\x08\1\0\0\0\x63"  # and 99 bytes


@pytest.mark.parametrize(
    ("file", "data", "read", "sentence"),
    [
        ("mnist/t10k-images-idx3-ubyte.gz", packed(IDX + bytes(range(99)))[:50], read_idx, r"not a whole \.gz file"),
        ("mnist/t10k-labels-idx1-ubyte.gz", packed(b"mine"), read_idx, "begins with 6d 69 6e 65, not as an idx"),
        ("mnist/t10k-labels-idx1-ubyte.gz", packed(IDX + b"ab"), read_idx, "its head says 99 bytes"),
        ("poly_music/JSB_Chorales.mat", b"MATLAB 5.0", lambda path: pieces(path, "test"), "cannot be read as chorales"),
        ("ptb/ptb.train.txt", b"", read_lines, "empty"),
        ("sentence_cls/stsa.binary.dev", b"", lambda path: list(raw_lines(path)), "empty"),
    ],
    ids=["half a .gz", "no idx", "half an idx", "half a .mat", "empty stream", "empty lines"],
)
def test_a_damaged_file_of_a_set_says_how_to_get_it_again(
    file: str, data: bytes, read: Callable[[Path], object], sentence: str, tmp_path: Path
) -> None:
    name = next(name for name, one in CORPORA.items() if file in [known.path for known in one.files])
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_bytes(data)
    again = f"it is damaged: remove it, and regard fetch {name} gets it again"
    with pytest.raises(DataError, match=rf"{file}: {sentence}.*; {again}$"):
        read(tmp_path / file)
    mine = (tmp_path / file).rename(tmp_path / Path(file).name)
    with pytest.raises(DataError, match=f"{mine.name}: {sentence}") as told:
        read(mine)
    assert "fetch" not in str(told.value), "of a file of one's own nobody knows"


@pytest.mark.parametrize("name", ["wikitext103", "lambada"])
def test_what_is_much_too_short_is_not_the_set(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[..., str], said: Callable[..., str]
) -> None:
    """The hashes of these files are not known; what they are not can be told all the same."""
    first = CORPORA[name].files[0]
    for file in CORPORA[name].files:
        (tmp_path / file.path).parent.mkdir(exist_ok=True)
        with (tmp_path / file.path).open("wb") as one:
            one.truncate(file.least)  # takes no room on the disk
    assert f"{tmp_path} has {name} already, large enough, but no hashes" in said("fetch", name, "--to", tmp_path)
    (tmp_path / first.path).write_text("= A line =\n", "utf-8")
    place, wrong = tmp_path / first.path, f"it has 11 bytes, where {first.least:,} or more were wanted"
    assert told(3, "fetch", name, "--to", tmp_path).startswith(f"{place}: {wrong}; it is damaged or another file: ")
    assert doubt(first.path, place).startswith(wrong)


def test_training_tells_of_such_a_file_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    text = "\n".join(f"{word}\t{word}" for word in ("one", "two", "three", "four")).encode()
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "data.tsv").write_bytes(text)
    recipe = make_recipe(tiny.from_files(Path("toy/data.tsv"), tokens={"kind": "char"}), schema)
    for published, tells in ((text, False), (text * 2, True)):
        toy = corpus("https://here/data.tsv", published, File("toy/data.tsv", mark(published)))
        monkeypatch.setitem(CORPORA, "toy", toy)
        heard: list[str] = []
        folder = tmp_path / f"run-{tells}"
        folder.mkdir()
        prepare(recipe, folder, heard.append)
        prepare(recipe, folder, heard.append)
        told = [line for line in heard if "not the published" in line]
        assert len(told) == tells, "once, when it is read"
        assert all(line.startswith("warning: ") and line.endswith("of a toy; training goes on") for line in told)
        assert (folder / DOUBTS).exists() == tells
        assert not tells or json.loads((folder / DOUBTS).read_bytes()) == [
            f"toy/data.tsv: its sha256 is {mark(text)[:12]}…, where {mark(published)[:12]}… was wanted, "
            "so it is not the published file of a toy"
        ]


# ---- what goes well


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    assert fetch(plain(server), tmp_path, lambda *told: heard.append(told)) == [tmp_path / "toy" / "data.bin"]
    assert everything(tmp_path) == {"toy/data.bin": DATA}
    assert heard[-1] == ("data.bin", len(DATA), len(DATA))
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)
    assert fetch(plain(server), tmp_path) == []
    assert len(server.asked) == 1


def test_a_length_need_not_be_told(server: Server, tmp_path: Path) -> None:
    server.lengths = False
    fetch(plain(server), tmp_path)
    assert everything(tmp_path) == {"toy/data.bin": DATA}


def archive(kind: str, members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    data = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, text in members.items():
                zipped.writestr(name, text)
        return data.getvalue()
    with tarfile.open(fileobj=data, mode="w:gz" if kind == "tar.gz" else "w") as tar:
        for name, text in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(text)
            tar.addfile(about, io.BytesIO(text))
        for name, target in (links or {}).items():
            about = tarfile.TarInfo(name)
            about.type, about.linkname = tarfile.SYMTYPE, target
            tar.addfile(about)
    return data.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_members_of_an_archive_become_files(kind: str, server: Server, tmp_path: Path) -> None:
    data = archive(kind, {"inner/a.txt": b"first", "b.txt": b"0123456789", "c.txt": b"not asked for"})
    server.files[f"set.{kind}"] = data
    files = (
        File("toy/train.txt", member="b.txt", size=7), File("toy/valid.txt", member="b.txt", size=3),
        File("toy/words/a.txt", mark(b"first"), member="inner/a.txt"),
    )  # fmt: skip
    new = fetch(corpus(server.url(f"set.{kind}"), data, *files), tmp_path)
    assert [path.name for path in new] == ["train.txt", "valid.txt", "a.txt"]
    wanted = {"toy/train.txt": b"0123456", "toy/valid.txt": b"789", "toy/words/a.txt": b"first"}
    assert everything(tmp_path) == wanted
    (tmp_path / "toy" / "valid.txt").unlink()
    assert fetch(corpus(server.url(f"set.{kind}"), data, *files), tmp_path) == [tmp_path / "toy" / "valid.txt"]
    assert everything(tmp_path) == wanted


def test_the_texts_of_an_archive_inside_are_joined(server: Server, tmp_path: Path) -> None:
    novels = archive("tar", {"novels/x/1.txt": b"one ", "novels/readme": b"no", "novels/y/2.txt": b"two " * 100_000})
    data = archive("tar.gz", {"./novels.tar": novels, "./test.txt": b"three"})
    server.files["set.tar.gz"] = data
    files = File("toy/train.txt", member="novels.tar", joined=True), File("toy/test.txt", member="test.txt")
    fetch(corpus(server.url("set.tar.gz"), data, *files), tmp_path)
    assert everything(tmp_path) == {"toy/train.txt": b"one " + b"two " * 100_000, "toy/test.txt": b"three"}


# ---- what goes wrong


@pytest.mark.parametrize("ranges", [True, False])
def test_what_was_broken_off_is_gone_on_with(ranges: bool, server: Server, tmp_path: Path) -> None:
    """By a server that does so, and from the beginning by others."""
    one, server.cut["data.bin"], server.ranges = plain(server), 300_000, ranges
    broken = r"data.bin: broken off after 300,000 of 1,024,000 bytes; the same command goes on"
    with pytest.raises(RegardError, match=broken):
        fetch(one, tmp_path)
    assert everything(tmp_path) == {"toy/.data.bin.part": DATA[:300_000]}, "nothing that looks whole"
    fetch(one, tmp_path)
    assert everything(tmp_path) == {"toy/data.bin": DATA}
    assert [wanted for _, wanted in server.asked] == ["", "bytes=300000-"]


def test_what_stalls_is_gone_on_with(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what came, not a byte is lost."""
    monkeypatch.setattr(fetching, "PATIENCE", 0.2)
    one, server.cut["data.bin"], server.stalls = plain(server), 1000, True
    with pytest.raises(RegardError, match=r"broken off after 1,000 of 1,024,000 bytes; the same command goes on$"):
        fetch(one, tmp_path)
    assert everything(tmp_path) == {"toy/.data.bin.part": DATA[:1000]}
    fetch(one, tmp_path)
    assert everything(tmp_path) == {"toy/data.bin": DATA}
    assert [wanted for _, wanted in server.asked] == ["", "bytes=1000-"]


@pytest.mark.parametrize("length", ["", "abc", "-5"])
def test_without_a_length_it_is_gone_on_with_too(length: str, server: Server, tmp_path: Path) -> None:
    """None is told, or one that is no number."""
    one, server.cut["data.bin"] = plain(server), 300_000
    server.length, server.lengths = length, bool(length)
    broken = r"data.bin: 300,000 bytes came, of how many is not told, and it is not whole; the same command goes on$"
    with pytest.raises(RegardError, match=broken):
        fetch(one, tmp_path)
    assert everything(tmp_path) == {"toy/.data.bin.part": DATA[:300_000]}
    fetch(one, tmp_path)
    assert everything(tmp_path) == {"toy/data.bin": DATA}
    assert [wanted for _, wanted in server.asked] == ["", "bytes=300000-"]


def test_a_chunk_that_is_broken_off_is_not_lost(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    sent, told = b"64\r\n" + DATA[:100] + b"\r\n64\r\n" + DATA[100:130], r"data.bin: 130 bytes came, of how many is not"
    with answering(head + sent) as url, pytest.raises(RegardError, match=told):
        fetch(corpus(url, DATA), tmp_path)
    assert everything(tmp_path) == {"toy/.data.bin.part": DATA[:130]}


def test_a_part_that_is_whole_already_or_too_long_comes_again(server: Server, tmp_path: Path) -> None:
    one = plain(server)
    (tmp_path / "toy").mkdir()
    for part in (DATA, DATA + b"more"):
        (tmp_path / "toy" / ".data.bin.part").write_bytes(part)
        fetch(one, tmp_path)
        assert everything(tmp_path) == {"toy/data.bin": DATA}
        (tmp_path / "toy" / "data.bin").unlink()


def test_another_file_than_wanted_is_not_kept(server: Server, tmp_path: Path) -> None:
    one = plain(server)
    server.files["data.bin"] = DATA[::-1]
    said = rf"sha256 {mark(DATA[::-1])[:12]}… came, where {mark(DATA)[:12]}… was wanted; it was damaged on its way"
    with pytest.raises(DataError, match=said):
        fetch(one, tmp_path)
    assert everything(tmp_path) == {}


def test_halves_that_do_not_fit_are_not_kept(server: Server, tmp_path: Path) -> None:
    one = plain(server)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / ".data.bin.part").write_bytes(b"of another version")
    with pytest.raises(
        DataError, match="was wanted; it was damaged on its way, or has changed there; the same command"
    ):
        fetch(one, tmp_path)
    fetch(one, tmp_path)
    assert everything(tmp_path) == {"toy/data.bin": DATA}


@pytest.mark.parametrize("lengths", [True, False])
def test_more_than_was_told_is_refused(lengths: bool, server: Server, tmp_path: Path) -> None:
    one, server.lengths = plain(server), lengths
    server.files["data.bin"] = DATA * 3
    with pytest.raises(DataError, match=r"bytes or more, where 1,024,000 at most were wanted; it has changed there"):
        fetch(one, tmp_path)
    assert everything(tmp_path) == {}


def test_a_file_that_is_there_but_damaged(server: Server, tmp_path: Path) -> None:
    one = plain(server)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "data.bin").write_bytes(b"mine")
    with pytest.raises(
        DataError, match=rf"data.bin: its sha256 is {mark(b'mine')[:12]}…, where .* remove it, and fetch"
    ):
        fetch(one, tmp_path)
    assert everything(tmp_path) == {"toy/data.bin": b"mine"}, "what is a user's own is never overwritten"
    cut = corpus(server.url("data.bin"), DATA, File("toy/data.bin", member="x", size=9))
    with pytest.raises(DataError, match=r"data.bin: it has 4 bytes, where 9 were wanted; it is damaged or another"):
        fetch(cut, tmp_path)


def test_no_path_of_an_archive_is_followed(server: Server, tmp_path: Path) -> None:
    """Neither out of the folder nor anywhere: only what the set names is taken, and no link."""
    for kind in ("zip", "tar.gz"):
        data = archive(kind, {"../evil.txt": b"evil", "/tmp/evil.txt": b"evil", "good.txt": b"good"})
        server.files[f"set.{kind}"] = data
        home = tmp_path / kind / "sets"
        fetch(corpus(server.url(f"set.{kind}"), data, File("toy/good.txt", member="good.txt")), home)
        assert everything(tmp_path / kind) == {"sets/toy/good.txt": b"good"}
    data = archive("tar.gz", {}, links={"good.txt": "/etc/passwd"})
    server.files["set.tar.gz"] = data
    with pytest.raises(DataError, match=r"cannot be unpacked \('there is no file good.txt in it'\)"):
        fetch(corpus(server.url("set.tar.gz"), data, File("toy/good.txt", member="good.txt")), tmp_path / "links")
    assert everything(tmp_path / "links") == {}


def test_an_archive_that_is_none_or_has_something_else(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "MOST", 1000)
    large = archive("zip", {"a.txt": bytes(100_000)})
    cases = {
        "not.zip": (b"no archive", File("toy/a.txt", member="a.txt"), "File is not a zip file"),
        "not.tar.gz": (b"no archive", File("toy/a.txt", member="a.txt"), "file could not be opened"),
        "other.zip": (archive("zip", {"b.txt": b""}), File("toy/a.txt", member="a.txt"), "There is no item named"),
        "bomb.zip": (large, File("toy/a.txt", member="a.txt"), r"toy/a.txt would have more than 1,000 bytes"),
        "short.zip": (
            large,
            File("toy/a.txt", member="a.txt", size=200_000),
            "would have 100,000 bytes, where 200,000",
        ),
        "changed.zip": (
            archive("zip", {"a.txt": b"x"}),
            File("toy/a.txt", mark(b"y"), "a.txt"),
            "would have the sha256",
        ),
    }
    for name, (data, file, why) in cases.items():
        server.files[name] = data
        with pytest.raises(DataError, match=rf"{name}: cannot be unpacked \(.*{why}.*; the same command tries again"):
            fetch(corpus(server.url(name), data, file), tmp_path)
        assert everything(tmp_path) == {}


def test_nobody_is_led_from_https_elsewhere(server: Server, tmp_path: Path) -> None:
    server.leads["start"], server.files["data.bin"] = server.url("data.bin"), DATA
    fetch(corpus(server.url("start"), DATA), tmp_path)
    assert everything(tmp_path) == {"toy/data.bin": DATA}, "from http to http anybody may be"
    handler = fetching._Safely()
    request = fetching.Request("https://example.org/data.bin")
    with pytest.raises(fetching.URLError, match=r"it leads to http://example.org/data.bin, which is not https"):
        handler.redirect_request(request, None, 302, "", {}, "http://example.org/data.bin")


def test_who_is_not_online_is_told_so(server: Server, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(
        RegardError, match=r"cannot be reached \(.*\); the same command tries again once you are online"
    ):
        fetch(corpus(f"http://127.0.0.1:{port}/data.bin", DATA), tmp_path)
    with pytest.raises(RegardError, match=r"nothing: the server says 404 Not Found; try again later"):
        fetch(corpus(server.url("nothing"), DATA), tmp_path)
    assert everything(tmp_path) == {}


def test_who_is_led_in_a_circle_or_talked_to_otherwise_is_told_so_in_one_line(server: Server, tmp_path: Path) -> None:
    server.leads["circle"] = server.url("circle")
    circle = r"^\S*circle: the server leads elsewhere \(302\), and to nothing in the end; try again later$"
    with pytest.raises(RegardError, match=circle):
        fetch(corpus(server.url("circle"), DATA), tmp_path)
    other = r"^\S*data.bin: what answers does not speak HTTP \('220 mail.example.org'\); try again later$"
    with answering(b"220 mail.example.org\r\n") as url, pytest.raises(RegardError, match=other):
        fetch(corpus(url, DATA), tmp_path)
    with (
        answering(b"") as url,
        pytest.raises(RegardError, match=r"^\S*data.bin: cannot be reached \([^\n]*\); the same"),
    ):
        fetch(corpus(url, DATA), tmp_path)
    assert everything(tmp_path) == {}


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RegardError, match=r"file: cannot be written: .*; make room, or name another folder with --to"):
        fetch(plain(server), tmp_path / "file")


# ---- the verb


def test_the_verb(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CORPORA, "toy", plain(server))
    monkeypatch.delenv("REGARD_DATA", raising=False)
    assert main(["fetch", "toy"]) == 2
    assert "fetch it where to? Set REGARD_DATA to the folder of your data sets, or write --to FOLDER" in (
        capsys.readouterr().err
    )
    assert main(["fetch", "tyo", "--to", str(tmp_path)]) == 2
    assert "no data set 'tyo'; did you mean 'toy'?" in capsys.readouterr().err
    assert main(["fetch", "toy", "--to", str(tmp_path)]) == 0
    assert f"{tmp_path}/toy/data.bin written\na toy, from here; licence: none" in capsys.readouterr().out
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    assert main(["fetch", "toy"]) == 0
    assert f"{tmp_path} has toy already, as it should be" in capsys.readouterr().out
    unknown = replace(CORPORA["toy"].downloads[0], files=(File("toy/data.bin"),))
    monkeypatch.setitem(CORPORA, "toy", replace(CORPORA["toy"], downloads=(unknown,)))
    assert main(["fetch", "toy"]) == 0
    assert "but no hashes of its files are known to check them by" in capsys.readouterr().out
    assert main(["fetch"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in CORPORA)
