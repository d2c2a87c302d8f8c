"""Files of settings in a context: those with a secret are refused, those with a reference or none are not."""

from trainyard.image.context.context_secrets import secret_in

KEY = "q7Zr4tK9vXw2Lm8Pn3Bd"
PASSWORD = "s3curePassw0rt"

SECRETS = {
    ".npmrc": f"//registry.npmjs.org/:_authToken={KEY}",
    "config/prod.env": f"DB_PASSWORD={PASSWORD}",
    "docker/config.json": '{"auths": {"ghcr.io": {"auth": "dXNlcjpxN1pyNHRLOXZYdw=="}}}',
    "kube/config": f"users:\n- user:\n    token: {KEY}\n",
    "deploy/cluster.yaml": f"users:\n- user:\n    client-key-data: {KEY * 3}\n",
    "terraform.tfstate": "{}",
    "pip.conf": f"[global]\nindex-url = https://team:{PASSWORD}@pypi.corp.net/simple",
    "requirements.txt": f"--index-url https://team:{PASSWORD}@pypi.corp.net/simple\ntorch",
    "kaggle.json": f'{{"username": "a", "key": "{KEY}"}}',
    "app/settings.yaml": f"url: postgresql+psycopg://app:{PASSWORD}@db.corp.net/app",
    "comet.ini": f"[comet]\napi_key = {KEY}",
}
INNOCENT = {
    ".npmrc": "registry=https://registry.npmjs.org/\n//x/:_authToken=${NPM_TOKEN}",
    "config/prod.env": "LOG_LEVEL=info\nHF_TOKEN=${HF_TOKEN}\nDB_PASSWORD=your_password\n",
    "docker/config.json": '{"hidden_size": 8}',
    "kube/config": "users: []\n",
    "model/config.json": '{"auth": true}',
    "pip.conf": "[global]\nindex-url = https://pypi.org/simple",
    "requirements.txt": "--index-url https://${USER}:${PASSWORD}@pypi.corp.net/simple\ntorch",
    "alembic.ini": "sqlalchemy.url = postgresql://user:password@db/app",
    "local.yaml": "url: postgresql://postgres:postgres@localhost/app",
    "docs/setup.md": f"postgresql://app:{PASSWORD}@db.corp.net/app",
    "comet.ini": "[comet]\nworkspace = team",
    "prod.env.example": f"DB_PASSWORD={PASSWORD}",
}


def test_a_secret_in_settings_is_found_and_settings_without_one_are_sent() -> None:
    assert [name for name, text in SECRETS.items() if not secret_in(name, text.encode())] == []
    assert [name for name, text in INNOCENT.items() if secret_in(name, text.encode())] == []
