"""Download the files of a model from the Hugging Face Hub into the local cache, at a recorded commit.

    owner/name[@revision] --huggingface_hub--> ~/.cache/huggingface/hub/…/snapshots/<commit>/

Only config.json, tokenizer and safetensors files are downloaded. huggingface_hub itself reads HF_TOKEN,
HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE. This module does not interpret the files.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import ConfigError, ServiceError

_FORM = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(@(?P<revision>[\w./-]+))?"
)
_FILE_SUFFIXES = (".gguf", ".safetensors", ".json", ".bin", ".pt", ".pth")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# The files beside a tokenizer.json, with more facts about it.
TOKENIZER_COMPANIONS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
_DESCRIPTION = ("config.json", "tokenizer.json", *TOKENIZER_COMPANIONS)
_WEIGHTS = ("*.safetensors", "model.safetensors.index.json")
_IGNORED = ["*/*"]  # folders such as original/ hold the same weights in other formats

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HubModel:
    """A model on the Hub."""

    repository: str
    revision: str | None
    """A commit, branch or tag; None is the newest commit."""

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"

    @property
    def is_pinned(self) -> bool:
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None


def hub_model(path: str) -> HubModel | None:
    """The model on the Hub that `path` names; None when `path` is, or can only be, a local path."""
    match = _FORM.fullmatch(path)
    if match is None or path.endswith(_FILE_SUFFIXES) or Path(path).exists():
        return None
    return HubModel(match["repository"], match["revision"])


def description_of(model: HubModel) -> tuple[Path, HubModel]:
    """Return the folder with config.json and tokenizer, fetched if needed, and the model at its commit.

    Raises ConfigError when the Hub has no such model or refuses this user, ServiceError when the Hub cannot
    be reached and the model is not in the cache.
    """
    folder = _fetch(model, _DESCRIPTION)
    return folder, HubModel(model.repository, folder.name)


def weights_of(model: HubModel) -> Path:
    """Return the folder including the weights, fetched if needed. Raises what `description_of` raises."""
    if (cached := _cached_folder(model)) is not None:
        return cached
    _logger.info("weights of %s: downloading the files that are not in the Hugging Face cache", model)
    folder = _fetch(model, (*_DESCRIPTION, *_WEIGHTS), shows_progress=sys.stderr.isatty())
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"model.path: {model} has no .safetensors files on the Hugging Face Hub. Name a model that has, "
            "or fetch its .gguf file and name that. Nothing was started."
        )
    return folder


def _cached_folder(model: HubModel) -> Path | None:
    """The cached folder of a pinned commit; None unless all its weights are in the cache."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    if not model.is_pinned:
        return None
    try:
        folder = _snapshot(model, (*_DESCRIPTION, *_WEIGHTS), cached=True)
    except LocalEntryNotFoundError:
        return None
    return folder if any(folder.glob("*.safetensors")) else None


def _fetch(model: HubModel, patterns: tuple[str, ...], *, shows_progress: bool = False) -> Path:
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    if "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:  # the library warns about a contradiction
        if shows_progress:
            enable_progress_bars()
        else:
            disable_progress_bars()  # they are noise in a log
    with _explain_errors(model):
        return _snapshot(model, patterns, cached=False)


def _snapshot(model: HubModel, patterns: tuple[str, ...], *, cached: bool) -> Path:
    """The folder with the files of `patterns`; with `cached` only from the cache."""
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        model.repository,
        revision=model.revision,
        allow_patterns=list(patterns),
        ignore_patterns=_IGNORED,
        local_files_only=cached,
    )
    return Path(folder)


@contextmanager
def _explain_errors(model: HubModel) -> Iterator[None]:
    """Convert the errors of huggingface_hub to errors that name the fix."""
    from huggingface_hub import errors

    page = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co').rstrip('/')}/{model.repository}"
    try:
        yield
    except errors.GatedRepoError:
        why = f"is gated: accept its terms at {page}, and set HF_TOKEN to a token of the account that did"
        raise _refusal(model, why) from None
    except errors.RevisionNotFoundError:
        why = f"has no revision {model.revision!r}: name a commit, branch or tag from {page}/commits/main"
        raise _refusal(model, why) from None
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError) as error:
        cause = error.__cause__ or error
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status not in (401, 403, 404):
            raise _unreachable_error(model, cause) from None
        why = (
            f"cannot be read ({status}): check the spelling at {page}; a private model needs an "
            "HF_TOKEN that may read it"
        )
        raise _refusal(model, why) from None
    except (OSError, errors.HTTPError) as error:  # type: ignore[attr-defined]  # from its HTTP client
        raise _unreachable_error(model, error) from None


def _refusal(model: HubModel, why: str) -> ConfigError:
    return ConfigError(
        f"model.path: {model} is not a path on this machine, and on the Hugging Face Hub it {why}. "
        "Nothing was started."
    )


def _unreachable_error(model: HubModel, error: BaseException) -> ServiceError:
    instead = "fetch the model elsewhere and set model.path to the folder. Nothing was started."
    return hub_error(f"model.path: {model} is not a path on this machine, and", error, instead)


def hub_error(what: str, error: BaseException, instead: str) -> ServiceError:
    """The error for something that can be read neither from the Hub nor from huggingface_hub's cache."""
    why, fix = first_line(error), "Check the network, HTTPS_PROXY and HF_ENDPOINT"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        why, fix = "HF_HUB_OFFLINE is set and it is not in the cache", "Unset HF_HUB_OFFLINE"
    return ServiceError(f"{what} cannot be read from the Hugging Face Hub ({why}).\n{fix}, or {instead}")


def first_line(error: BaseException) -> str:
    """The first line of an error's message; without a message, its class."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
