"""Being here makes `support` importable from every test, whichever of them are run."""
