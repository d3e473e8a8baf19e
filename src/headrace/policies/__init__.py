"""Pure decisions: values in, values out; no input or output, no clock, no randomness of their own."""
