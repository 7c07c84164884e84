#!/bin/sh
# Stops a node for good, once the others have all that it has. Its disk stays as it is.
set -eu
usage='usage: [KICK_AFTER=10m] [WAIT=30m] leave.sh CONFIG --config FILE|--url URL...
CONFIG: of the node on this machine; the options name all other nodes.'
config=${1:?"$usage"}
shift
: "${2:?"$usage"}"
wait=${WAIT:-30m}

if timeout "$wait" replicator drain --kick-after "${KICK_AFTER:-10m}" --config "$config" &&
    replicator status --wait-equal "$wait" --config "$config" "$@"; then
    systemctl disable --now "mail-replicator@$(basename "$config" .toml)"
else
    replicator drain --undo --config "$config"
    exit 1
fi
