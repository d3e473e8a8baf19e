"""Which servers that speak TLS do we believe? Their certificate is checked against an authority and the name that we called."""

import ssl

from headrace.core.errors import ConfigError

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
