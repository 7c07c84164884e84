#!/bin/sh
# Makes a node forget another one, which has been stopped for good. Run it at each other node, one after the other.
set -eu
usage='usage: forget-peer.sh CONFIG GONE-ID [--config FILE|--url URL]...
CONFIG: of the node on this machine, which is restarted; the options name all other nodes that stay.'
config=${1:?"$usage"} id=${2:?"$usage"}
shift 2

if ! links=$(replicator status --json --config "$config" | grep -A 2 "\"peer\": \"$id\""); then
    echo "$config: the node does not know $id" >&2
    exit 1
elif printf '%s\n' "$links" | grep -q '"up": true'; then
    echo "$id still runs: stop it by leave.sh, or mail that it takes from now on is lost" >&2
    exit 1
fi
cp -p "$config" "$config.new"
trap 'rm -f "$config.new"' EXIT
awk -v id="$id" -v listed="$(grep -c '^removed *=' "$config")" '
    function end_section() { printf "%s", is_gone ? comments : section; section = comments = ""; is_gone = 0 }
    /^\[/ { end_section(); is_peer = /^\[\[peer\]\]/ }
    is_peer && $0 ~ "^id *= *\"" id "\"" { is_gone = 1 }
    /^removed *=/ { sub(/\[/, "[\"" id "\", ") }
    { section = section $0 "\n" }
    /^(#|$)/ { comments = comments $0 "\n" }
    /^\[node\]/ && !listed { section = section "removed = [\"" id "\"]\n" }
    END { end_section() }' "$config" >"$config.new"
diff "$config" "$config.new" || :
replicator config check "$config.new"
mv "$config.new" "$config"
"$(dirname "$0")/restart.sh" "$config" "$@"
