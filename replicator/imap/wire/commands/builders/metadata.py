"""GETMETADATA and SETMETADATA (RFC 5464 section 5)."""

from __future__ import annotations

from lark import Token, v_args

from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.commands.builders.text_values import MeaninglessError, latin, octet_count
from replicator.imap.wire.commands.builders.values import ValueBuilder


@v_args(inline=True)
class MetadataBuilder(ValueBuilder):
    """Builds the commands on annotations."""

    def get_metadata(
        self, options: tuple[int | float, ...] | None, mailbox: str, entries: tuple[str, ...]
    ) -> c.Command:
        sizes = [one for one in options or () if isinstance(one, int)]
        depths = [one for one in options or () if isinstance(one, float)]
        if len(sizes) > 1 or len(depths) > 1:
            raise MeaninglessError("each option may stand once")
        return c.GetMetadata(mailbox, entries, sizes[0] if sizes else None, depths[0] if depths else 0.0)

    def get_metadata_of(self, mailbox: str, options: tuple[int | float, ...], entries: tuple[str, ...]) -> c.Command:
        return self.get_metadata(options, mailbox, entries)

    def metadata_options(self, *options: float) -> tuple[int | float, ...]:
        return options

    def metadata_max_size(self, size: Token) -> int:
        return octet_count(size)

    def metadata_depth(self, depth: Token) -> float:
        return float(depth)

    def metadata_entries(self, *entries: str) -> tuple[str, ...]:
        return entries

    def metadata_entry(self, name: bytes) -> str:
        if b"*" in name or b"%" in name:  # RFC 5464 section 5
            raise MeaninglessError("the name of an annotation has no * and no %")
        return latin(name).lower()

    def set_metadata(self, mailbox: str, *values: tuple[str, bytes | None]) -> c.Command:
        if len({name for name, _ in values}) < len(values):
            raise MeaninglessError("each annotation may stand once")
        return c.SetMetadata(mailbox, values)

    def metadata_value(self, name: str, value: bytes | None) -> tuple[str, bytes | None]:
        if value is not None and b"\0" in value:  # RFC 3501 section 9: a literal is of CHAR8
            raise MeaninglessError("the value of an annotation has NUL only in a binary literal, such as ~{3}")
        return name, value

    def binary_metadata_value(self, name: str, value: bytes) -> tuple[str, bytes | None]:
        return name, value
