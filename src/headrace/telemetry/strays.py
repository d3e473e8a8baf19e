"""What do libraries and dying threads say? Place and type go to our log; the text, which may quote a request, doesn't."""

import logging
import sys
import threading

from headrace.telemetry.logs import Log


def capture_strays(log: Log) -> None:
    """Routes what would reach standard error past the log: library logging from WARNING up, Python warnings, and
    exceptions that nothing caught in threads and finalizers. Process-wide: call it once, where the service is composed.
    """
    root = logging.getLogger()
    root.handlers[:] = [_Router(log)]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)

    def thread_died(died: threading.ExceptHookArgs) -> None:
        if died.exc_value is not None and died.exc_type is not SystemExit:
            log.internal_error(died.exc_value, where="thread")

    def finalizer_failed(failed: "sys.UnraisableHookArgs") -> None:  # a name for type checkers only
        if failed.exc_value is not None:
            log.internal_error(failed.exc_value, where="finalizer")

    threading.excepthook = thread_died
    sys.unraisablehook = finalizer_failed


class _Router(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0] if record.exc_info else None
        self._log.event(
            "library.warned",
            logger=record.name,
            severity=record.levelname.lower(),
            error=error.__name__ if error else None,
            at=f"{record.filename}:{record.lineno}",
        )
