"""Files that are written whole or not at all."""

import os
import time

import pytest

from hyte.errors import InputError
from hyte.files import atomic_write, check_folder


def test_what_killed_processes_left_goes_with_the_next_write_and_nothing_else(tmp_path):
    left = [".a.abcd_123.tmp", ".a.b.abcd1234.tmp", ".b.abcd1234.tmp", ".a.abcd1234", "a.abcd1234.tmp", ".a.tmp"]
    for name in left:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - 3700,) * 2)
    (tmp_path / ".a.zzzz9999.tmp").touch()  # of a process that is still at it
    with atomic_write(tmp_path / "a") as file:
        file.write(b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
    assert {path.name for path in tmp_path.iterdir()} == {"a", ".a.zzzz9999.tmp", *left[1:]}


def test_a_name_with_signs_of_patterns_is_taken_as_it_stands(tmp_path):
    for name in (".x1.abcd1234.tmp", ".x[1].abcd1234.tmp"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    with atomic_write(tmp_path / "x[1]"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"x[1]", ".x1.abcd1234.tmp"}


def test_a_folder_cannot_be_where_a_file_is(tmp_path):
    (tmp_path / "f").touch()
    for path in (tmp_path / "f", tmp_path / "f" / "x" / "y"):
        with pytest.raises(InputError, match=f"^out={path}: {tmp_path / 'f'} is a file; name a folder$"):
            check_folder("out", path)
    check_folder("out", tmp_path)
    check_folder("out", tmp_path / "new" / "newer")
