"""How long will a request of this size hold its slot? Least squares over the last answers of its deployment."""

import math
from collections import deque
from collections.abc import Sequence

SAMPLES_MAX = 64
REFIT_AFTER = 8
# Predictions go no further than this beyond what was seen: a line through small prompts says little about huge ones.
BEYOND = 2.0


class ServiceModel:
    """service_s = mean + per_byte * (prompt bytes - mean) + per_token * (output tokens - mean), no slope below zero.

    To take a sample costs one append, because every request brings one; the fit is made when somebody asks, which is only
    while work waits, and then not for every new sample.

    State: `_samples` of (prompt bytes, output tokens, seconds), of which `_unfitted` are newer than the fit.
    """

    __slots__ = ("_fit", "_samples", "_unfitted")

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, float]] = deque(maxlen=SAMPLES_MAX)
        self._unfitted = 0
        self._fit: _Fit | None = None

    def observe(self, *, prompt_bytes: int, output_tokens: int, service_s: float) -> None:
        """A request of that size has held its slot for that long."""
        self._samples.append((prompt_bytes, output_tokens, service_s))
        self._unfitted += 1

    @property
    def mean_s(self) -> float | None:
        """The mean over the samples; None before the first."""
        fit = self._fitted()
        return None if fit is None else fit.service_s

    @property
    def spread_s(self) -> float:
        """By how much a prediction is usually wrong: the standard deviation of what was measured from it; 0.0 before the first."""
        fit = self._fitted()
        return 0.0 if fit is None else fit.spread_s

    def predict_s(self, *, prompt_bytes: int, output_tokens_max: int | None) -> float | None:
        """For a request of that size; None before the first sample.

        Most answers end before their bound, so a bound counts only where it is below the usual length.
        """
        fit = self._fitted()
        if fit is None:
            return None
        tokens = fit.tokens if output_tokens_max is None else min(fit.tokens, float(output_tokens_max))
        size = min(float(prompt_bytes), BEYOND * fit.bytes_max)
        change_s = fit.per_byte_s * (size - fit.bytes) + fit.per_token_s * (tokens - fit.tokens)
        return max(fit.service_min_s, fit.service_s + change_s)

    def _fitted(self) -> "_Fit | None":
        if self._unfitted and (self._unfitted >= REFIT_AFTER or len(self._samples) < 2 * REFIT_AFTER):
            self._fit = _Fit(self._samples)
            self._unfitted = 0
        return self._fit


class _Fit:
    """The line through a set of samples, at least one."""

    __slots__ = (
        "bytes",
        "bytes_max",
        "per_byte_s",
        "per_token_s",
        "service_min_s",
        "service_s",
        "spread_s",
        "tokens",
    )

    def __init__(self, samples: Sequence[tuple[int, int, float]]) -> None:
        count = len(samples)
        self.bytes = sum(sample[0] for sample in samples) / count
        self.tokens = sum(sample[1] for sample in samples) / count
        self.service_s = sum(sample[2] for sample in samples) / count
        self.bytes_max = float(max(sample[0] for sample in samples))
        self.service_min_s = min(sample[2] for sample in samples)
        self.per_byte_s, self.per_token_s = self._slopes(samples)
        # How long an answer will be nobody knows before, so what its length explains is among what isn't.
        self.spread_s = math.sqrt(
            sum(
                (sample[2] - self.service_s - self.per_byte_s * (sample[0] - self.bytes)) ** 2
                for sample in samples
            )
            / count
        )

    def _slopes(self, samples: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
        """Seconds per byte and per token: the normal equations of two variables, or of one where that says it all."""
        xx = xy = yy = xs = ys = 0.0
        for size, tokens, service_s in samples:
            x, y, s = size - self.bytes, tokens - self.tokens, service_s - self.service_s
            xx += x * x
            xy += x * y
            yy += y * y
            xs += x * s
            ys += y * s
        determinant = xx * yy - xy * xy
        if determinant > 1e-6 * xx * yy:  # else one variable is constant, or they move together
            per_byte = (xs * yy - ys * xy) / determinant
            per_token = (ys * xx - xs * xy) / determinant
            if per_byte >= 0.0 and per_token >= 0.0:
                return per_byte, per_token
        # One alone: the one that explains more of the spread.
        by_token = ys * ys / yy if yy > 0.0 and ys > 0.0 else 0.0
        by_byte = xs * xs / xx if xx > 0.0 and xs > 0.0 else 0.0
        if by_token >= by_byte:
            return 0.0, ys / yy if by_token else 0.0
        return xs / xx, 0.0
