"""Contents without their transfer encoding (RFC 3516), decoded as they are read: once to measure, once to send.

So a large attachment is never in memory, and a client that fetches it does not delay others.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import trio

from replicator.imap.text.transfer_encodings import DECODERS
from replicator.imap.wire.fetch_items import Chunk, Decoded, Printed
from replicator.mail.mailstore import BodyReader


async def measured(value: Printed, body: BodyReader) -> Printed:
    """Return the value with the lengths of what is to be decoded, which is read for that.

    Raises ContentUnavailableError.
    """
    if not any(isinstance(chunk, Decoded) for chunk in value.chunks):
        return value
    chunks: list[Chunk] = []
    for chunk in value.chunks:
        if not isinstance(chunk, Decoded):
            chunks.append(chunk)
            continue
        size_bytes = 0
        async with aclosing(decoded(chunk, body)) as octets:
            async for some in octets:
                size_bytes += len(some)
        chunks += (b"%d" % size_bytes,) if chunk.size_only else (b"~{%d}\r\n" % size_bytes, chunk)
    return Printed(tuple(chunks))


async def decoded(chunk: Decoded, body: BodyReader) -> AsyncGenerator[bytes, None]:
    """Yield the decoded octets. Raises ContentUnavailableError."""
    decoder = DECODERS[chunk.encoding]()
    skip, left = chunk.origin, chunk.length
    async with aclosing(body.read(chunk.start, chunk.end)) as octets:
        async for some in octets:
            found = decoder.write(some)
            yield (wanted := found[skip:][:left])
            skip = max(0, skip - len(found))
            left = left if left is None else left - len(wanted)
            if left == 0:
                return
            await trio.lowlevel.checkpoint()
    yield decoder.finish()[skip:][:left]
