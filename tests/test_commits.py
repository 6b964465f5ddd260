"""Commits: one point at which a generation counts, whoever dies when; one writer, readers that keep what they have."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import count

import pytest

from hyte import HybridIndex, InputError, Settings, commits, lock
from hyte.lock import writing
from tests.conftest import ROOT

FILES = ("idx.bin", "texts.z", "paths.txt")
PLAIN = Settings(analyzer="alnum", window=3, overlap=1)


class Dead(BaseException):
    """The process dies here: what would clean up does not run."""


def texts(index):
    return {path: index._documents.texts[index._documents.numbers[path]] for path in index.paths}


@pytest.fixture
def saved(encoder, tmp_path):
    index = HybridIndex(encoder, PLAIN)
    for name in ("a", "b", "c"):
        index.add(f"{name}.txt", f"the {name} cat sat, blue sea")
    index.save(tmp_path / "idx")
    return tmp_path / "idx"


OLD = {f"{name}.txt": f"the {name} cat sat, blue sea" for name in "abc"}
NEW = {"b.txt": OLD["b.txt"], "c.txt": OLD["c.txt"], "d.txt": "red fish"}


def change(folder, encoder):
    index = HybridIndex.load(folder, encoder)
    index.remove("a.txt")
    index.add("d.txt", "red fish")
    index.save(folder)


def dies_at(monkeypatch, nth):
    """Let the process die at its nth change of the disk; returns how many there were."""
    calls, dead = count(1), []

    def counted(real):
        def call(*args, **kwargs):
            if dead or next(calls) == nth:
                dead.append(True)
                raise Dead
            return real(*args, **kwargs)

        return call

    monkeypatch.setattr("os.fsync", counted(os.fsync))
    monkeypatch.setattr("os.replace", counted(os.replace))
    monkeypatch.setattr("hyte.commits._clear", counted(commits._clear))
    return dead


def test_a_death_at_any_step_and_another_while_that_is_mended_leave_the_old_or_the_new(saved, encoder, monkeypatch):
    seen = set()
    for first in range(1, 12):
        for second in range(5):
            folder = saved.parent / f"{first}-{second}"
            shutil.copytree(saved, folder)
            with monkeypatch.context() as patch:
                died = dies_at(patch, first)
                with suppress(Dead):
                    change(folder, encoder)
            found = texts(HybridIndex.load(folder, encoder))
            assert found in (OLD, NEW)
            if second and died:
                with monkeypatch.context() as patch, suppress(Dead):
                    dies_at(patch, second)
                    with writing(folder):
                        commits.recover(folder)
                assert texts(HybridIndex.load(folder, encoder)) == found
            seen.add((len(found) == 3 and found == NEW, bool(died)))
            with writing(folder):
                commits.recover(folder)
            assert texts(HybridIndex.load(folder, encoder)) == found
            assert sorted(os.listdir(folder)) == sorted(FILES)
            index = HybridIndex.load(folder, encoder)  # and life goes on
            index.add("e.txt", "new mat")
            index.save(folder)
            assert texts(HybridIndex.load(folder, encoder)) == found | {"e.txt": "new mat"}
    assert seen == {(False, True), (True, True), (True, False)}


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_an_interrupt_just_after_a_file_took_its_place_leaves_the_new_generation(saved, encoder, monkeypatch, nth):
    calls, real = count(1), os.replace

    def interrupted(source, target):
        real(source, target)
        if next(calls) == nth:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            change(saved, encoder)
    assert texts(HybridIndex.load(saved, encoder)) == NEW
    HybridIndex.load(saved, encoder).save(saved)
    assert texts(HybridIndex.load(saved, encoder)) == NEW
    assert sorted(os.listdir(saved)) == sorted(FILES)


def test_a_save_goes_on_from_the_generation_that_was_opened(saved, encoder):
    one, two = HybridIndex.load(saved, encoder), HybridIndex.load(saved, encoder)
    one.add("one", "cat")
    assert one.save(saved) == 2
    two.add("two", "dog")
    with pytest.raises(InputError, match="at generation 2 now and was opened at 1.*open it again"):
        two.save(saved)
    assert "one" in HybridIndex.load(saved, encoder)
    one.add("more", "fish")
    assert one.save(saved) == 3
    assert HybridIndex(encoder, PLAIN).save(saved) == 4  # one that was never there takes its place


def test_a_reader_keeps_its_generation_and_sees_the_new_one_when_it_opens_again(saved, encoder):
    reader = HybridIndex.load(saved, encoder)
    change(saved, encoder)
    HybridIndex.load(saved, encoder).save(saved)
    assert texts(reader) == OLD
    assert [hit.path for hit in reader.search("a", mode="bm25")] == ["a.txt"]
    assert reader.search("cat", mode="lorentz")
    assert texts(HybridIndex.load(saved, encoder)) == NEW


def test_two_writers_of_one_process_wait_for_each_other(saved):
    order = []
    inside = threading.Event()

    def other():
        inside.wait()
        with writing(saved):
            order.append("second")

    thread = threading.Thread(target=other)
    thread.start()
    with writing(saved), writing(saved):  # who holds it may enter again
        inside.set()
        time.sleep(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def enter(folder, wait):
    with writing(folder, wait):
        pass


HOLD = """
import sys, time
from hyte.lock import writing
from tests.conftest import ROOT
with writing(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_writer_elsewhere_is_told_of_and_a_dead_one_leaves_no_lock(saved):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(saved)], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(InputError, match="another process is writing to this index, still after 0.1 s"):
        enter(saved, 0.1)
    HybridIndex.load(saved)  # readers do not wait
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    with writing(saved, wait=5):
        pass


