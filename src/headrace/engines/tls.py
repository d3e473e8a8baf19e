"""Which servers that speak TLS do we believe? Their certificate is checked against an authority and the name that we called."""

import contextlib
import ssl
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.protocols import x509

# OpenSSL's X509_V_ERR_..., as far as an operator can do something about them.
_EXPLANATIONS = {
    9: "its certificate is not valid yet",
    10: "its certificate has expired",
    18: "its certificate is signed by itself",
    19: "its certificate is signed by an authority that is not trusted here",
    20: "its certificate is signed by an authority that is not trusted here",
    62: "its certificate is for another name",
    64: "its certificate is for another address",
}
_UNTRUSTED = (18, 19, 20)


def client_context(ca_file: str, *, key: str) -> ssl.SSLContext:
    """Trusts the authorities in that PEM file, or those of the system for "". `key` names the option in ConfigError."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigError(
            f"{key}: {ca_file!r} is not a PEM file of certificate authorities: {error}"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class PinnedServer:
    """Trusts a server by its own certificate: the first one in a PEM file that the server reads too.

    The name that we call it by isn't checked, as nobody but the holder of that certificate's key can show it; its dates are.
    What is put into the file later is trusted as well, beside what was there: the server shows a renewed certificate only a
    moment after it is written, or never, where it can't be used.

    State: `_pem` is the certificate that was added to the context last.
    """

    def __init__(self, file: str, *, key: str) -> None:
        """`key` names the option in ConfigError."""
        self._file = Path(file)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._context.check_hostname = False
        # Or a certificate that an authority has signed would not be enough without that authority's own.
        self._context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        self._pem = ""
        try:
            self._read()
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise ConfigError(f"{key}: {file!r} is not a PEM file with a certificate: {error}") from error

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        with contextlib.suppress(OSError, ValueError):  # half written, or gone: what we have still holds
            self._read()
        return self._context

    def _read(self) -> None:
        pem = x509.first_pem(self._file.read_text(encoding="ascii", errors="replace"))
        if not pem or pem != self._pem:
            self._context.load_verify_locations(cadata=pem)
            self._pem = pem


def explain(error: OSError) -> str:
    """What is wrong with a connection that was not made, and where there is one, what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = _EXPLANATIONS.get(error.verify_code, error.verify_message)
        hint = "; name its authority with ca_file (--upstream-ca)" if error.verify_code in _UNTRUSTED else ""
        return f"not trusted: {reason}{hint}"
    if isinstance(error, ssl.SSLError):
        is_plain = error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
        return "it does not speak TLS there; try http://" if is_plain else f"TLS failed: {error.reason}"
    return f"no connection: {error}"
