"""Send Slack messages through an incoming webhook or a bot token, within a time limit.

Only a token can reply in a thread and edit messages; a webhook can only post new ones. The callers write the
text. The webhook's URL and the token are secrets and appear in no error.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.http_retry import (
    ConnectionErrorRetryHandler,
    RateLimitErrorRetryHandler,
    RetryHandler,
)
from slack_sdk.http_retry.builtin_handlers import ServerErrorRetryHandler
from slack_sdk.web import WebClient
from slack_sdk.webhook import WebhookClient

from trainyard.errors import ServiceError, ServiceTroubleError, WaitTimeoutError
from trainyard.gateways.bounded_calls import within
from trainyard.gateways.http_requests import is_http

if TYPE_CHECKING:
    from trainyard.report.slack.slack_thread import SlackThread

CALL_SECONDS = 4
"""The time limit per call."""
TOTAL_SECONDS = 30.0
"""The time limit per message with retries, name resolution and the waits that Slack requests."""
_RETRIES = 2
# slack_sdk logs the webhook's URL in some messages, so it gets a logger that discards everything.
_SILENT = logging.Logger("slack_sdk", level=logging.CRITICAL + 1)


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
    thread: "SlackThread | PostedMessage | None" = None,
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
    return _bounded(lambda: _post_to_webhook(webhook.strip(), text, message))


def edit(
    message: "SlackThread | PostedMessage",
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
    client = _client(token, environment)
    try:
        answer = client.auth_test()
    except SlackApiError as error:
        raise ServiceError(f"Slack refused the token: {_refusal(error)}") from None
    except OSError as error:
        raise ServiceTroubleError(f"Slack does not answer ({type(error).__name__})") from None
    return f"the bot {answer.get('user')} of {answer.get('team')}"


def _retry_handlers() -> list[RetryHandler]:
    """The retries of one message. A timeout is not retried, because the message may have been posted."""
    return [
        RateLimitErrorRetryHandler(_RETRIES),
        ConnectionErrorRetryHandler(_RETRIES),
        ServerErrorRetryHandler(_RETRIES),
    ]


def _post_to_webhook(address: str, text: str, blocks: list[dict[str, Any]]) -> PostedMessage:
    _require_http("SLACK_WEBHOOK_URL", address)
    client = WebhookClient(address, timeout=CALL_SECONDS, logger=_SILENT, retry_handlers=_retry_handlers())
    client.proxy = None
    answer = client.send(text=text, blocks=blocks)
    if answer.status_code != 200:
        raise ServiceError(f"Slack answered {answer.status_code}: {' '.join(answer.body.split())[:200]}")
    return PostedMessage()


def _client(token: str, environment: Mapping[str, str]) -> WebClient:
    server = environment.get("SLACK_API_URL") or WebClient.BASE_URL
    _require_http("SLACK_API_URL", server)
    client = WebClient(token, base_url=server, timeout=CALL_SECONDS, logger=_SILENT)
    client.proxy = None  # without it urllib handles the proxy, and honours NO_PROXY
    return client


def _call(method: str, body: dict[str, Any], token: str, environment: Mapping[str, str]) -> PostedMessage:
    def send() -> PostedMessage:
        client = _client(token, environment)
        client.retry_handlers = _retry_handlers()
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


def _require_http(variable: str, address: str) -> None:
    if not is_http(address):
        raise ServiceError(f"{variable} is not an http or https address")


def _bounded(send: Callable[[], PostedMessage]) -> PostedMessage:
    """Run `send` within the time limit, because name resolution has no time limit of its own."""
    try:
        return within(TOTAL_SECONDS, send)
    except WaitTimeoutError:
        raise ServiceError(f"Slack did not answer within {TOTAL_SECONDS:.0f} seconds") from None
    except (SlackClientError, OSError, HTTPException, ValueError) as error:
        raise ServiceError(f"Slack could not be reached: {_cause(error)}") from None


def _cause(failure: BaseException) -> str:
    """Return the cause of a failure, without error texts that may quote the webhook's URL."""
    reason = failure.reason if isinstance(failure, URLError) else failure
    if isinstance(reason, TimeoutError):
        return f"no answer within {CALL_SECONDS} seconds"
    return getattr(reason, "strerror", None) or type(reason).__name__
