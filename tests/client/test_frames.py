"""Server-sent events, cut anywhere."""

import pytest

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
