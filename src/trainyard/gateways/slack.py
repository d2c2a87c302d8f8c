"""Slack, through an incoming webhook or a bot token: one message in a bounded time, or the reason why not.

What it says is not decided here. The webhook's address and the token are secrets and appear in no error.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.http_retry import (
    ConnectionErrorRetryHandler,
    HttpRequest,
    HttpResponse,
    RateLimitErrorRetryHandler,
    RetryHandler,
    RetryState,
)
from slack_sdk.http_retry.builtin_handlers import ServerErrorRetryHandler
from slack_sdk.web import WebClient
from slack_sdk.webhook import WebhookClient

from trainyard.errors import ServiceError

CALL_SECONDS = 4
"""Limit of one call."""
TOTAL_SECONDS = 10.0
"""Limit of a message, retries and name resolution included."""
_RETRIES = 2
# slack_sdk logs the webhook's address in some messages; this logger has no handlers and lets nothing through.
_SILENT = logging.Logger("slack_sdk", level=logging.CRITICAL + 1)


def post(
    text: str,
    blocks: Sequence[Mapping[str, Any]],
    *,
    channel: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> bool:
    """Send a message; False when neither SLACK_WEBHOOK_URL nor SLACK_BOT_TOKEN is set.

    SLACK_CHANNEL goes before `channel`; a webhook has its own and needs neither. SLACK_API_URL names another
    server for the bot token. Raises ServiceError when Slack cannot be reached or refuses.
    """
    webhook, token = environment.get("SLACK_WEBHOOK_URL"), environment.get("SLACK_BOT_TOKEN")
    message = [dict(block) for block in blocks]
    if webhook:
        _bounded(lambda: _post_to_webhook(webhook.strip(), text, message))
        return True
    if not token:
        return False
    target = environment.get("SLACK_CHANNEL") or channel
    if not target:
        raise ServiceError(
            "SLACK_BOT_TOKEN is set, but no channel: set SLACK_CHANNEL or notifications.slack.channel"
        )
    server = environment.get("SLACK_API_URL") or WebClient.BASE_URL
    _bounded(lambda: _post_with_token(token, server, {"channel": target, "text": text, "blocks": message}))
    return True


class _WhileTimeLasts(RetryHandler):
    """One of slack_sdk's retry handlers, which gives up when the wait would go beyond the message's time."""

    def __init__(self, inner: RetryHandler, end: float) -> None:
        super().__init__(inner.max_retry_count)
        self._inner, self._end = inner, end

    def can_retry(
        self,
        *,
        state: RetryState,
        request: HttpRequest,
        response: HttpResponse | None = None,
        error: Exception | None = None,
    ) -> bool:
        heals = self._inner.can_retry(state=state, request=request, response=response, error=error)
        return heals and time.monotonic() + _retry_after(response) < self._end

    def prepare_for_next_attempt(
        self,
        *,
        state: RetryState,
        request: HttpRequest,
        response: HttpResponse | None = None,
        error: Exception | None = None,
    ) -> None:
        self._inner.prepare_for_next_attempt(state=state, request=request, response=response, error=error)


def _retry_handlers() -> list[RetryHandler]:
    """An answer that is only late is not asked for again: the message may have been posted."""
    end = time.monotonic() + TOTAL_SECONDS
    handlers = (
        RateLimitErrorRetryHandler(_RETRIES),
        ConnectionErrorRetryHandler(_RETRIES),
        ServerErrorRetryHandler(_RETRIES),
    )
    return [_WhileTimeLasts(handler, end) for handler in handlers]


def _retry_after(response: HttpResponse | None) -> float:
    """Seconds that Slack asks to wait; 0 when it does not ask."""
    for name, values in (response.headers if response is not None else {}).items():
        if name.lower() == "retry-after" and values and values[0].strip().isdecimal():
            return float(values[0])
    return 0.0


def _post_to_webhook(address: str, text: str, blocks: list[dict[str, Any]]) -> None:
    _check_address("SLACK_WEBHOOK_URL", address)
    client = WebhookClient(address, timeout=CALL_SECONDS, logger=_SILENT, retry_handlers=_retry_handlers())
    client.proxy = None  # urllib's own handling of proxies is used instead, because it honours NO_PROXY
    answer = client.send(text=text, blocks=blocks)
    if answer.status_code != 200:
        raise ServiceError(f"Slack answered {answer.status_code}: {' '.join(answer.body.split())[:200]}")


def _post_with_token(token: str, server: str, body: dict[str, Any]) -> None:
    _check_address("SLACK_API_URL", server)
    client = WebClient(
        token, base_url=server, timeout=CALL_SECONDS, logger=_SILENT, retry_handlers=_retry_handlers()
    )
    client.proxy = None
    try:
        client.chat_postMessage(**body)
    except SlackApiError as error:
        raise ServiceError(f"Slack refused the message for {body['channel']}: {_refusal(error)}") from None


def _refusal(error: SlackApiError) -> str:
    """What Slack said, for example `channel_not_found`, or the status of an answer that says nothing."""
    data = error.response.data if error.response is not None else None
    if isinstance(data, dict) and data.get("error"):
        return str(data["error"])
    return f"status {getattr(error.response, 'status_code', 'unknown')}"


def _check_address(variable: str, address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ServiceError(f"{variable} is no http or https address")


def _bounded(send: Callable[[], None]) -> None:
    """Run `send` for at most TOTAL_SECONDS; name resolution has no limit of its own, hence the thread."""
    outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def attempt() -> None:
        try:
            send()
        except (ServiceError, SlackClientError, OSError, HTTPException, ValueError) as error:
            outcome.put(error)
        else:
            outcome.put(None)

    threading.Thread(target=attempt, daemon=True).start()
    try:
        failure = outcome.get(timeout=TOTAL_SECONDS)
    except queue.Empty:
        raise ServiceError(f"Slack did not answer within {TOTAL_SECONDS:.0f} seconds") from None
    if isinstance(failure, ServiceError):
        raise failure
    if failure is not None:
        raise ServiceError(f"Slack could not be reached: {_cause(failure)}")


def _cause(failure: Exception) -> str:
    """What went wrong, without the words of errors that may quote the address."""
    reason = failure.reason if isinstance(failure, URLError) else failure
    if isinstance(reason, TimeoutError):
        return f"no answer within {CALL_SECONDS} seconds"
    return getattr(reason, "strerror", None) or type(reason).__name__
