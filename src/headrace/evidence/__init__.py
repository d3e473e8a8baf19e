"""What the service is worth, measured from outside: as a customer would see it."""
