"""What control reads out of a server's answers."""

from headrace.control.probes import parse_gauges


def test_gauges_are_read_without_prefix_labels_and_comments() -> None:
    text = """# HELP llamacpp:requests_processing Number of requests
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 3
llamacpp:prompt_tokens_total 1.5e+06
other{label="x"} 4
broken line here
plain 7

"""
    assert parse_gauges(text) == {"requests_processing": 3.0, "prompt_tokens_total": 1.5e6, "plain": 7.0}
