"""Read a role's trust policy through the command line `aws`, with the person's login. It changes nothing."""

import json
from typing import Any

from trainyard.gateways.process import run_program

SECONDS = 60


def trust_policy_of(role: str) -> tuple[dict[str, Any] | None, str]:
    """Return the trust policy of the role named `role`; or None, and the reason why it could not be read."""
    done = run_program(
        ["aws", "iam", "get-role", "--role-name", role, "--output", "json", "--no-cli-pager"],
        seconds=SECONDS,
        stdin="",
    )
    if done.exit_code is None:
        return None, "the aws command is not installed" if "not found" in done.stderr else done.stderr[:200]
    if not done.ok:
        return None, " ".join(done.stderr.split())[:200] or f"aws ended with {done.exit_code}"
    try:
        policy = json.loads(done.stdout)["Role"]["AssumeRolePolicyDocument"]
    except (ValueError, KeyError, TypeError):
        return None, "aws did not return a role"
    return (policy, "") if isinstance(policy, dict) else (None, "aws returned no policy")
