"""Small pictures of any claimed size, as their headers say it."""

import base64
import struct


def png(width: int, height: int) -> bytes:
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">L4sLLBBBBB", 13, b"IHDR", width, height, 8, 2, 0, 0, 0)
        + b"\0\0\0\0"
    )


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0"


def jpeg(width: int, height: int) -> bytes:
    """With what may stand in front of the size: padding, a marker alone, a segment, and a table."""
    before = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xff\xc4\x00\x02\xff\x01"
    return before + b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width) + b"\x03\xff\xda"


def webp_lossy(width: int, height: int) -> bytes:
    return b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height)


def webp_lossless(width: int, height: int) -> bytes:
    return b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<L", (width - 1) | (height - 1) << 14)


def webp_extended(width: int, height: int) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + size


def data_url(data: bytes, *, content_type: str = "image/png") -> str:
    return f"data:{content_type};base64,{base64.b64encode(data).decode()}"
