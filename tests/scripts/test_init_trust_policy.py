"""trainyard init trust-policy: the form by what is known, the policy to stdout or a file."""

import json
from pathlib import Path
from typing import Any

from tests.scripts.conftest import Call

WHOSE = ("--repository", "me/lab", "--account", "123456789012")
IDS = ("--owner-id", "11", "--repository-id", "22")


def subjects(text: str) -> Any:
    equal = json.loads(text)["Statement"][0]["Condition"]["StringEquals"]
    return equal["token.actions.githubusercontent.com:sub"]


def test_ids_choose_the_form_unless_it_is_named(called: Call, tmp_path: Path) -> None:
    names, immutable = "repo:me/lab:environment:training", "repo:me@11/lab@22:environment:training"
    write = ("init trust-policy", *WHOSE, "--environment", "training")
    assert subjects(called(*write).stdout) == names
    assert subjects(called(*write, *IDS).stdout) == immutable
    assert subjects(called(*write, *IDS, "--subject-format", "both").stdout) == [names, immutable]
    done = called(*write, *IDS, "--output", "trust.json")
    assert (done.stdout, subjects((tmp_path / "trust.json").read_text())) == ("", immutable)


def test_a_form_whose_ids_are_missing_is_a_usage_error(called: Call) -> None:
    done = called("init trust-policy", *WHOSE, "--ref", "refs/heads/main", "--subject-format", "immutable")
    assert (done.returncode, "gh api repos/me/lab" in done.stderr) == (2, True)
    assert called("init trust-policy", *WHOSE).returncode == 2
