#!/usr/bin/env bash
# Propose the changed files of this checkout as one pull request, which a later proposal replaces.
#
#     tools/propose_changes.sh BRANCH TITLE NOTES FILE...
#
# Commits FILE... on BRANCH, opens its pull request for GITHUB_REF_NAME with the text in NOTES, or gives an open one the
# new text, and starts ci.yml, because GitHub starts no workflow for what its own token does.
# Reads GH_TOKEN, GITHUB_REF_NAME. Writes the outputs `commit` and `pull_request` (its number).
set -euo pipefail
branch=$1 title=$2 notes=$3
shift 3

gh auth setup-git # the checkout keeps no credentials
git switch --force-create "$branch"
git add -- "$@"
git -c user.name='github-actions[bot]' -c user.email='41898282+github-actions[bot]@users.noreply.github.com' \
  commit --message "$title"
git push --force origin "$branch"

number=$(gh pr list --head "$branch" --base "$GITHUB_REF_NAME" --state open --json number --jq '.[0].number // empty')
if [ -n "$number" ]; then
  gh pr edit "$number" --body-file "$notes"
else
  url=$(gh pr create --head "$branch" --base "$GITHUB_REF_NAME" --title "$title" --body-file "$notes") || {
    echo "::error::The commit is on the branch $branch. Let Actions open pull requests: Settings, Actions, General," \
      "Workflow permissions."
    exit 4
  }
  number=${url##*/}
  echo "Proposed: $url" >>"$GITHUB_STEP_SUMMARY"
fi
printf 'commit=%s\npull_request=%s\n' "$(git rev-parse HEAD)" "$number" >>"$GITHUB_OUTPUT"
gh workflow run ci.yml --ref "$branch"
