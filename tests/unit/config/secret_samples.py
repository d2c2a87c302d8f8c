"""Tokens of every form that `secret_forms` knows, made at random, and the places in which people write them.

They are put together at run time, so that no scanner takes a file of this repository for a leak.
"""

import base64
import json
import random
import string
from collections.abc import Callable, Iterator

LETTERS = string.ascii_letters
ALNUM = LETTERS + string.digits
WORD = ALNUM + "_"
URL = ALNUM + "_-"
BASE32 = string.ascii_uppercase + "234567"
BASE64 = ALNUM + "+/"
HEX = "0123456789abcdef"
LONG = (520, 2000)
"""No form has a fixed length: GitHub's grew from 40 to some 520 within a day."""


def random_text(alphabet: str, length: int, seed: int = 0) -> str:
    """Return `length` characters, the same for a seed, with letters of both cases if `alphabet` has them."""
    source = random.Random(f"{alphabet}{length}{seed}")
    sure = "".join(
        source.choice(kind)
        for kind in (string.ascii_lowercase, string.ascii_uppercase)
        if set(kind) <= set(alphabet)
    )
    text = sure + "".join(source.choices(alphabet, k=max(length - len(sure), 0)))
    return text[:length]


def _plain(prefix: str, alphabet: str) -> Callable[[int, int], str]:
    return lambda length, seed: prefix + random_text(alphabet, length - len(prefix), seed)


