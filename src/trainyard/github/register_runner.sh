# Make this machine a runner of PAGE; running it again does the remaining steps. `trainyard init github` prints it
# with the variables that it reads. NVIDIA's driver 580 is the oldest that works with torch's CUDA 13.
set -euo pipefail
register() {
  for program in curl tar git make; do
    command -v "$program" > /dev/null ||
      { echo "$program is missing: apt-get install $program" >&2; exit 1; }
  done
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null | head -n 1) || driver=
  if ! [ "${driver%%.*}" -ge 580 ] 2> /dev/null; then
    echo "The NVIDIA driver is ${driver:-missing}; training on the GPU needs 580 or newer:" >&2
    echo "  sudo apt-get install -y nvidia-driver-580-server && sudo reboot" >&2
  fi
  id runner > /dev/null 2>&1 || useradd --create-home --shell /bin/bash runner
  for folder in "${FOLDERS[@]}"; do
    [ -d "$folder" ] || install -d -o runner "$folder"
    sudo -u runner test -w "$folder" || echo "The user runner may not write to $folder: chown it." >&2
  done
  home=$(getent passwd runner | cut -d: -f6)/actions-runner-$NAME
  install -d -o runner "$home"
  cd "$home"
  download=${DOWNLOADS[$(uname -m)]:-}
  [ -n "$download" ] || { echo "GitHub has no runner for $(uname -m)" >&2; exit 1; }
  if ! [ -e .unpacked ]; then
    curl --fail --silent --show-error --location --retry 3 --output runner.tar.gz "${download#* }"
    echo "${download%% *}  runner.tar.gz" | sha256sum --check --quiet
    sudo -u runner tar -xzf runner.tar.gz
    rm runner.tar.gz
    [ ! -x bin/installdependencies.sh ] || ./bin/installdependencies.sh > /dev/null
    touch .unpacked
  fi
  if ! [ -e .runner ]; then
    export ACTIONS_RUNNER_INPUT_TOKEN=$TOKEN
    sudo -u runner --preserve-env=ACTIONS_RUNNER_INPUT_TOKEN ./config.sh --unattended \
      --url "$PAGE" --name "$(hostname)" ${LABELS:+--labels "$LABELS"}
    unset ACTIONS_RUNNER_INPUT_TOKEN
  fi
  [ -e .service ] || ./svc.sh install runner
  ./svc.sh start
}
register < /dev/null
