"""Kills at random moments and files made of noise: `python -m tests.soak --kills 1000 --fuzz 600` (make soak). Linux.

A child changes an index over and over, by a rule that says what generation g holds; it is killed somewhere, and the
index must open, hold a generation that is not older than the last one the child told of, and be that generation
completely. Then every reader is given every flip of a bit, every truncation, and for so many seconds files that
hypothesis damaged, and for as many again atheris where it is installed: it must refuse them in one line or give what
was saved, soon, and without taking more memory than the files are long and a little.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

try:  # an option: it builds for some systems and versions of Python only
    import atheris
except ImportError:
    atheris = None

with atheris.instrument_imports(include=["hyte"]) if atheris else nullcontext():
    from hyte import Encoder, HybridIndex, InputError, Settings
    from hyte.commits import FILES
    from hyte.sections import Index, digest, pieces
    from hyte.weights import HEADER

WORDS = "the a cat dog bird fish sat ran mat sea blue red old new cell protein gene drug trial heart".split()
PLAIN = Settings(analyzer="alnum", window=6, overlap=2)
DOCUMENTS = 12
WEIGHTS = "weights.bin"
MORE_MEMORY = 16 << 20  # than the files are long
HANGS = 10  # seconds
BATCH = 100  # examples of hypothesis between two looks at the clock


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
    """Change the index for ever; before each step its name goes to `told`, and after each commit its number."""

    def tell(word: str) -> None:
        os.write(told, f"{word}\n".encode())

    while True:
        tell("opening")
        there = (folder / FILES[0]).exists()
        index = HybridIndex.load(folder, encoder) if there else HybridIndex(encoder, PLAIN)
        tell("adding")
        generation = (index.generation or 0) + 1
        changes(index, generation)
        index.flush()
        tell("saving" if generation % 5 else "compacting")
        tell(str(index.save(folder)))


def killed(folder: Path, encoder: Encoder, after: float) -> tuple[int, str]:
    """Let a child work and kill it after so many seconds; the last generation and the last step that it told of."""
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
    told = os.read(reader, 1 << 20).decode().split()
    os.close(reader)
    if os.WTERMSIG(status) != signal.SIGKILL:
        raise AssertionError(f"the child ended by itself, status {status}")
    return max((int(word) for word in told if word.isdecimal()), default=0), told[-1] if told else "starting"


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


def kills(count: int, artifact: Path, seed: int) -> Counter[str]:
    """Kill so often; at which steps, and how often a new generation had come into being that was not told of."""
    random_, encoder, last, found = random.Random(seed), Encoder.load(artifact), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "idx")
        for number in range(count):
            told, step = killed(folder, encoder, random_.uniform(0.005, 0.12))
            now = check(folder, encoder, max(told, last))
            found["between" if step.isdecimal() else step] += 1
            found["untold"] += now > max(told, last)
            last = now
            left = [name for name in (os.listdir(folder) if folder.exists() else []) if name not in FILES]
            assert len(left) <= len(FILES) + 1, left
            if number % 100 == 99:
                say(f"{number + 1} kills, generation {last}, {dict(found)}")
    return found


class Target:
    """A small index, its artifact, and a copy of both in which files are damaged and read."""

    def __init__(self, place: Path, artifact: Path) -> None:
        self.encoder, self.copy = Encoder.load(artifact), place / "copy"
        index = HybridIndex(self.encoder, PLAIN)
        for generation in range(1, 40):
            changes(index, generation)
        index.save(place / "idx")
        sources = [*(place / "idx" / name for name in FILES), *artifact.iterdir()]
        self.files = {source.name: source.read_bytes() for source in sources}
        self.copy.mkdir()
        self.touched = set(self.files)
        self.restore()
        self.answers = {name: self.read(name) for name in (*FILES, WEIGHTS)}
        self.counts = Counter[str]()

    def restore(self) -> None:
        """Have the copy as it should be."""
        for name in list(self.touched):
            self.put(name, self.files[name])
        self.touched.clear()

    def put(self, name: str, content: bytes) -> None:
        """Put a file in the place of another, which may still be mapped."""
        self.touched.add(name)
        (self.copy / name).unlink(missing_ok=True)
        (self.copy / name).write_bytes(content)

    def read(self, name: str) -> list[Any]:
        """What every reader of a file gives."""
        if name == WEIGHTS:
            return list(Encoder.load(self.copy).encode(["blue cat", "the sea"]).tolist())
        opened = HybridIndex.load(self.copy, self.encoder)
        opened.check()
        return list(opened.search("blue cat", 99))

    def attempt(self, name: str, same: bool) -> None:
        """Read the damaged file. Raises AssertionError unless it is refused in one line, or harmless."""
        lengths = sum(file.stat().st_size for file in self.copy.iterdir())
        faulthandler.dump_traceback_later(HANGS, exit=True)
        before, told, found = peak(anew=True), "", None
        try:
            found = self.read(name)
        except InputError as error:
            told = str(error)
        faulthandler.cancel_dump_traceback_later()
        more = peak() - before
        assert "\n" not in told, told
        assert told or not same or found == self.answers[name], f"{name}: other answers, and no word"
        assert more < lengths + MORE_MEMORY, f"{name}: {more} bytes of memory for {lengths} of files"
        self.counts["refused" if told else "harmless"] += 1


def peak(anew: bool = False) -> int:
    """The most bytes of memory that this process held, since it was asked `anew` the last time."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def flips(artifact: Path) -> Counter[str]:
    """Every flip of a single bit, and every truncation, of every file; how many were refused, how many harmless."""
    with tempfile.TemporaryDirectory() as place:
        target = Target(Path(place), artifact)
        for name in (*FILES, WEIGHTS):
            raw = target.files[name]
            for offset in range(len(raw)):
                for damaged in (raw[:offset], *(_flipped(raw, offset, bit) for bit in range(8))):
                    target.put(name, damaged)
                    target.attempt(name, same=True)
            target.restore()
        return target.counts


