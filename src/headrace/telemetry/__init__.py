"""What an operator sees: metrics and log lines."""
