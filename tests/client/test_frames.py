"""Server-sent events, cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.frames import Frame, Frames

STREAM = (
    b"retry: 1000\n\n: still here\n\n"
    b'id: 7\nevent: event\ndata: {"a": "\xc3\xa9: b"}\n\n'
    b"id: 7/m/0/12\nevent: delta\ndata: {}\n\n"
    b"event: queue\ndata: []\n\n"
)
WHOLE = [
    Frame("event", b'{"a": "\xc3\xa9: b"}', "7"),
    Frame("delta", b"{}", "7/m/0/12"),
    Frame("queue", b"[]", None),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_frames_are_the_same_however_their_bytes_come(size: int) -> None:
    frames = Frames()
    found = [frame for at in range(0, len(STREAM), size) for frame in frames.feed(STREAM[at : at + size])]
    assert found == WHOLE


def test_a_frame_that_was_cut_is_not_told() -> None:
    assert Frames().feed(STREAM[:-1]) == WHOLE[:-1]


LINES = st.sampled_from(
    [b"\n", b"\n\n", b": ", b":", b"id", b"event", b"data", b"\r", b"\x00", b"\xc3", b"7/m/0/1", b"{}", STREAM]
)


@given(st.lists(LINES | st.binary(max_size=20), max_size=30), st.integers(1, 50))
def test_any_bytes_give_the_same_frames_however_they_come(pieces: list[bytes], size: int) -> None:
    sent = b"".join(pieces)
    frames = Frames()
    found = [frame for at in range(0, len(sent), size) for frame in frames.feed(sent[at : at + size])]
    one_by_one = Frames()
    assert [frame for at in range(len(sent)) for frame in one_by_one.feed(sent[at : at + 1])] == found
