"""Send Slack messages through an incoming webhook or a bot token, within a time limit.

Only a token can reply in a thread and edit messages; a webhook can only post new ones. The callers write the
text. The webhook's URL and the token are secrets and appear in no error.
"""

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Protocol
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

from trainyard.errors import ServiceError, ServiceTroubleError

CALL_SECONDS = 4
"""The time limit per call."""
TOTAL_SECONDS = 10.0
"""The time limit per message with retries and name resolution, but without the waits that Slack requests."""
RATE_LIMIT_SECONDS = 60.0
"""The limit of all waits that Slack requests (429, Retry-After); it allows about one message per second."""
_RETRIES = 2
# slack_sdk logs the webhook's URL in some messages, so it gets a logger that discards everything.
_SILENT = logging.Logger("slack_sdk", level=logging.CRITICAL + 1)


class MessageAddress(Protocol):
    """The address of a message: the channel's ID and the message's `ts`."""

    @property
    def channel(self) -> str: ...

    @property
    def ts(self) -> str: ...


@dataclass(frozen=True)
class PostedMessage:
    """The address of a posted message; both fields are empty after a webhook, which does not return them."""

    channel: str = ""
    """The channel's ID; edits need the ID and not the name."""
    ts: str = ""
    """Identifies the message in its channel, and its thread."""


