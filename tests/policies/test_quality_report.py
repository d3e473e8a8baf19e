"""A model is named by how it was asked, where it was not asked as it is: it may be compared with itself."""

from headrace.core.verdicts import Interval
from headrace.policies.quality import Tally
from headrace.policies.quality_report import ModelFound


def test_a_model_is_labelled_by_how_it_was_asked() -> None:
    found = ModelFound("chat", (), Tally(), Interval(None, None, None))
    assert found.label == "chat"
    ruled = ModelFound("chat", (), Tally(), Interval(None, None, None), prompting="refusal rule")
    assert ruled.label == "chat (refusal rule)"
