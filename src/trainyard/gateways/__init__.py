"""The only places that touch the outside world: S3, local stores, Slack, GitHub, git, other processes."""