REBUILD = """
import sys
from hyte import HybridIndex, Settings
while True:
    for word in ("alpha", "beta"):
        index = HybridIndex(None, Settings(analyzer="alnum"))
        for i in range(30 if word == "alpha" else 20):
            index.add(f"{word}{i}", f"{word} common " * (i + 1))
        index.save(sys.argv[1])
"""


def answer(index):
    """Which corpus answers, and that it does so wholly."""
    hits = index.search("common", 99, mode="bm25")
    (word,) = {hit.path.rstrip("0123456789") for hit in hits}
    assert len(hits) == {"alpha": 30, "beta": 20, "first": 50}[word]
    assert all(word in hit.text for hit in hits)
    return word


def test_every_answer_is_of_one_generation_while_another_process_rebuilds(tmp_path):
    first = HybridIndex(None, Settings(analyzer="alnum"))
    for i in range(50):  # more than those that take its place
        first.add(f"first{i}", "first common")
    first.save(tmp_path)
    kept = HybridIndex.load(tmp_path)
    writer = subprocess.Popen([sys.executable, "-c", REBUILD, str(tmp_path)])
    try:
        seen, until = set(), time.monotonic() + 60
        while not {"alpha", "beta"} <= seen and time.monotonic() < until:
            for _ in range(50):
                seen.add(answer(HybridIndex.load(tmp_path)))
                assert answer(kept) == "first"
        assert {"alpha", "beta"} <= seen
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()


READ = """
import sys, time
from hyte import HybridIndex
from tests.test_commits import answer
until, seen = time.monotonic() + float(sys.argv[2]), set()
while time.monotonic() < until:
    seen.add(answer(HybridIndex.load(sys.argv[1])))
print(*sorted(seen))
"""


@pytest.mark.slow
def test_four_readers_in_processes_of_their_own_see_one_generation_each_for_half_a_minute(tmp_path):
    writer = subprocess.Popen([sys.executable, "-c", REBUILD, str(tmp_path)])
    try:
        while not (tmp_path / "idx.bin").exists():
            time.sleep(0.05)
        command = [sys.executable, "-c", READ, str(tmp_path), "30"]
        readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(4)]
        assert [reader.communicate()[0] for reader in readers] == ["alpha beta\n"] * 4
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()


@pytest.mark.parametrize("refusals", [2, 10**9])
def test_a_file_that_windows_holds_is_tried_again_and_then_told_of(saved, encoder, monkeypatch, refusals):
    calls, real = count(1), os.replace

    def held(source, target):
        if next(calls) <= refusals:
            raise PermissionError(13, "held by another process", str(source), None, str(target))
        real(source, target)

    monkeypatch.setattr("os.replace", held)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    if refusals == 2:
        change(saved, encoder)
        assert texts(HybridIndex.load(saved, encoder)) == NEW
    else:
        with pytest.raises(PermissionError, match=r"idx.bin"):
            change(saved, encoder)
        assert texts(HybridIndex.load(saved, encoder)) == OLD
    assert sorted(os.listdir(saved)) == sorted(FILES)


def test_a_reader_that_holds_texts_z_on_windows_does_not_stop_a_commit(saved, encoder, monkeypatch):
    real = os.replace

    def held(source, target):
        if str(target).endswith("texts.z"):
            raise PermissionError(13, "held", str(source), None, str(target))
        real(source, target)

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", held)
        change(saved, encoder)
        assert texts(HybridIndex.load(saved, encoder)) == NEW
    HybridIndex.load(saved, encoder).save(saved)
    assert texts(HybridIndex.load(saved, encoder)) == NEW
    assert sorted(os.listdir(saved)) == sorted(FILES)


def test_the_lock_works_where_there_is_no_flock(saved, monkeypatch):
    class Locking:
        LK_NBLCK = 1
        taken = False

        def locking(self, handle, mode, size):
            if self.taken:
                raise PermissionError(13, "locked")
            self.taken = True

    monkeypatch.setattr(lock, "fcntl", None)
    monkeypatch.setattr(lock, "msvcrt", Locking(), raising=False)
    with writing(saved):
        lock._held.folders.clear()
        with pytest.raises(InputError, match="another process"):
            enter(saved, 0)


FULL = """
import resource, sys
from hyte import HybridIndex, Settings
index = HybridIndex.load(sys.argv[1], need_encoder=False)
index.remove("a.txt")
index.compact()
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    index.save(sys.argv[1])
except OSError as error:
    print(error.filename)
    sys.exit(7)
"""


@pytest.mark.parametrize("limit", [0, 10, 100, 1000])
def test_a_disk_that_fills_up_leaves_the_old_generation_and_names_the_file(saved, encoder, limit):
    before = {name: (saved / name).read_bytes() for name in FILES}
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(saved), str(limit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith(str(saved))
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert texts(HybridIndex.load(saved, encoder)) == OLD


def test_a_text_is_read_after_any_sequence_of_saves(tmp_path):
    """Blocks are taken over, dropped and packed anew; each text stays what it was."""
    random_ = random.Random(0)
    index, held = HybridIndex(None, Settings(analyzer="whitespace")), {}
    for step in range(60):
        path = f"d{random_.randrange(8)}"
        held.pop(path, None)
        held[path] = random_.choice(["", "é", "x" * random_.choice([10, 16_383, 16_384, 16_385, 50_000])]) + str(step)
        index.add(path, held[path])
        if step % 7 == 3 and path in held:
            gone = random_.choice(list(held))
            index.remove(gone)
            del held[gone]
        index.save(tmp_path)
        if step % 5 == 0:
            index = HybridIndex.load(tmp_path)
        assert texts(HybridIndex.load(tmp_path)) == held
        index.check()
    index.compact()
    index.save(tmp_path)
    assert texts(HybridIndex.load(tmp_path)) == held
