"""weights.bin and the published matrices: bytes at their documented places, damage refused in one line."""

import hashlib
import struct

import numpy as np
import pytest

from hyte.errors import InputError
from hyte.weights import KINDS, quantise, read_matrix, read_weights, write_matrix, write_weights

SHA = hashlib.sha256(b"tokenizer").hexdigest()
ROWS = np.array([[1.0, -2.0], [0.5, 3.0], [0.0, 0.25]], np.float32)


@pytest.fixture
def blob(tmp_path):
    path = tmp_path / "weights.bin"
    write_weights(path, ROWS, 2.0, "oem_radial", 1.5, SHA)
    return path


@pytest.fixture
def int8_blob(tmp_path):
    path = tmp_path / "weights8.bin"
    write_weights(path, ROWS, 2.0, "oem_radial", 1.5, SHA, "int8")
    return path


def signed(raw):
    """The bytes with both checksums made right again, as another writer would have them."""
    raw = bytearray(raw)
    raw[88:120] = hashlib.sha256(raw[256:]).digest()
    raw[120:152] = hashlib.sha256(raw[:120]).digest()
    return raw


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


def test_a_reader_in_another_language_finds_int8_rows(int8_blob):
    raw = int8_blob.read_bytes()
    assert struct.unpack_from("<IIII", raw, 8) == (1, 1, 3, 2)
    # By hand: the scales are 2/127, 3/127, 0.25/127; 1 is 63.5 scales and goes to the even 64, 0.5 is 21.17 scales.
    np.testing.assert_allclose(struct.unpack_from("<3f", raw, 256), [2 / 127, 3 / 127, 0.25 / 127], rtol=1e-7)
    assert struct.unpack_from("<6b", raw, 268) == (64, -127, 21, 127, 0, 127)
    assert len(raw) == 256 + 4 * 3 + 6
    assert raw[88:120] == hashlib.sha256(raw[256:]).digest()


def test_int8_rows_are_read_as_float32_products(int8_blob):
    weights = read_weights(int8_blob)
    scales = np.array([2, 3, 0.25], np.float32) / np.float32(127)
    expected = np.array([[64, -127], [21, 127], [0, 127]], np.float32) * scales[:, None]
    assert weights.rows.dtype == np.float32
    assert weights.rows.tobytes() == expected.tobytes()
    assert (weights.k, weights.pooling, weights.power, weights.tokenizer_sha256) == (2.0, "oem_radial", 1.5, SHA)


def test_the_two_kinds_have_fingerprints_of_their_own(blob, int8_blob):
    assert read_weights(blob).fingerprint != read_weights(int8_blob).fingerprint


@pytest.mark.parametrize("spread", [1e-30, 1e-3, 1.0, 1e30])
def test_no_coordinate_is_off_by_more_than_half_a_scale(spread):
    rows = (np.random.default_rng(0).standard_t(2, size=(500, 96)) * spread).astype(np.float32)
    scales, whole = quantise(rows)
    np.testing.assert_array_equal(scales, np.array([max(abs(x) for x in row) for row in rows], np.float32) / 127)
    exact = scales.astype(np.float64)[:, None] * whole  # 24 bits times 8: no rounding
    assert (np.abs(rows - exact) <= scales[:, None] / 2).all()
    assert (np.abs(whole).max(axis=1) == 127).all()


def test_ties_go_to_the_even_number():
    scales, whole = quantise([[127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 0.5000001]])
    assert scales == 1
    assert whole.tolist() == [[127, 0, 2, 2, 0, -2, 126, 1]]


@pytest.mark.parametrize("row", [[0.0, -0.0], [1e-45, 2e-45], [1.4e-36, -1e-40]])
def test_rows_too_small_for_a_scale_become_zeros(tmp_path, row):
    write_weights(tmp_path / "w", [row, [1, 0]], 1.0, "oem", 1.0, SHA, "int8")
    np.testing.assert_array_equal(read_weights(tmp_path / "w").rows[0], [0, 0])


def test_infinite_power_survives(tmp_path):
    write_weights(tmp_path / "w", ROWS, 1.0, "oem", np.inf, SHA)
    assert read_weights(tmp_path / "w").power == np.inf


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_byte_is_refused(tmp_path, kind):
    blob = tmp_path / "weights.bin"
    write_weights(blob, ROWS, 2.0, "oem_radial", 1.5, SHA, kind)
    raw = blob.read_bytes()
    for offset in range(len(raw)):
        damaged = bytearray(raw)
        damaged[offset] ^= 0x40
        blob.write_bytes(damaged)
        with pytest.raises(InputError, match=str(blob)):
            read_weights(blob)


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation_and_extension_is_refused(tmp_path, kind):
    blob = tmp_path / "weights.bin"
    write_weights(blob, ROWS, 2.0, "oem_radial", 1.5, SHA, kind)
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
    blob.write_bytes(signed(raw))
    with pytest.raises(InputError, match="row 0 holds a value that is not finite"):
        read_weights(blob)
    for shape in [(3,), (0, 2), (2, 2, 2)]:
        with pytest.raises(InputError, match="table"):
            write_weights(tmp_path / "bad", np.zeros(shape), 1.0, "oem", 1.0, SHA)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, -1e-45, 3e36])
def test_a_scale_that_is_none_is_named(int8_blob, scale):
    raw = bytearray(int8_blob.read_bytes())
    raw[260:264] = struct.pack("<f", scale)
    int8_blob.write_bytes(signed(raw))
    with pytest.raises(InputError, match=rf"{int8_blob}: the scale of row 1 is .*, not from 0 to 2.7e\+36; export"):
        read_weights(int8_blob)


def test_rows_whose_int8_form_would_overflow_are_not_written(tmp_path):
    with pytest.raises(InputError, match="the scale of row 0 is 2.6"):
        write_weights(tmp_path / "w", [[3.4e38, 0]], 1.0, "oem", 1.0, SHA, "int8")
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("kind", [0, 1])
def test_sizes_that_the_file_has_not_are_refused_before_memory_is_taken(int8_blob, kind):
    raw = bytearray(int8_blob.read_bytes())
    raw[12:24] = struct.pack("<III", kind, 2**32 - 1, 2**32 - 1)
    int8_blob.write_bytes(signed(raw))
    with pytest.raises(InputError, match="truncated: 274 bytes"):
        read_weights(int8_blob)


def test_unknown_kinds_are_refused_when_writing_and_when_reading(tmp_path, blob):
    with pytest.raises(InputError, match="rows=int4 is unknown: use one of float32, int8"):
        write_weights(tmp_path / "w", ROWS, 1.0, "oem", 1.0, SHA, "int4")
    raw = bytearray(blob.read_bytes())
    raw[12] = 2
    blob.write_bytes(signed(raw))
    with pytest.raises(InputError, match="the header says kind 2, 3 x 2, not float32 or int8 rows"):
        read_weights(blob)


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
