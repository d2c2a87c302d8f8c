#!/bin/sh
# Set up AWS once for building images with CodeBuild: `trainyard init aws` in the environment of this checkout.
#
#   infrastructure/setup-codebuild.sh --project-name trainyard --region us-west-2 --ecr-repository trainyard --dry-run
#
# --help lists every option. It can run again at any time.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
python=${VENV:-$root/.venv}/bin/python
if [ ! -x "$python" ]; then
  echo "There is no environment in $root yet: run \`make install\` there first." >&2
  exit 2
fi
exec "$python" -m trainyard init aws "$@"
