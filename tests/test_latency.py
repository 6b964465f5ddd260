"""eval.latency on a small collection."""

import json
import os

import pytest

from eval.latency import main


@pytest.fixture
def collection(tmp_path):
    folder = tmp_path / "small"
    (folder / "qrels").mkdir(parents=True)
    lines = [{"_id": str(i), "title": "", "text": f"the cat {i} sat, blue sea"} for i in range(30)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "the blue cat"}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t3\t1\n")
    return folder


@pytest.fixture(autouse=True)
def _same_cores():
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)


def test_it_prints_a_row_a_step_the_sizes_and_what_adding_costs(collection, tiny_artifact, capsys):
    main([str(collection), "--artifact", str(tiny_artifact), "--chunks", "20", "--grown", "300", "--repeats", "3"])
    out = capsys.readouterr().out
    assert out.startswith("20 chunks of small, one core")
    rows = [line.split(" | ") for line in out.splitlines() if line.startswith("| ")]
    assert [row[0].strip("| ") for row in rows] == [
        "step",
        "reopen",
        "BM25, all chunks",
        "re-rank of 50",
        "whole query",
    ]
    assert all(0 < float(row[1]) <= 1.01 * float(row[2]) for row in rows[1:])
    assert "idx.bin 0.0" in out
    assert "the matrix in idx.bin: 0.00 MB" in out
    assert "adding one document to 20 chunks: " in out
    assert "adding one document to 300 chunks: " in out


def test_no_chunks_are_refused(collection, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(collection), "--chunks", "0"])
    assert stopped.value.code == 2
    assert "must be 1 or more" in capsys.readouterr().err
