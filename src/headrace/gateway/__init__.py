"""The data plane: one request, start to end."""