def _flipped(raw: bytes, offset: int, bit: int) -> bytes:
    return raw[:offset] + bytes([raw[offset] ^ 1 << bit]) + raw[offset + 1 :]


Forge = Callable[[Target, st.DataObject], tuple[str, bool]]  # damages a file; its name, whether answers must stay


def damaged(raw: bytes, data: st.DataObject) -> bytes:
    """Bytes changed, cut out, put in, or taken from elsewhere in the file, at some places."""
    place, size = st.integers(0, len(raw)), st.sampled_from([0, 1, 2, 4, 8, 64, len(raw)])
    filled = st.builds(lambda byte, times: byte * min(times, 64), st.sampled_from([b"\0", b"\xff"]), size)
    moved = st.builds(lambda at, length: raw[at : at + length], place, size)
    edits = st.lists(st.tuples(place, size, st.binary(max_size=8) | filled | moved), min_size=1, max_size=10)
    for at, gone, put in data.draw(edits):
        raw = raw[:at] + put + raw[at + gone :]
    return raw


def blindly(target: Target, data: st.DataObject) -> tuple[str, bool]:
    """Damage a file without caring for its checksums."""
    name = data.draw(st.sampled_from([*FILES, WEIGHTS]))
    target.put(name, damaged(target.files[name], data))
    return name, True


def knowingly(target: Target, data: st.DataObject) -> tuple[str, bool]:
    """Damage what a file says and make its checksums fit, as somebody would who wants to do harm."""
    name = data.draw(st.sampled_from([*FILES, WEIGHTS]))
    if name == WEIGHTS:
        raw = target.files[name]
        head, body = bytearray(damaged(raw[: HEADER.size], data)[: HEADER.size].ljust(HEADER.size, b"\0")), raw[256:]
        head[:8] = raw[:8]
        head[88:120] = hashlib.sha256(body).digest()
        target.put(name, (head + hashlib.sha256(head).digest()).ljust(256, b"\0") + body)
        return name, False
    opened = Index(target.copy / FILES[0])
    arrays = {key: array.copy() for key, array in opened.arrays.items()}
    head = {key: value for key, value in opened.head.items() if key not in ("sections", "length")}
    if name == FILES[0]:
        lie_in(arrays, data)
    else:
        content = damaged(target.files[name], data)
        target.put(name, content)
        head["files"][name] = digest(content)
    target.put(FILES[0], b"".join(pieces(head, arrays)))
    return name, False


def lie_in(arrays: dict[str, np.ndarray], data: st.DataObject) -> None:
    """Change some numbers of some sections."""
    for _ in range(data.draw(st.integers(1, 3))):
        flat = arrays[data.draw(st.sampled_from([key for key, array in arrays.items() if array.size]))].reshape(-1)
        low, high = (-1e30, 1e30) if flat.dtype.kind == "f" else (np.iinfo(flat.dtype).min, np.iinfo(flat.dtype).max)
        flat[data.draw(st.integers(0, len(flat) - 1))] = data.draw(st.sampled_from([low, high, 0, 1, 2, 64]))


def fuzz_test(target: Target, forge: Forge) -> Callable[[], None]:
    """A test of hypothesis that damages and reads one file, `BATCH` times."""

    @hypothesis.settings(
        max_examples=BATCH, database=None, deadline=None, derandomize=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(st.data())
    def one(data: st.DataObject) -> None:
        target.restore()
        target.attempt(*forge(target, data))

    return one


def fuzz(seconds: float, artifact: Path, seed: int, forge: Forge) -> Counter[str]:
    """Give damaged files to every reader; how many were refused, how many harmless."""
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as place:
        target = Target(Path(place), artifact)
        while time.monotonic() < until:
            hypothesis.seed(seed)(fuzz_test(target, forge))()
            seed += 1
        return target.counts


def fuzz_guided(seconds: float, artifact: Path, seed: int, forge: Forge) -> None:
    """The same in a child by atheris, which seeks damage that reaches other lines of hyte."""
    child = os.fork()
    if child == 0:
        with tempfile.TemporaryDirectory() as place:
            one = fuzz_test(Target(Path(place), artifact), forge).hypothesis.fuzz_one_input
            corpus, random_ = Path(place, "corpus"), random.Random(seed)
            corpus.mkdir()
            for number in range(100):
                (corpus / str(number)).write_bytes(random_.randbytes(200))
            limits = [f"-max_total_time={max(1, round(seconds))}", f"-timeout={HANGS}", "-rss_limit_mb=1024"]
            atheris.Setup(["soak", str(corpus), f"-seed={seed + 1}", "-max_len=1024", *limits], one)
            atheris.Fuzz()  # ends the process
    _, status = os.waitpid(child, 0)
    assert status == 0, f"atheris found something: status {status}"


def say(text: str) -> None:
    """A line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; a fault ends it with a traceback."""
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
        say(f"seed {given.seed}")
        found = kills(given.kills, artifact, given.seed)
        say(f"{given.kills} kills: every opening old or new, and complete; {dict(found)}")
        if given.fuzz:
            say(f"every flip of a bit and every truncation: {dict(flips(artifact))}")
            for forge in (blindly, knowingly):
                counts = fuzz(given.fuzz / 2, artifact, given.seed, forge)
                say(f"{counts.total()} files damaged {forge.__name__} in {given.fuzz / 2:g} s: {dict(counts)}")
                if atheris:
                    fuzz_guided(given.fuzz / 2, artifact, given.seed, forge)
                    say(f"{given.fuzz / 2:g} s of atheris")


if __name__ == "__main__":
    main()
