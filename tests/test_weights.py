"""weights.bin and the published matrices: bytes at their documented places, damage refused in one line."""

import hashlib
import struct

import numpy as np
import pytest

from hyte.errors import InputError
from hyte.weights import DATA_OFFSET, read_matrix, read_weights, write_matrix, write_weights

SHA = hashlib.sha256(b"tokenizer").hexdigest()
ROWS = np.array([[1.0, -2.0], [0.5, 3.0], [0.0, 0.25]], np.float32)


@pytest.fixture
def blob(tmp_path):
    path = tmp_path / "weights.bin"
    write_weights(path, ROWS, 2.0, "oem_radial", 1.5, SHA)
    return path


def test_a_reader_in_another_language_finds_every_field(blob):
    raw = blob.read_bytes()
    assert raw[:8] == b"HYTEWGT\0"
    assert struct.unpack_from("<IIII", raw, 8) == (1, 0, 3, 2)
    assert struct.unpack_from("<dd", raw, 24) == (2.0, 1.5)
    assert raw[40:56] == b"oem_radial\0\0\0\0\0\0"
    assert raw[56:88].hex() == SHA
    assert raw[88:120] == hashlib.sha256(raw[256:]).digest()
    assert raw[120:152] == hashlib.sha256(raw[:120]).digest()
    assert raw[256:260] == bytes.fromhex("0000803f")  # 1.0, little-endian
    assert len(raw) == 256 + 4 * 6


def test_round_trip(blob):
    weights = read_weights(blob)
    np.testing.assert_array_equal(weights.rows, ROWS)
    assert (weights.k, weights.pooling, weights.power, weights.tokenizer_sha256) == (2.0, "oem_radial", 1.5, SHA)
    assert isinstance(weights.rows, np.memmap)


def test_infinite_power_survives(tmp_path):
    write_weights(tmp_path / "w", ROWS, 1.0, "oem", np.inf, SHA)
    assert read_weights(tmp_path / "w").power == np.inf


def test_every_flipped_byte_is_refused(blob):
    raw = blob.read_bytes()
    for offset in [*range(152), *range(DATA_OFFSET, len(raw))]:
        damaged = bytearray(raw)
        damaged[offset] ^= 0x40
        blob.write_bytes(damaged)
        with pytest.raises(InputError, match=str(blob)):
            read_weights(blob)


def test_every_truncation_and_extension_is_refused(blob):
    raw = blob.read_bytes()
    for length in range(len(raw)):
        blob.write_bytes(raw[:length])
        with pytest.raises(InputError, match=str(blob)):
            read_weights(blob)
    blob.write_bytes(raw + b"\0")
    with pytest.raises(InputError, match=f"{len(raw) + 1} bytes, its header says {len(raw)}"):
        read_weights(blob)


def test_bad_values_are_refused_when_writing_and_when_reading(tmp_path, blob):
    bad = ROWS.copy()
    bad[1, 0] = np.nan
    with pytest.raises(InputError, match="row 1 holds a value that is not finite"):
        write_weights(tmp_path / "bad", bad, 1.0, "oem", 1.0, SHA)
    assert not (tmp_path / "bad").exists()
    # A blob by another writer, checksums right, NaN inside.
    raw = bytearray(blob.read_bytes())
    raw[256:260] = struct.pack("<f", np.inf)
    raw[88:120] = hashlib.sha256(raw[256:]).digest()
    raw[120:152] = hashlib.sha256(raw[:120]).digest()
    blob.write_bytes(raw)
    with pytest.raises(InputError, match="row 0 holds a value that is not finite"):
        read_weights(blob)
    for shape in [(3,), (0, 2), (2, 2, 2)]:
        with pytest.raises(InputError, match="table"):
            write_weights(tmp_path / "bad", np.zeros(shape), 1.0, "oem", 1.0, SHA)


@pytest.mark.parametrize(
    ("offset", "field"), [(24, struct.pack("<d", -1)), (32, struct.pack("<d", np.nan)), (40, b"median")]
)
def test_a_header_that_means_nothing_is_refused_with_its_file(blob, offset, field):
    raw = bytearray(blob.read_bytes())
    raw[offset : offset + len(field)] = field
    raw[120:152] = hashlib.sha256(raw[:120]).digest()
    blob.write_bytes(raw)
    with pytest.raises(InputError, match=rf"{blob}: the header \(offset 24\) says: .*export the artifact again"):
        read_weights(blob)


def test_other_versions_and_foreign_files_say_what_they_are(blob, tmp_path):
    raw = bytearray(blob.read_bytes())
    raw[8] = 9
    blob.write_bytes(raw)
    with pytest.raises(InputError, match="format version 9, this program reads 1"):
        read_weights(blob)
    blob.write_bytes(raw[::-1])
    with pytest.raises(InputError, match="not a HyTE weights file"):
        read_weights(blob)
    with pytest.raises(InputError, match="no weights there"):
        read_weights(tmp_path / "missing")


def test_published_matrices_have_the_published_bytes(tmp_path):
    path = tmp_path / "proj_weight.bin"
    write_matrix(path, ROWS)
    assert path.read_bytes() == struct.pack("<ii6f", 3, 2, 1.0, -2.0, 0.5, 3.0, 0.0, 0.25)
    np.testing.assert_array_equal(read_matrix(path), ROWS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0\0", "truncated: 3 bytes"),
        (struct.pack("<ii", -1, 2), "the header says -1 x 2"),
        (struct.pack("<ii", 2**31 - 1, 2**31 - 1), "truncated: 8 bytes"),
        (struct.pack("<ii2f", 1, 1, 0, 0), "too long: 16 bytes"),
        (struct.pack("<iif", 1, 1, np.nan), "not finite"),
    ],
)
def test_bad_published_matrices_are_refused_before_memory_is_taken(tmp_path, content, message):
    path = tmp_path / "m.bin"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_matrix(path)
