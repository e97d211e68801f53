#!/usr/bin/env bash
# Reviews the recipes of a change: validates and plans them, keeps one comment on the pull request up to date, and fails
# when the recipes are wrong or their plan breaks the campaign's policy. It starts nothing and needs no GPU.
#
#   RECIPES   folder of recipes (recipes)         STATE     state folder (state)
#   BASE_PLAN plan of the target branch, to compare with (none)
#   FORGE     github or gitlab; without it the comment goes to standard output
#   API_URL   address of the forge's API          TOKEN     what it is asked with
#   PROJECT   owner/name (github), id (gitlab)    CHANGE    number of the pull or merge request
set -euo pipefail

recipes=${RECIPES:-recipes}
state=${STATE:-state}
mark='<!-- lcplan review -->'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

main() {
  local verdict=0
  review >"$work/body.md" || verdict=$?
  if [ -n "${FORGE:-}" ]; then
    comment
  else
    cat "$work/body.md"
  fi
  cat "$work/errors" >&2
  return "$verdict"
}

# Prints the comment's text; fails as `lcplan validate` and `lcplan plan` do.
review() {
  local verdict=0
  printf '%s\n' "$mark"
  lcplan validate "$recipes" >/dev/null 2>"$work/errors" || verdict=$?
  if [ "$verdict" -eq 0 ]; then
    lcplan plan "$recipes" --state "$state" --format md -o "$work/plan.json" >"$work/plan.md" 2>"$work/errors" ||
      verdict=$?
  fi
  if [ -s "$work/plan.md" ]; then
    cat "$work/plan.md"
  else
    printf '### lcplan: these recipes cannot be planned\n'
  fi
  if [ "$verdict" -ne 0 ]; then
    quote "$(head -c 4000 "$work/errors")"
  fi
  if [ -s "$work/plan.json" ] && [ -s "${BASE_PLAN:-}" ]; then
    printf '\n#### Against the target branch\n'
    quote "$(lcplan plan diff "$BASE_PLAN" "$work/plan.json" | head -c 8000)"
  fi
  return "$verdict"
}

# Prints text as a block of a comment.
quote() {
  local fence='~~~'
  printf '\n%s\n%s\n%s\n' "$fence" "$1" "$fence"
}

# Writes the comment, or what is new into the one that is there.
comment() {
  local list header one update
  case $FORGE in
    github)
      list="$API_URL/repos/$PROJECT/issues/$CHANGE/comments"
      one="$API_URL/repos/$PROJECT/issues/comments"
      header="Authorization: Bearer $TOKEN"
      update=PATCH
      ;;
    gitlab)
      list="$API_URL/projects/$PROJECT/merge_requests/$CHANGE/notes"
      one="$list"
      header="PRIVATE-TOKEN: $TOKEN"
      update=PUT
      ;;
    *)
      printf 'FORGE is github or gitlab, not %s\n' "$FORGE" >&2
      return 1
      ;;
  esac
  printf 'header = "%s"\nheader = "Content-Type: application/json"\n' "$header" >"$work/curl"
  python3 -c 'import json, sys; print(json.dumps({"body": open(sys.argv[1]).read()[:65000]}))' \
    "$work/body.md" >"$work/body.json"
  local known
  known=$(existing "$list")
  if [ -n "$known" ]; then
    ask -X "$update" --data-binary "@$work/body.json" "$one/$known" >/dev/null
  else
    ask -X POST --data-binary "@$work/body.json" "$list" >/dev/null
  fi
}

# Prints the id of our comment, nothing when there is none.
existing() {
  local page=1 found
  while [ "$page" -le 50 ]; do
    ask --retry 3 "$1?per_page=100&page=$page" >"$work/page.json"
    found=$(python3 -c 'import json, sys
comments = json.load(open(sys.argv[1]))
ours = [c["id"] for c in comments if (c.get("body") or "").startswith(sys.argv[2])]
print(ours[0] if ours else "" if len(comments) == 100 else "none")' "$work/page.json" "$mark")
    case $found in
      none) return ;;
      ?*)
        printf '%s' "$found"
        return
        ;;
    esac
    page=$((page + 1))
  done
}

# The token goes by a file of ours: a command line is visible to everybody.
ask() {
  curl --silent --show-error --fail --config "$work/curl" "$@"
}

main "$@"
