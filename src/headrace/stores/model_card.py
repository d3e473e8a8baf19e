"""What does a model card say about the license? Read from the block of fields that opens a hub's README.md."""

import re

from headrace.policies.licenses import LicenseClaim

NAMES = frozenset({"README.md"})
_BYTES_MAX = 64 << 10
_FIELDS = re.compile(r"\A---\s*\n(?P<fields>.*?)\n---\s*(\n|\Z)", re.DOTALL)
_FIELD = re.compile(r"""^(?P<key>license|license_name):[ \t]*["']?(?P<value>[^"'\n#]*)""", re.MULTILINE)


def claims(content: bytes) -> list[LicenseClaim]:
    """The license as the card names it; nothing where it has no such field."""
    text = content[:_BYTES_MAX].decode("utf-8", errors="replace")
    block = _FIELDS.match(text)
    if block is None:
        return []
    fields = {found["key"]: found["value"].strip() for found in _FIELD.finditer(block["fields"])}
    license = fields.get("license", "")
    if license.casefold() == "other":
        license = fields.get("license_name") or license
    return [LicenseClaim(license, "model card README.md")] if license else []
