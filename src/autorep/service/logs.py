"""Structured logs: one JSON object a line on standard error, with events and public facts only."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

_LOGGER = logging.getLogger("autorep.service")


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON; fields come from `event`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def setup_logging(role: str) -> None:
    """Send the service's events, and the web server's warnings, to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name, level in (("autorep.service", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    event("start", role=role)


def event(name: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Log one event. Fields are ids, counts, times and error texts; never a share, a seed or a token."""
    _LOGGER.log(level, name, extra={"fields": fields})


def trouble(name: str, error: Exception, **fields: Any) -> None:
    """Log an error the service lives on after."""
    event(name, level=logging.WARNING, error=str(error), **fields)


def crash(name: str, error: Exception, **fields: Any) -> None:
    """Log an error nobody expected, with its trace; the service lives on."""
    fields = {"error": f"{type(error).__name__}: {error}", **fields}
    _LOGGER.error(name, exc_info=error, extra={"fields": fields})
