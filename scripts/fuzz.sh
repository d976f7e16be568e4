#!/usr/bin/env bash
# Runs every fuzz target for FUZZTIME (10s) each, of every module but those that need
# installed parts.
set -euo pipefail
cd "$(dirname "$0")/.."

fuzztime=${FUZZTIME:-10s}
count=0
failed=()
while read -r module _ needs; do
  [[ -n $module && $module != \#* && $needs != real ]] || continue
  # Folders with a go.mod of their own are modules of their own.
  while IFS=: read -r file line; do
    dir=$(dirname "$file")
    owner=$dir
    while [ ! -f "$owner/go.mod" ] && [ "$owner" != . ]; do owner=$(dirname "$owner"); done
    [ "$owner" = "$module" ] || continue
    target=${line#func }
    target=${target%%(*}
    count=$((count + 1))
    echo "--- $dir $target"
    package=./${dir#"$module"/}
    [ "$module" != . ] || package=./$dir
    if ! (cd "$module" && go test -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" "$package"); then
      failed+=("$dir $target")
    fi
  done < <(git grep --untracked -E '^func Fuzz[A-Z0-9][A-Za-z0-9_]*\(' -- '*_test.go' | sed -E 's/^([^:]*):(func [A-Za-z0-9_]*\().*/\1:\2/')
done <modules.txt

echo "$count fuzz targets ran for $fuzztime each"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
[ "$count" -gt 0 ]
