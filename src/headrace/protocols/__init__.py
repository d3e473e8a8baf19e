"""Bytes to structs and back; no sockets."""