def post(
    text: str,
    blocks: Sequence[Mapping[str, Any]],
    *,
    channel: str | None = None,
    thread: MessageAddress | None = None,
    broadcast: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> PostedMessage | None:
    """Send a message; None when neither SLACK_BOT_TOKEN nor SLACK_WEBHOOK_URL is set.

    A token is preferred to a webhook if a channel is known: SLACK_CHANNEL, else `channel`. The message is a
    reply to `thread`, if given; `broadcast` also shows the reply in the channel. SLACK_API_URL names another
    server for the token. Raises ServiceError when Slack cannot be reached or refuses.
    """
    token, webhook = environment.get("SLACK_BOT_TOKEN"), environment.get("SLACK_WEBHOOK_URL")
    if not token and not webhook:
        return None
    target = environment.get("SLACK_CHANNEL") or channel
    answered = thread if thread is not None and thread.ts else None
    message = [dict(block) for block in blocks]
    if token and (target or answered):
        body: dict[str, Any] = {"channel": target, "text": text, "blocks": message}
        if answered:
            body |= {"channel": answered.channel, "thread_ts": answered.ts, "reply_broadcast": broadcast}
        return _call("chat.postMessage", body, token, environment)
    if not webhook:
        raise ServiceError(
            "SLACK_BOT_TOKEN is set, but no channel: set SLACK_CHANNEL or notifications.slack.channel"
        )
    _bounded(lambda time_left: _post_to_webhook(webhook.strip(), text, message, time_left))
    return PostedMessage()


def edit(
    message: MessageAddress,
    text: str,
    blocks: Sequence[Mapping[str, Any]],
    *,
    environment: Mapping[str, str] = os.environ,
) -> bool:
    """Replace the text of `message`; False without a token, or when a webhook posted it.

    Raises ServiceError when Slack cannot be reached or refuses.
    """
    token = environment.get("SLACK_BOT_TOKEN")
    if not token or not message.ts:
        return False
    words = {"text": text, "blocks": [dict(block) for block in blocks]}
    _call("chat.update", {"channel": message.channel, "ts": message.ts, **words}, token, environment)
    return True


def owner_of_token(token: str, environment: Mapping[str, str]) -> str:
    """Return which bot of which workspace the token belongs to, as a text for people.

    Raises ServiceError when Slack refuses the token, ServiceTroubleError when it cannot be reached.
    """
    server = environment.get("SLACK_API_URL") or WebClient.BASE_URL
    _check_address("SLACK_API_URL", server)
    client = WebClient(token, base_url=server, timeout=CALL_SECONDS, logger=_SILENT)
    client.proxy = None
    try:
        answer = client.auth_test()
    except SlackApiError as error:
        raise ServiceError(f"Slack refused the token: {_refusal(error)}") from None
    except OSError as error:
        raise ServiceTroubleError(f"Slack does not answer ({type(error).__name__})") from None
    return f"the bot {answer.get('user')} of {answer.get('team')}"


class _Deadline:
    """The time left for one message; only a wait that Slack requests extends it."""

    def __init__(self) -> None:
        now = time.monotonic()
        self._end, self._latest = now + TOTAL_SECONDS, now + TOTAL_SECONDS + RATE_LIMIT_SECONDS

    def seconds(self) -> float:
        return self._end - time.monotonic()

    def put_off(self, seconds: float) -> bool:
        """Extend the time by a wait of `seconds`; False when all waits would take too long."""
        if self._end + seconds > self._latest:
            return False
        self._end += seconds
        return True


class _DeadlineRetryHandler(RetryHandler):
    """Wraps a retry handler of slack_sdk; it gives up when a wait would exceed the message's time limit."""

    def __init__(self, inner: RetryHandler, time_left: _Deadline) -> None:
        super().__init__(inner.max_retry_count)
        self._inner, self._time_left = inner, time_left

    def can_retry(
        self,
        *,
        state: RetryState,
        request: HttpRequest,
        response: HttpResponse | None = None,
        error: Exception | None = None,
    ) -> bool:
        retries = self._inner.can_retry(state=state, request=request, response=response, error=error)
        if not retries or (response is not None and not self._time_left.put_off(_retry_after(response))):
            return False
        return self._time_left.seconds() > 0

    def prepare_for_next_attempt(
        self,
        *,
        state: RetryState,
        request: HttpRequest,
        response: HttpResponse | None = None,
        error: Exception | None = None,
    ) -> None:
        self._inner.prepare_for_next_attempt(state=state, request=request, response=response, error=error)


def _retry_handlers(time_left: _Deadline) -> list[RetryHandler]:
    """The retries of one message. A timeout is not retried, because the message may have been posted."""
    handlers = (
        RateLimitErrorRetryHandler(_RETRIES),
        ConnectionErrorRetryHandler(_RETRIES),
        ServerErrorRetryHandler(_RETRIES),
    )
    return [_DeadlineRetryHandler(handler, time_left) for handler in handlers]


def _retry_after(response: HttpResponse | None) -> float:
    """Return the seconds that Slack requests to wait; 0 without a request."""
    for name, values in (response.headers if response is not None else {}).items():
        if name.lower() == "retry-after" and values and values[0].strip().isdecimal():
            return float(values[0]) + 1  # slack_sdk adds a random wait of up to a second
    return 0.0


def _post_to_webhook(
    address: str, text: str, blocks: list[dict[str, Any]], time_left: _Deadline
) -> PostedMessage:
    _check_address("SLACK_WEBHOOK_URL", address)
    handlers = _retry_handlers(time_left)
    client = WebhookClient(address, timeout=CALL_SECONDS, logger=_SILENT, retry_handlers=handlers)
    client.proxy = None  # without it urllib handles the proxy, and honours NO_PROXY
    answer = client.send(text=text, blocks=blocks)
    if answer.status_code != 200:
        raise ServiceError(f"Slack answered {answer.status_code}: {' '.join(answer.body.split())[:200]}")
    return PostedMessage()


def _call(method: str, body: dict[str, Any], token: str, environment: Mapping[str, str]) -> PostedMessage:
    server = environment.get("SLACK_API_URL") or WebClient.BASE_URL

    def send(time_left: _Deadline) -> PostedMessage:
        _check_address("SLACK_API_URL", server)
        client = WebClient(token, base_url=server, timeout=CALL_SECONDS, logger=_SILENT)
        client.retry_handlers = _retry_handlers(time_left)
        client.proxy = None
        try:
            answer = client.api_call(method, json=body)
        except SlackApiError as error:
            message = f"Slack refused the message for {body['channel']}: {_refusal(error)}"
            raise ServiceError(message) from None
        return PostedMessage(str(answer.get("channel") or body["channel"]), str(answer.get("ts") or ""))

    return _bounded(send)


def _refusal(error: SlackApiError) -> str:
    """Slack's error, for example `channel_not_found`; the status if the answer names none."""
    data = error.response.data if error.response is not None else None
    if isinstance(data, dict) and data.get("error"):
        return str(data["error"])
    return f"status {getattr(error.response, 'status_code', 'unknown')}"


def _check_address(variable: str, address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ServiceError(f"{variable} is not an http or https address")


def _bounded(send: Callable[[_Deadline], PostedMessage]) -> PostedMessage:
    """Run `send` within the time limit; in a thread, because name resolution has no time limit of its own."""
    outcome: queue.SimpleQueue[PostedMessage | Exception] = queue.SimpleQueue()
    time_left = _Deadline()

    def attempt() -> None:
        try:
            outcome.put(send(time_left))
        except (ServiceError, SlackClientError, OSError, HTTPException, ValueError) as error:
            outcome.put(error)

    threading.Thread(target=attempt, daemon=True).start()
    while (seconds := time_left.seconds()) > 0:
        with contextlib.suppress(queue.Empty):
            return _checked(outcome.get(timeout=seconds))
    raise ServiceError(f"Slack did not answer within {TOTAL_SECONDS:.0f} seconds")


def _checked(answer: PostedMessage | Exception) -> PostedMessage:
    if isinstance(answer, ServiceError):
        raise answer
    if isinstance(answer, Exception):
        raise ServiceError(f"Slack could not be reached: {_cause(answer)}")
    return answer


def _cause(failure: Exception) -> str:
    """Return the cause of a failure, without error texts that may quote the webhook's URL."""
    reason = failure.reason if isinstance(failure, URLError) else failure
    if isinstance(reason, TimeoutError):
        return f"no answer within {CALL_SECONDS} seconds"
    return getattr(reason, "strerror", None) or type(reason).__name__
