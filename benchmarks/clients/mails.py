"""Mail bodies: half words, half base64, no two alike, so that neither compression nor sharing flatters a figure."""

from __future__ import annotations

import base64
import random

LINE_BYTES = 76
POOL_MAX = 256


class MailTexts:
    """Mails of `size_bytes` each, cheap to generate: from a pool of bodies, under headers that count up."""

    def __init__(self, size_bytes: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._made = 0
        words = ["".join(self._random.choices("etaoinshrdlu", k=self._random.randint(2, 9))) for _ in range(2000)]
        room = max(size_bytes - len(self._header()) - 2 * LINE_BYTES, LINE_BYTES)
        self._bodies = [self._body(words, room) for _ in range(POOL_MAX)]

    def __next__(self) -> bytes:
        self._made += 1
        unique = base64.b64encode(self._random.randbytes(LINE_BYTES * 3 // 4))
        return self._header() + unique + b"\r\n" + self._bodies[self._made % POOL_MAX]

    def _header(self) -> bytes:
        return (
            "Return-Path: <bench@example.org>\r\n"
            "Received: from mx1.example.org (mx1.example.org [192.0.2.1]) by mx2.example.org with ESMTPS\r\n"
            f"\tid {self._seed:08x}{self._made:010d}; Mon, 6 Jan 2025 08:{self._made // 60 % 60:02d}:00 +0000\r\n"
            f"Message-ID: <{self._made}.{self._seed}@bench.example.org>\r\n"
            "Date: Mon, 6 Jan 2025 08:00:00 +0000\r\n"
            "From: Bench <bench@example.org>\r\n"
            "To: Someone <someone@example.org>\r\n"
            f"Subject: Report number {self._made}\r\n"
            "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=us-ascii\r\n\r\n"
        ).encode()

    def _body(self, words: list[str], size_bytes: int) -> bytes:
        lines: list[bytes] = []
        for number in range(size_bytes // (LINE_BYTES + 2)):
            if number % 2:
                lines.append(base64.b64encode(self._random.randbytes(LINE_BYTES * 3 // 4)))
            else:
                lines.append(" ".join(self._random.choices(words, k=20))[:LINE_BYTES].encode())
        return b"\r\n".join(lines) + b"\r\n"