def _jwt(prefix: str) -> Callable[[int, int], str]:
    """`prefix`, then header, payload and signature."""

    def make(length: int, seed: int) -> str:
        header = base64.urlsafe_b64encode(b'{"typ":"JWT","alg":"RS256"}').decode().rstrip("=")
        left = length - len(prefix) - len(header) - 2
        signature = min(86, left // 2)
        payload, end = random_text(URL, left - signature - 3, seed), random_text(URL, signature, seed + 1)
        return f"{prefix}{header}.eyJ{payload}.{end}"

    return make


def _slack(prefix: str, count: int = 2, alphabet: str = ALNUM) -> Callable[[int, int], str]:
    ids = f"{prefix}-" + "-".join(random_text(string.digits, 12, each) for each in range(count)) + "-"
    return _plain(ids, alphabet)


def _openai(prefix: str) -> Callable[[int, int], str]:
    """With OpenAI's mark in the middle."""

    def make(length: int, seed: int) -> str:
        left = length - len(prefix) - 8
        alphabet = URL if prefix.count("-") > 1 else ALNUM
        first, second = (
            random_text(alphabet, left // 2, seed),
            random_text(alphabet, left - left // 2, seed + 1),
        )
        return f"{prefix}{first}T3Blbk" + f"FJ{second}"

    return make


_HOOK = "https://hooks." + "slack.com/"
FORMS: dict[str, tuple[int, int, Callable[[int, int], str]]] = {
    # name -> shortest length, usual length, maker(length, seed)
    "GitHub classic": (40, 40, _plain("ghp" + "_", ALNUM)),
    "GitHub OAuth": (40, 40, _plain("gho" + "_", ALNUM)),
    "GitHub user": (40, 40, _plain("ghu" + "_", ALNUM)),
    "GitHub refresh": (80, 80, _plain("ghr" + "_", ALNUM)),
    "GitHub installation": (40, 40, _plain("ghs" + "_", ALNUM)),
    "GitHub installation, 2026": (200, 520, _jwt("ghs" + "_1234567_")),
    "GitHub fine-grained": (
        93,
        93,
        lambda n, s: "github" + f"_pat_{random_text(ALNUM, 22, s)}_{random_text(ALNUM, n - 34, s)}",
    ),
    "AWS access key": (20, 20, _plain("AK" + "IA", BASE32)),
    "AWS session key": (20, 20, _plain("AS" + "IA", BASE32)),
    "Bedrock": (132, 132, _plain("ABS" + "KQmVkcm9ja0FQSUtleS", BASE64)),
    "Bedrock, short": (200, 600, _plain("bedrock-api-" + "key-YmVkcm9jay5hbWF6b25hd3MuY29t", BASE64)),
    "Hugging Face": (37, 37, _plain("hf" + "_", LETTERS)),
    "Hugging Face organisation": (42, 42, _plain("api" + "_org_", LETTERS)),
    "Hugging Face OAuth": (200, 400, _jwt("hf" + "_oauth_")),
    "Slack bot": (48, 57, _slack("xox" + "b")),
    "Slack user": (60, 76, _slack("xox" + "p", 3, HEX)),
    "Slack app": (60, 98, _plain("xapp" + "-1-A012ABCD34E-1234567890123-", HEX)),
    "Slack rotated": (60, 166, _plain("xoxe" + ".xoxb-1-", ALNUM)),
    "Slack refresh": (60, 148, _plain("xoxe" + "-1-", ALNUM)),
    "Slack cookie": (60, 180, _plain("xox" + "d-", BASE64 + "%")),
    "Slack webhook": (77, 81, _plain(_HOOK + "services/T012AB3CD/B012AB3CD45/", ALNUM)),
    "Slack workflow": (80, 90, _plain(_HOOK + "triggers/T012AB3CD/1234567890123/", ALNUM)),
    "W&B": (60, 86, _plain("wandb" + "_v1_", WORD)),
    "OpenAI project": (60, 164, _openai("sk" + "-proj-")),
    "OpenAI service": (60, 167, _openai("sk" + "-svcacct-")),
    "OpenAI admin": (60, 133, _openai("sk" + "-admin-")),
    "OpenAI, old": (51, 51, _openai("sk" + "-")),
    "Anthropic": (60, 108, lambda n, s: "sk" + f"-ant-api03-{random_text(URL, n - 15, s)}AA"),
    "NGC": (60, 70, _plain("nvapi" + "-", URL)),
}
NAMED = {
    # variable -> alphabet and usual length of a value that only its name gives away
    "AWS_SECRET_ACCESS_KEY": (BASE64, 40),
    "AWS_SESSION_TOKEN": (BASE64, 350),
    "WANDB_API_KEY": (HEX, 40),
    "NGC_API_KEY": (ALNUM, 84),
}


def private_key(kind: str = "", body: int = 1600) -> str:
    """Return a PEM block of random bytes; `kind` is such as `RSA ` or `OPENSSH `."""
    text = random_text(BASE64, body)
    lines = "\n".join(text[at : at + 64] for at in range(0, body, 64))
    return f"-----BEGIN {kind}PRIVATE " + f"KEY-----\n{lines}\n-----END {kind}PRIVATE " + "KEY-----\n"


def _notebook(line: str) -> str:
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": ["import os\n", line + "\n"]}
    return json.dumps({"cells": [cell], "nbformat": 4}, indent=1)


PLACES: dict[str, Callable[[str, str], str]] = {
    # place -> writer(variable, value)
    "env file": lambda name, value: f"A=1\n{name}={value}\nB=2\n",
    "env file, quoted": lambda name, value: f'{name}="{value}"\n',
    "env file, single quotes": lambda name, value: f"{name}='{value}'",
    "Dockerfile ENV": lambda name, value: f"FROM a\nENV {name}={value}\n",
    "Dockerfile ENV, old": lambda name, value: f"FROM a\nENV {name} {value}\n",
    "Dockerfile ENV, several": lambda name, value: f"FROM a\nENV A=1 \\\n    {name}={value} B=2\n",
    "Dockerfile ARG": lambda name, value: f'FROM a\nARG {name}="{value}"\nRUN x\n',
    "Python": lambda name, value: f'import os\n\n{name} = "{value}"  # mine\n',
    "Python environ": lambda name, value: f"os.environ['{name}'] = '{value}'\n",
    "Python setdefault": lambda name, value: f'os.environ.setdefault("{name}", "{value}")\n',
    "Python keyword": lambda name, value: f'start(job="a", {name.lower()}="{value}")\n',
    "JSON": lambda name, value: json.dumps({"a": 1, name: value}),
    "JSON, indented": lambda name, value: json.dumps({name: value, "b": [1]}, indent=2),
    "YAML": lambda name, value: f"a: 1\n{name}: {value}\n",
    "YAML, quoted": lambda name, value: f'a:\n  - name: "{name}"\n    {name.lower()}: "{value}"\n',
    "YAML of Kubernetes": lambda name, value: f'env:\n  - name: {name}\n    value: "{value}"\n',
    "TOML": lambda name, value: f'[a]\n{name.lower()} = "{value}"\n',
    "INI": lambda name, value: f"[default]\n{name.lower()} = {value}\n",
    "shell": lambda name, value: f"#!/bin/sh\nexport {name}={value}; train\n",
    "shell, quoted": lambda name, value: f'export {name}="{value}" && train\n',
    "shell, before a command": lambda name, value: f"{name}={value} python train.py\n",
    "notebook": lambda name, value: _notebook(f'os.environ["{name}"] = "{value}"'),
    "notebook, magic": lambda name, value: _notebook(f"%env {name}={value}"),
    "Windows lines": lambda name, value: f"A=1\r\n{name}={value}\r\nB=2\r\n",
}
BARE_PLACES: dict[str, Callable[[str], str]] = {
    # without any name beside them
    "alone": lambda value: value,
    "start of a line": lambda value: f"a\n{value} is it\n",
    "end of a line": lambda value: f"it is {value}",
    "in an address": lambda value: f"git clone https://x-access-token:{value}@github.com/a/b\n",
    "in a header": lambda value: f'curl -H "Authorization: Bearer {value}" https://a\n',
    "in parentheses": lambda value: f"login({value!r})\n",
    "in backquotes": lambda value: f"use `{value}`.\n",
    "after 70 kB": lambda value: "x = 1\n" * 12_000 + f"y = '{value}'\n",
}


def tokens() -> Iterator[tuple[str, int, str]]:
    """Yield every form in every length: its name, the length, and the token."""
    for name, (shortest, usual, make) in FORMS.items():
        for length in sorted({shortest, usual, *(each for each in LONG if each > shortest)}):
            yield name, length, make(length, 7)
