"""Kills at random moments and files made of noise: `python -m tests.soak --kills 1000 --fuzz 600` (make soak).

A child changes an index over and over, by a rule that says what generation g holds; it is killed somewhere, and the
index must open, hold a generation that is not older than the last one the child told of, and be that generation
completely. Then every reader is given damaged files for so many seconds: it must refuse them in one line or give what
was saved, soon, and without taking more memory than the files are long.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hyte import Encoder, HybridIndex, InputError, Settings
from hyte.commits import FILES
from hyte.hits import Hit
from hyte.sections import Index, digest, pieces
from hyte.weights import HEADER, read_weights

WORDS = "the a cat dog bird fish sat ran mat sea blue red old new cell protein gene drug trial heart".split()
PLAIN = Settings(analyzer="alnum", window=6, overlap=2)
DOCUMENTS = 12
MORE_MEMORY = 16 << 20


def document(generation: int) -> tuple[str, str]:
    """What the change that makes a generation adds: one of a few paths, so that most are replaced in time."""
    random_ = random.Random(generation)
    text = " ".join(random_.choices(WORDS, k=random_.randrange(40)))
    return f"d{random_.randrange(DOCUMENTS)}.txt", f"{text} g{generation}"


def changes(index: HybridIndex, generation: int) -> None:
    """Change an index of the generation before to this one."""
    path, text = document(generation)
    gone = f"d{generation * 7 % DOCUMENTS}.txt"
    if gone in index:
        index.remove(gone)
    index.add(path, text)
    if generation % 5 == 0:
        index.compact()


def expected(generation: int) -> dict[str, str]:
    """Path and text of each document of a generation, in order."""
    held: dict[str, str] = {}
    for each in range(1, generation + 1):
        held.pop(f"d{each * 7 % DOCUMENTS}.txt", None)
        path, text = document(each)
        held.pop(path, None)
        held[path] = text
    return held


def work(folder: Path, encoder: Encoder, told: int) -> None:
    """Change the index for ever; each commit's number goes to `told`."""
    while True:
        there = (folder / FILES[0]).exists()
        index = HybridIndex.load(folder, encoder) if there else HybridIndex(encoder, PLAIN)
        changes(index, (index.generation or 0) + 1)
        os.write(told, index.save(folder).to_bytes(8, "little"))


def killed(folder: Path, encoder: Encoder, after: float) -> int:
    """Let a child work and kill it after so many seconds; returns the last generation that it told of, 0 for none."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            work(folder, encoder, writer)
        finally:
            os._exit(1)  # it is killed before it comes here
    os.close(writer)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    told = os.read(reader, 1 << 20)
    os.close(reader)
    if os.WTERMSIG(status) != signal.SIGKILL:
        raise AssertionError(f"the child ended by itself, status {status}")
    return int.from_bytes(told[-8:], "little")


def check(folder: Path, encoder: Encoder, at_least: int) -> int:
    """The generation in the folder. Raises AssertionError unless it is complete and not older than `at_least`."""
    if not (folder / FILES[0]).exists():
        assert at_least == 0, f"generation {at_least} is gone"
        return 0
    index = HybridIndex.load(folder, encoder)
    generation = index.generation or 0
    assert generation >= at_least, f"generation {generation}, {at_least} was told of"
    held = expected(generation)
    fresh = HybridIndex(encoder, PLAIN)
    for path, text in held.items():
        fresh.add(path, text)
    index.check()
    assert index.paths == list(held)
    for query in ("blue cat", f"g{generation}", "the old sea"):
        for mode in ("bm25", "lorentz", "hybrid"):
            assert index.search(query, 99, mode=mode) == fresh.search(query, 99, mode=mode), (generation, query, mode)
    return generation


def kills(count: int, artifact: Path, seed: int) -> tuple[int, int]:
    """Kill so often; returns the last generation, and at how many kills a new one had just come into being."""
    random_, encoder, last, between = random.Random(seed), Encoder.load(artifact), 0, 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "idx")
        for number in range(count):
            told = killed(folder, encoder, random_.uniform(0.005, 0.12))
            now = check(folder, encoder, max(told, last))
            between += now > max(told, last)
            last = now
            left = [name for name in (os.listdir(folder) if folder.exists() else []) if name not in FILES]
            assert len(left) <= len(FILES) + 1, left
            if number % 100 == 99:
                sys.stdout.write(f"{number + 1} kills, generation {last}, {between} between commit and word\n")
                sys.stdout.flush()
    return last, between


def damaged(content: bytes, random_: random.Random) -> bytes:
    """Some bytes changed, cut out, put in, or taken from elsewhere in the file."""
    data = bytearray(content)
    for _ in range(random_.choice([1, 1, 1, 2, 5, 20])):
        at = random_.randrange(len(data) + 1)
        size = random_.choice([1, 1, 2, 4, 8, 64])
        what = random_.randrange(5)
        if what == 0 and at < len(data):
            data[at] ^= 1 << random_.randrange(8)
        elif what == 1:
            data[at : at + size] = random_.choice([b"\0", b"\xff"]) * size
        elif what == 2:
            del data[at : at + size]
        elif what == 3:
            data[at:at] = random_.randbytes(size)
        else:
            other = random_.randrange(len(data) + 1)
            data[at : at + size] = data[other : other + size]
    return bytes(data)


Forge = Callable[[Path, str, random.Random], None]  # damages a file of a copy


def peak() -> int:
    """Most memory that the process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read(folder: Path, name: str, encoder: Encoder) -> list[Hit] | None:
    """Have a file read by every reader of it; the answers of an index."""
    if name == "weights.bin":
        read_weights(folder / name)
        return None
    opened = HybridIndex.load(folder, encoder)
    opened.check()
    return opened.search("blue cat", 99)


