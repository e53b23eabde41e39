"""Pieces of an archived log: their names and their text."""

import gzip

import pytest

from slipway.errors import InvalidError
from slipway.logarchive import pieces
from slipway.streams.logpacks import EVENT, LogLine, StoredLine
from tests.support.redis import an_id

TIME = "2026-01-02T03:04:05.000000001Z"


def stored(cursor: str, number: int, text: str = "text", *, follows: int = -1, stream: str = "stdout") -> StoredLine:
    line = LogLine(
        attempt=1, rank=2, stream=stream, container="side", time=TIME, text=text, number=number, follows=follows
    )
    return StoredLine(cursor=cursor, line=line)


def test_lines_come_back_as_they_were() -> None:
    """Lines are decoded with their cursors, numbers and gaps, also empty lines and lines with spaces."""
    lines = [
        stored("1-0", 1),
        stored("1-1", 7, "", follows=1),
        stored("2-0", 8, " a  b\r\u20ac"),
        stored("3-0", 0, stream=EVENT),
    ]
    assert pieces.decode_piece(pieces.encode_piece(lines)) == lines


def test_the_same_lines_make_the_same_bytes() -> None:
    """The same lines become the same bytes, in any process and at any time."""
    assert pieces.encode_piece([stored("1-0", 1)]) == pieces.encode_piece([stored("1-0", 1)])


def test_names_sort_as_cursors_do() -> None:
    """Names sort like their cursors, also with different numbers of digits."""
    cursors = ["0-0", "9-10", "10-2", "10-10", "1795886932254-274"]
    paths = [pieces.piece_path("team", an_id(), cursor) for cursor in cursors]
    assert sorted(paths) == paths
    assert pieces.starts_of(reversed(paths)) == cursors


@pytest.mark.parametrize(
    "text", [b"no line\n", b"1-0 x 1/0/stdout/ t text\n", b"1 1 1/0/stdout/ t text\n", b"1-0 1 log t text\n"]
)
def test_text_of_another_form_is_refused(text: bytes) -> None:
    """Text of another format is refused, so that an object of another program does not break a reader."""
    with pytest.raises(InvalidError):
        pieces.decode_piece(gzip.compress(text))


def test_what_is_no_gzip_or_is_cut_short_is_refused() -> None:
    """Bytes that are no gzip, or are cut short as by an interrupted upload, are refused."""
    for data in (b"", b"text", pieces.encode_piece([stored("1-0", 1)])[:-9]):
        with pytest.raises(InvalidError):
            pieces.decode_piece(data)


def test_a_line_is_copied_once_when_a_stream_is_told_again() -> None:
    """When a stream is written again, a line is copied once, by its number; events of Kubernetes have none."""
    numbers = pieces.LastNumbers()
    assert len(numbers.fresh([stored("1-0", 1), stored("1-1", 2)])) == 2
    again = [stored("5-0", 1), stored("5-1", 2), stored("5-2", 3), stored("5-3", 0, stream=EVENT)]
    assert [each.cursor for each in numbers.fresh(again)] == ["5-2", "5-3"]
