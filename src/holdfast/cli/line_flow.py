"""The flow of streamed, styled text into lines of a given width. Pure."""

from collections.abc import Callable, Iterable

from holdfast.cli.request_lines import BAR
from holdfast.cli.transcript import Piece, Style

TAB = "    "


class LineFlow:
    """Returns whole lines as they fill up; `rest` is the line that is not finished yet."""

    def __init__(self, width_of: Callable[[str], int]) -> None:
        self._width_of = width_of
        self._line: list[tuple[Style, str]] = []
        self._columns = 0

    def feed(self, pieces: Iterable[Piece], width: int) -> list[list[Piece]]:
        done: list[list[Piece]] = []
        for style, text in pieces:
            for character in text.replace("\t", TAB):
                if character == "\n":
                    done.append(_joined(self._line))
                    self._start([])
                else:
                    self._line.append((style, character))
                    self._columns += self._width_of(character)
                    if self._columns > max(width, 1):
                        done.append(self._wrap(width))
        return done

    @property
    def rest(self) -> list[Piece]:
        return _joined(self._line)

    def _wrap(self, width: int) -> list[Piece]:
        """Cut at the last space, or before the last character of a word that is longer than a line. The rest of a line
        with a bar begins with a bar too, so that it can't pass for a line of ours."""
        bar = self._line[: len(BAR)] if width > 2 * len(BAR) and _text(self._line).startswith(BAR) else []
        spaces = [index for index, (_, character) in enumerate(self._line) if character == " " and index > len(bar)]
        at = spaces[-1] if spaces else 0
        if at:
            whole, left = self._line[:at], self._line[at + 1 :]
        else:
            whole, left = self._line[:-1], self._line[-1:]
        self._start([*bar, *left])
        return _joined(whole)

    def _start(self, line: list[tuple[Style, str]]) -> None:
        self._line = line
        self._columns = sum(self._width_of(character) for _, character in line)


def _text(line: list[tuple[Style, str]]) -> str:
    return "".join(character for _, character in line[: len(BAR)])


def _joined(line: list[tuple[Style, str]]) -> list[Piece]:
    pieces: list[Piece] = []
    for style, character in line:
        if pieces and pieces[-1].style == style:
            pieces[-1] = Piece(style, pieces[-1].text + character)
        else:
            pieces.append(Piece(style, character))
    return pieces