def fuzz(seconds: float, artifact: Path, seed: int, forge: Forge) -> dict[str, int]:
    """Give damaged files to every reader; returns how many of each were refused, and how many harmless."""
    random_, encoder, counts = random.Random(seed), Encoder.load(artifact), {"refused": 0, "harmless": 0}
    with tempfile.TemporaryDirectory() as place:
        folder, copy = Path(place, "idx"), Path(place, "copy")
        index = HybridIndex(encoder, PLAIN)
        for generation in range(1, 40):
            changes(index, generation)
        index.save(folder)
        answers = index.search("blue cat", 99)
        before, until = peak(), time.monotonic() + seconds
        while time.monotonic() < until:
            name = random_.choice([*FILES, *FILES, "weights.bin"])
            source = artifact if name == "weights.bin" else folder
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy)
            forge(copy, name, random_)
            started, told, found = time.monotonic(), "", None
            try:
                found = read(copy, name, encoder)
            except InputError as error:
                told = str(error)
            assert "\n" not in told, told
            assert found in (None, answers) or forge is not blindly, "other answers, and no word"
            counts["refused" if told else "harmless"] += 1
            assert time.monotonic() - started < 10, "it took 10 s"
        assert peak() - before < MORE_MEMORY, f"{peak() - before} bytes more"
    return counts


def blindly(copy: Path, name: str, random_: random.Random) -> None:
    """Damage a file without caring for its checksums."""
    (copy / name).write_bytes(damaged((copy / name).read_bytes(), random_))


def knowingly(copy: Path, name: str, random_: random.Random) -> None:
    """Damage what a file says and make its checksums fit, as somebody would who wants to do harm."""
    if name == "weights.bin":
        raw = (copy / name).read_bytes()
        head, body = bytearray(damaged(raw[: HEADER.size], random_)[: HEADER.size].ljust(HEADER.size, b"\0")), raw[256:]
        head[:8] = raw[:8]
        head[88:120] = hashlib.sha256(body).digest()
        (copy / name).write_bytes((head + hashlib.sha256(head).digest()).ljust(256, b"\0") + body)
        return
    opened = Index(copy / FILES[0])
    arrays = {key: array.copy() for key, array in opened.arrays.items()}
    head = {key: value for key, value in opened.head.items() if key not in ("sections", "length")}
    if name == FILES[0]:
        key = random_.choice([key for key, array in arrays.items() if array.size])
        flat = arrays[key].reshape(-1)
        low, high = (-1e30, 1e30) if flat.dtype.kind == "f" else (np.iinfo(flat.dtype).min, np.iinfo(flat.dtype).max)
        flat[random_.randrange(len(flat))] = random_.choice([low, high, 0, 1, random_.randrange(-99, 99) % 127])
    else:
        content = damaged((copy / name).read_bytes(), random_)
        (copy / name).write_bytes(content)
        head["files"][name] = digest(content)
    (copy / FILES[0]).write_bytes(b"".join(pieces(head, arrays)))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; a fault ends it with a traceback that names the seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--fuzz", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    from tests.conftest import make_tokenizer, write_artifact

    with tempfile.TemporaryDirectory() as place:
        tokenizer = Path(place, "tokenizer.json")
        make_tokenizer().save(str(tokenizer))
        artifact = write_artifact(Path(place, "artifact"), tokenizer)
        if given.kills:
            last, between = kills(given.kills, artifact, given.seed)
            sys.stdout.write(f"{given.kills} kills: every opening complete; generation {last}, {between} in between\n")
        if given.fuzz:
            for forge in (blindly, knowingly):
                counts = fuzz(given.fuzz / 2, artifact, given.seed, forge)
                total, name = sum(counts.values()), forge.__name__
                sys.stdout.write(f"{total} files damaged {name} in {given.fuzz / 2:g} s: {counts}\n")


if __name__ == "__main__":
    main()
