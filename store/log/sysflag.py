"""The bits of a record's sysFlag, and their names (formats.md §3)."""

from __future__ import annotations


class SysFlag:
    """Bits of sysFlag (``MessageSysFlag``)."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_MASK = 0xC
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_MASK = 0x700
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300


_TRANSACTION_NAMES = {
    SysFlag.PREPARED: "prepared", SysFlag.COMMIT: "commit", SysFlag.ROLLBACK: "rollback",
}  # fmt: skip
_COMPRESSION_NAMES = {
    SysFlag.COMPRESSION_LZ4: "lz4", SysFlag.COMPRESSION_ZSTD: "zstd",
    SysFlag.COMPRESSION_ZLIB: "zlib",
}  # fmt: skip
_BIT_NAMES = {
    SysFlag.COMPRESSED: "compressed", SysFlag.MULTI_TAGS: "multi_tags",
    SysFlag.BORN_HOST_V6: "born_host_v6", SysFlag.STORE_HOST_V6: "store_host_v6",
    SysFlag.NEED_UNWRAP: "need_unwrap", SysFlag.INNER_BATCH: "inner_batch",
}  # fmt: skip


def sys_flag_names(sys_flag: int) -> list[str]:
    """Readable names of the bits of a sysFlag."""
    names = [name for bit, name in _BIT_NAMES.items() if sys_flag & bit]
    transaction = _TRANSACTION_NAMES.get(sys_flag & SysFlag.TRANSACTION_MASK)
    compression = _COMPRESSION_NAMES.get(sys_flag & SysFlag.COMPRESSION_MASK)
    return [*names, *filter(None, (transaction, compression))]
