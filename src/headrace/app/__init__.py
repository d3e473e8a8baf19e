"""Where the service is put together: the only package that knows both planes."""
