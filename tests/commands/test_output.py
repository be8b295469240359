"""Output is readable by its offset: all of it, or the beginning and the end."""

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commands import output
from holdfast.commands.output import EITHER, STDERR, STDOUT, OutputReader, OutputWriter

PIECES = st.lists(st.tuples(st.binary(min_size=1, max_size=70), st.sampled_from([STDOUT, STDERR])), max_size=40)


def written(folder: Path, ceiling: int, pieces: list[tuple[bytes, int]]) -> OutputReader:
    writer = OutputWriter(folder, ceiling)
    for data, stream in pieces:
        assert writer.append(data, stream) == len(data)
    assert writer.size == sum(len(data) for data, _ in pieces)
    writer.close()
    return OutputReader(folder, ceiling)


@settings(max_examples=150, deadline=None)
@given(ceiling=st.integers(16, 600), pieces=PIECES, offset=st.integers(0, 3000), length=st.integers(0, 700))
def test_every_read_is_true_and_what_must_be_kept_is(
    ceiling: int, pieces: list[tuple[bytes, int]], offset: int, length: int
) -> None:
    with tempfile.TemporaryDirectory() as place:
        reader = written(Path(place), ceiling, pieces)
        whole = b"".join(data for data, _ in pieces)
        assert reader.size == len(whole)
        chunk = reader.read(offset, length)
        assert chunk.data == whole[chunk.offset : chunk.offset + len(chunk.data)]
        assert len(chunk.data) <= length
        if len(whole) <= ceiling:
            assert (chunk.offset, chunk.data) == (offset, whole[offset : offset + length])
            assert (Path(place) / "output").read_bytes() == whole
        assert reader.read(0, ceiling // 2).data == whole[: ceiling // 2]
        tail = min(ceiling // 8 * 3, len(whole))
        assert reader.read(len(whole) - tail, tail).data == whole[len(whole) - tail :]
        kept = sum(path.stat().st_size for path in Path(place).iterdir() if path.name[-1].isdecimal())
        assert kept <= ceiling // 8 * 4


@settings(max_examples=100, deadline=None)
@given(pieces=PIECES, offset=st.integers(0, 500), length=st.integers(1, 700))
def test_each_stream_can_be_read_alone(pieces: list[tuple[bytes, int]], offset: int, length: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        reader = written(Path(place), 100_000, pieces)
        out = b"".join(data for data, stream in pieces if stream == STDOUT)
        err = b"".join(data for data, stream in pieces if stream == STDERR)
        assert reader.read_stream("stdout", offset, length).data == out[offset : offset + length]
        assert reader.read_stream("stderr", offset, length).data == err[offset : offset + length]
        assert (reader.stream_size("stdout"), reader.stream_size("stderr")) == (len(out), len(err))
        assert sum(run.end - run.start for run in reader.runs()) == reader.size
        assert all(one.end == following.start for one, following in itertools.pairwise(reader.runs()))


def test_streams_that_take_turns_without_end_are_no_longer_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MAX_TURNS", 4)
    reader = written(tmp_path, 1000, [(b"x", number % 2) for number in range(50)])
    assert [run.stream for run in reader.runs()] == [STDOUT, STDERR, STDOUT, STDERR, EITHER]
    assert (tmp_path / "output.streams").stat().st_size == 32
    assert reader.read(0, 100).data == b"x" * 50


def test_a_reader_in_the_gap_learns_where_it_goes_on(tmp_path: Path) -> None:
    reader = written(tmp_path, 80, [(bytes([65 + number // 10]), STDOUT) for number in range(260)])
    chunk = reader.read(45, 5)
    assert chunk.offset > 45
    assert chunk.data == bytes([65 + chunk.offset // 10]) * len(chunk.data)
    assert b"the middle is gone" in (tmp_path / "output").read_bytes()


def test_an_index_that_a_crash_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    reader = written(tmp_path, 1000, [(b"out", STDOUT), (b"err", STDERR)])
    with open(tmp_path / "output.streams", "ab") as index:
        index.write(b"\1\2\3")
    assert [(run.start, run.end, run.stream) for run in reader.runs()] == [(0, 3, STDOUT), (3, 6, STDERR)]
