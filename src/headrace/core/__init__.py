"""The vocabulary that every room shares: values, errors and the clock."""
