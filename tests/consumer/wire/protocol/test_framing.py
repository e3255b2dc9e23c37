"""shmstore.consumer.wire.protocol.framing: packets out of a stream of bytes."""

import pytest

from shmstore.consumer.wire.protocol.framing import FrameReader, frame
from shmstore.errors import ProtocolError

PACKETS = [b"", b"x", b"\0" * 5, bytes(range(256)) * 3]


def test_every_split() -> None:
    """The same packets come out wherever the stream is cut in two, and when it comes byte by byte."""
    stream = b"".join(map(frame, PACKETS))
    for cut in range(len(stream) + 1):
        reader, found = FrameReader(1000), []
        for chunk in (stream[:cut], stream[cut:]):
            reader.feed(chunk)
            while (packet := reader.next()) is not None:
                found.append(packet)
        assert found == PACKETS
        assert reader.buffered == 0
    reader, found = FrameReader(1000), []
    for i in range(len(stream)):
        reader.feed(stream[i : i + 1])
        while (packet := reader.next()) is not None:
            found.append(packet)
    assert found == PACKETS


@pytest.mark.parametrize("head", [b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x03\xe9", b"\x7f\xff\xff\xff"])
def test_refused_lengths(head: bytes) -> None:
    """A negative length and one above the limit are refused as soon as they are seen; nothing is waited for or allocated."""
    reader = FrameReader(1000)
    reader.feed(head)
    with pytest.raises(ProtocolError, match="allowed are 0 to 1000"):
        reader.next()
