"""The catalogue of refusals keeps its own rules."""

from collections.abc import Iterator

import pytest

from headrace.core import errors


def tree(kind: type[errors.HeadraceError] = errors.HeadraceError) -> Iterator[type[errors.HeadraceError]]:
    yield kind
    for inner in kind.__subclasses__():
        if inner.__module__ == errors.__name__:
            yield from tree(inner)


KINDS = list(tree())
LEAVES = [kind for kind in KINDS if not kind.__subclasses__()]


def test_no_two_errors_share_a_code() -> None:
    codes = [kind.code for kind in LEAVES if kind not in (errors.ConfigError, errors.InternalError)]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_the_class_of_an_error_follows_from_its_status(kind: type[errors.HeadraceError]) -> None:
    """Whoever must change the request gets 4xx and is told not to repeat it unchanged."""
    if issubclass(kind, errors.RequestError):
        assert 400 <= kind.status < 500
        assert kind.should_retry is (kind is errors.BodyTooSlow)
    elif issubclass(kind, errors.OverloadError):
        assert kind.status in (429, 503)
        assert kind.should_retry is (kind is not errors.QuotaExhausted)
        assert (kind.type in ("rate_limit_error", "insufficient_quota")) == (kind.status == 429)
    else:
        assert kind.status in (499, 500, 502, 504)
        assert kind.should_retry is not True


@pytest.mark.parametrize(
    "kind",
    [kind for kind in LEAVES if issubclass(kind, errors.OverloadError)],
    ids=lambda kind: kind.__name__,
)
def test_overload_always_says_when_to_come_back(kind: type[errors.OverloadError]) -> None:
    with pytest.raises(TypeError, match="retry_after_s"):
        kind("no time given", reason="queue_full")  # type: ignore[call-arg]
    error = kind("with time", retry_after_s=2.0, reason="queue_full")
    assert (error.retry_after_s, error.reason) == (2.0, "queue_full")


def test_the_drawing_in_the_docstring_is_the_tree() -> None:
    drawing = errors.__doc__ or ""
    for kind in set(KINDS) - {errors.InternalError}:
        line = next(line for line in drawing.splitlines() if line.split()[:1] == [kind.__name__])
        if kind in LEAVES and kind is not errors.ConfigError:
            assert line.split()[1:3] == [str(kind.status), kind.code]


def test_an_error_keeps_what_it_was_told() -> None:
    error = errors.InvalidRequest("too many", param="n")
    assert (str(error), error.message, error.param, error.retry_after_s) == (
        "too many",
        "too many",
        "n",
        None,
    )
    failed = errors.UpstreamError("it failed", reason="upstream_lost", retry_after_s=1.0)
    assert (failed.reason, failed.retry_after_s) == ("upstream_lost", 1.0)


def test_the_reason_of_an_error_is_its_code_unless_a_finer_one_is_given() -> None:
    """`saturated` is too coarse for records: it always says why."""
    assert errors.InvalidRequest("no").reason == "invalid_request"
    assert errors.RateLimited("later", retry_after_s=1.0).reason == "rate_limited"
    with pytest.raises(TypeError, match="reason"):
        errors.Saturated("later", retry_after_s=1.0)  # type: ignore[call-arg]


def test_the_leaves_of_a_group_are_all_its_errors() -> None:
    """However deep they are nested; an error that is no group is its own leaf."""
    one, two = ValueError("one"), OSError("two")
    nested = ExceptionGroup("outer", [one, ExceptionGroup("inner", [two])])
    assert errors.leaves(nested) == [one, two]
    assert errors.leaves(one) == [one]
