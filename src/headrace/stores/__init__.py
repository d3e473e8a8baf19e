"""Durable state: models, tenants, keys and the usage ledger."""
