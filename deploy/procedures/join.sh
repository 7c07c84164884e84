#!/bin/sh
# Starts a node that has nothing: a new one, or one whose disk is lost. It ends when the node has all that others have.
set -eu
usage='usage: [WAIT=30m] join.sh CONFIG --config FILE|--url URL...
CONFIG: of the node on this machine; the options name all other nodes that run.'
config=${1:?"$usage"}
shift
: "${2:?"$usage"}"
wait=${WAIT:-30m}

replicator config check "$config"
data=$(replicator config show "$config" | sed -n 's/^data = "\([^"]*\)".*/\1/p')
case $data in /*) ;; *) data=$(dirname "$config")/$data ;; esac
if [ -s "$data/node.db" ]; then
    echo "$data has a database: join.sh is for nodes that have nothing" >&2
    exit 1
fi
replicator status "$@" >/dev/null # all others answer
systemctl enable --now "mail-replicator@$(basename "$config" .toml)"
replicator health --wait "$wait" --config "$config"
replicator status --wait-equal "$wait" --config "$config" "$@"
