# Refuse variables given to make that are none of the Makefile's, with the nearest name: `make train CONFGI=…`.
#
# Make itself takes any name, sets it, and hands it to what it starts; so a slip of the finger would train something else.
# Names that other programs read from their environment pass (CUDA_VISIBLE_DEVICES=0), unless they are one letter from
# one of ours. One that is not listed here can stand in front of make: NAME=… make train.
#
# Reads:      known=, the Makefile's own names; inner=, not empty when another make started this one: its variables
#             come along, and are refused only where they look misspelt; on stdin the names given
# Writes:     on stderr a line for each name that is refused
# Exit codes: 0; 2 a name is refused
# Example:    echo CONFGI | awk -v known='CONFIG SET' -f scripts/explain_variables.awk
BEGIN {
  families = "^(MAKE|CMAKE_|UV_|PIP_|PYTHON|PYTEST_|TRAINYARD_|CUDA|NVIDIA_|NCCL_|FI_|GLOO_|TORCH|PYTORCH_|OMP_|MKL_|HF_)" \
    "|^(TOKENIZERS_|WANDB_|TENSORBOARD_|AWS_|SLACK_|GITHUB_|GH_|GIT_|SSL_|XDG_|LD_|LC_|NPM_|npm_|NODE_)" \
    "|^(V|VERBOSE|SHELL|CC|CXX|CI|HOME|PATH|TMPDIR|LANG|TERM|COLUMNS|NO_COLOR|FORCE_COLOR|ACTIONLINT)$" \
    "|FLAGS$|_(PROXY|proxy)$"
}

{ for (field = 1; field <= NF; field++) explain($field) }

END { exit refused ? 2 : 0 }

function explain(name,    nearest, distance) {
  nearest = nearest_to(name)
  distance = edits(toupper(name), nearest)
  if (distance > 1 && (inner != "" || name ~ families)) return
  refused = 1
  if (name ~ /\./)
    say(name " is a setting of the configuration, no variable of make: SET=\"" name "=…\".")
  else if (distance <= 2 && length(name) > 2)
    say(name " is not a variable of this Makefile; did you mean " nearest "?")
  else
    say(name " is not a variable of this Makefile; it knows " known ".\nA variable of the environment stands in front: " \
      name "=… make …")
}

function say(text) {
  print text | "cat >&2"
}

function nearest_to(name,    names, count, i, distance, fewest, nearest) {
  count = split(known, names, " ")
  fewest = 99
  for (i = 1; i <= count; i++) {
    distance = edits(toupper(name), names[i])
    if (distance < fewest) {
      fewest = distance
      nearest = names[i]
    }
  }
  return nearest
}

# How many letters to add, remove, change or swap with their neighbour (optimal string alignment distance).
function edits(a, b,    i, j, changed, table) {
  for (i = 0; i <= length(a); i++) table[i, 0] = i
  for (j = 0; j <= length(b); j++) table[0, j] = j
  for (i = 1; i <= length(a); i++)
    for (j = 1; j <= length(b); j++) {
      changed = substr(a, i, 1) != substr(b, j, 1)
      table[i, j] = smaller(table[i - 1, j] + 1, smaller(table[i, j - 1] + 1, table[i - 1, j - 1] + changed))
      if (i > 1 && j > 1 && substr(a, i, 1) == substr(b, j - 1, 1) && substr(a, i - 1, 1) == substr(b, j, 1))
        table[i, j] = smaller(table[i, j], table[i - 2, j - 2] + 1)
    }
  return table[length(a), length(b)]
}

function smaller(a, b) { return a < b ? a : b }
